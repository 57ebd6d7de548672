"""A kernel's key: the same in a build and in a run, whatever was launched before."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Records the launches of all operations' build cases, first to last or last to first.
PROGRAM = """
import sys
from kernels import cuda, launch, registry, target
keys = {}
with (
    target.building("sm90"),
    launch.recording(lambda kernel, *_: keys.update({kernel.__name__: kernel.cache_key})),
    cuda.recording(lambda *_: None),
):
    for name in registry.OPERATIONS[:: int(sys.argv[1])]:
        for case in registry.module(name).build_cases():
            case.call()
print(*sorted(keys.items()), sep="\\n")
"""


def _keys(step: int) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, str(step)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment | {"PYTHONPATH": str(ROOT)}
    )
    return done.stdout.splitlines()


def test_keys_do_not_depend_on_the_order_of_launches():
    forward = _keys(1)
    assert len(forward) > 10
    assert forward == _keys(-1)
