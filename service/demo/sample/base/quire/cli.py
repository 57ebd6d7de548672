"""The command line: `python -m quire simulate TRACE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quire.cache import PagedCache
from quire.config import Config, load_config
from quire.request import Request
from quire.scheduler import Scheduler
from quire.toy import ToyModel


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="quire")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("simulate", help="run a trace of requests through the scheduler")
    command.add_argument("trace", type=Path, help="JSON: a list of {id, prompt, max_tokens}")
    command.add_argument("--config", type=Path, help="TOML file with settings")
    command.set_defaults(run=simulate)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


def simulate(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config) if arguments.config else Config()
    cache = PagedCache(config.num_pages, config.page_size, config.width, config.max_running)
    scheduler = Scheduler(cache, ToyModel(config.width), config.max_running)
    for entry in json.loads(arguments.trace.read_text("utf-8")):
        scheduler.submit(Request(entry["id"], entry["prompt"], entry["max_tokens"]))
    steps = 0
    while scheduler.waiting or scheduler.running:
        steps += 1
        for request in scheduler.step():
            print(f"{request.id}: {request.output} after {steps} steps")
    return 0
