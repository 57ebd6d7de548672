"""The server's gRPC interface: `engine.proto`, and what grpcio-tools generated from it.

Generated anew, from the repository's root, by
`python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. runtime/proto/engine.proto`.
"""
