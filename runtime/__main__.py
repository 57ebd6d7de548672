"""`python -m runtime`: the decode engine's server, smoke test, benchmark and profile."""

import argparse
import sys
from collections.abc import Sequence

from runtime.bench import cli as bench
from runtime.profile import cli as profile
from runtime.server import cli as server
from runtime.smoke import cli as smoke


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m runtime", description="The decode engine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (server, smoke, bench, profile):
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.command(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
