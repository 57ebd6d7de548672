"""The command line: `python -m quire simulate TRACE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quire.cache import PagedCache
from quire.config import load_config, parse_override
from quire.request import Request
from quire.scheduler import Scheduler
from quire.toy import ToyModel


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="quire")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "simulate",
        help="run a trace of requests through the scheduler",
    )
    command.add_argument(
        "trace",
        type=Path,
        help="JSON: a list of {id, prompt, max_tokens}",
    )
    command.add_argument("--config", type=Path, help="TOML file with settings")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting; may be repeated",
    )
    command.set_defaults(run=simulate)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


def simulate(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, dict(map(parse_override, arguments.set)))
    cache = PagedCache(
        config.num_pages, config.page_size, config.width, config.max_running, config.page_format
    )
    scheduler = Scheduler(cache, ToyModel(config.width), config.max_running)
    for entry in json.loads(arguments.trace.read_text("utf-8")):
        scheduler.submit(Request(entry["id"], entry["prompt"], entry["max_tokens"]))
    steps = 0
    while scheduler.waiting or scheduler.running:
        steps += 1
        for request in scheduler.step():
            print(f"{request.id}: {request.output} after {steps} steps")
    return 0
