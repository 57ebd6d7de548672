"""The engine behind gRPC (`runtime/proto/engine.proto`): one thread owns the engine, asyncio speaks to clients.

Clients' calls become commands (`messages`), which `engine_thread` carries out between steps; what steps give comes back as
events, at most one hand-over a step. With several front ends the same commands and events cross a pipe instead of threads.
"""
