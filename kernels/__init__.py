"""The GPU kernels that the engine stands on: one file per operation. Imports nothing of the other rooms.

Every operation's module holds its contract, a torch reference, the kernels, the public function, `build_cases`
(what `python -m kernels build` compiles) and `check` (what `python -m kernels check` runs).
"""
