"""A program that serves with two ranks, to be ended in one way or another: `python parallel_script.py DEVICE HOW`.

It prints the other rank's process id, then a line when it is where the test wants it: everything is captured.
"""

import sys
import time

import torch

from runtime.engine import Engine
from runtime.parallel.engine import Ranks
from runtime.request import SamplingParameters
from tests.runtime.parallel_kit import DENSE, GPU_MODELS, source

SAMPLING = SamplingParameters(max_tokens=60, temperature=1.0, seed=1)


def serve(serving: Engine, steps: int) -> None:
    serving.submit([1, 2, 3], SAMPLING)
    serving.submit([4], SAMPLING)
    for _ in range(steps):
        serving.step()


def main(device: str, how: str) -> None:
    ranks = Ranks(2, device)
    print(ranks._processes._processes[1].pid, flush=True)
    serving = ranks.build(source(GPU_MODELS["dense"] if device == "cuda" else DENSE, buckets=(1, 2)))
    serve(serving, 8)
    print("here", flush=True)
    if how == "close":
        ranks.close()
    elif how == "raise":
        with ranks:
            raise SystemExit(3)
    elif how == "stay":
        time.sleep(60)
    elif how == "compute":
        while True:
            serve(serving, 100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
