"""The command `smoke`: runs a suite, prints the verdict, and keeps answers when asked to."""

import argparse
import sys
from pathlib import Path

from runtime.smoke import run


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `smoke` to the program's commands."""
    smoke = commands.add_parser("smoke", help="serve kept requests and compare with kept answers")
    smoke.add_argument("--suite", required=True, help="cpu runs anywhere, gpu on one GPU, tp2 on two")
    smoke.add_argument("--out", type=Path, default=Path("out/smoke"), help="folder for raw outputs")
    smoke.add_argument(
        "--rebaseline", action="store_true", help="show the difference, then keep these answers"
    )
    smoke.set_defaults(command=_smoke)


def _smoke(arguments: argparse.Namespace) -> int:
    try:
        made = run.run_suite(arguments.suite, arguments.out)
        golden = run.golden_path(arguments.suite)
        if arguments.rebaseline and not golden.exists():
            verdict = None
        else:
            verdict = run.compare(made, run.read_golden(arguments.suite))
    except run.SmokeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if verdict is not None:
        for line in (*verdict.differences, *verdict.failed, *verdict.other):
            print(line)
        print(verdict)
    print(f"raw outputs: {arguments.out / arguments.suite}.json")
    if arguments.rebaseline:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text((arguments.out / f"{arguments.suite}.json").read_text())
        print(f"kept as {golden}: review the difference above before you commit it")
        return 0
    return 0 if verdict is not None and verdict.passed else 1
