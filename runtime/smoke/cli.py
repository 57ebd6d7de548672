"""The command `smoke`: runs a suite, prints the verdict, and keeps answers when asked to."""

import argparse
import sys
from pathlib import Path

from runtime.server.process import terminated_like_interrupted
from runtime.smoke import golden
from runtime.smoke.compare import Verdict, compare, unwell
from runtime.smoke.errors import SmokeError
from runtime.smoke.run import Run, run_suite, write_summary

SUMMARY = "summary.json"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `smoke` to the program's commands."""
    smoke = commands.add_parser("smoke", help="ask servers kept requests and compare with kept answers")
    smoke.add_argument("--suite", required=True, help="cpu runs anywhere, gpu on one GPU, tp2 on two")
    smoke.add_argument("--out", type=Path, default=Path("out/smoke"), help="folder for raw outputs")
    smoke.add_argument(
        "--direct", action="store_true", help="ask the engine in this process, without any server"
    )
    smoke.add_argument(
        "--rebaseline", action="store_true", help="show the difference, then keep these answers"
    )
    smoke.set_defaults(command=_smoke)


def _smoke(arguments: argparse.Namespace) -> int:
    try:
        with terminated_like_interrupted():
            run = run_suite(arguments.suite, arguments.out, is_direct=arguments.direct)
        return _judge(arguments, run)
    except SmokeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _judge(arguments: argparse.Namespace, run: Run) -> int:
    path = golden.path_of(arguments.suite)
    verdict = None
    if not (arguments.rebaseline and not path.exists()):
        try:
            verdict = compare(run.made, golden.read(path))
        except SmokeError as error:
            write_summary(arguments.out / SUMMARY, run, None, str(error))
            raise
    write_summary(arguments.out / SUMMARY, run, verdict)
    raw = arguments.out / f"{arguments.suite}.json"
    if verdict is not None:
        _print(verdict)
    print(f"raw outputs: {raw}, summary: {arguments.out / SUMMARY}")
    if not arguments.rebaseline:
        return 0 if verdict is not None and verdict.passed else 1
    if lines := unwell(run.made):
        print(*lines, "not kept: each request has to have an answer", sep="\n")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(raw.read_text())
    print(f"kept as {path}: review the difference above before you commit it")
    return 0


def _print(verdict: Verdict) -> None:
    for outcome in verdict.outcomes:
        for line in outcome.details:
            print(line)
    print(verdict)
