"""`python -m kernels`: build, bench and check, with torch and triton alone."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels import cuda, registry, target


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status (1: something failed, 2: bad usage)."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.command(arguments)
    except (ValueError, cuda.ToolchainError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


def _build(arguments: argparse.Namespace) -> int:
    from kernels import build

    report = build.build(arguments.arch, arguments.names or registry.OPERATIONS, arguments.jobs)
    print(build.summary(report))
    if arguments.json:
        arguments.json.write_text(build.to_json(report) + "\n")
    return 1 if report.failures() else 0


def _bench(arguments: argparse.Namespace) -> int:
    from kernels.bench import report

    return report.run(
        arguments.names or registry.OPERATIONS,
        with_peers=arguments.peers,
        json_file=arguments.json,
        kpis_file=arguments.kpis,
    )


def _check(arguments: argparse.Namespace) -> int:
    from kernels import check

    return check.run(arguments.names or registry.OPERATIONS, compiled_only=arguments.no_compile)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels", description="The GPU kernels: build, benchmark, check."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="compile every variant for named architectures, no GPU needed")
    build.add_argument("names", nargs="*", metavar="NAME", help="operations (default: all)")
    build.add_argument(
        "--arch", nargs="+", required=True, choices=tuple(target.ARCHITECTURES), metavar="ARCH"
    )
    build.add_argument("--jobs", type=int, help="processes (default: one a core)")
    build.add_argument("--json", type=Path, metavar="FILE", help="also write every variant's resources")
    build.set_defaults(command=_build)

    bench = commands.add_parser("bench", help="measure on this GPU, beside its own copy bandwidth")
    bench.add_argument("names", nargs="*", metavar="NAME", help="operations (default: all)")
    bench.add_argument(
        "--peers", action="store_true", help="also time torch and the libraries that are installed"
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="also write every figure")
    bench.add_argument(
        "--kpis", type=Path, metavar="FILE", help="also write what CI compares: each row's microseconds"
    )
    bench.set_defaults(command=_bench)

    check = commands.add_parser(
        "check", help="versions, device, live backends, a tiny pass of every operation"
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="operations (default: all)")
    check.add_argument("--no-compile", action="store_true", help="fail if anything has to be compiled")
    check.set_defaults(command=_check)
    return parser


if __name__ == "__main__":
    sys.exit(main())
