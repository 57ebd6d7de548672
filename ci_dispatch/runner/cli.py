"""`whitesmoke runner`, or `whitesmoke-runner` where the runner is installed alone: offers this host's GPUs to a service."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import get_args

import click

from ci_dispatch.model import Arch
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.start import Options, run_agent

_PR_SET_DUMPABLE = 4
_TOKEN = "WHITESMOKE_RUNNER_TOKEN"
_EXIT_ERROR = 2


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="WHITESMOKE_RUNNER_URL", required=True, help="Address of the service.")
@click.option(
    "--arch",
    envvar="WHITESMOKE_RUNNER_ARCH",
    type=click.Choice(get_args(Arch)),
    required=True,
    help="Architecture of the GPUs that are offered; cpu offers none.",
)
@click.option(
    "--folder",
    envvar="WHITESMOKE_RUNNER_FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of this runner alone: its secret, its jobs, compiler caches.",
)
@click.option("--name", envvar="WHITESMOKE_RUNNER_NAME", help="Name of the runner; the host's by default.")
@click.option(
    "--token-file",
    envvar="WHITESMOKE_RUNNER_TOKEN_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File with the registration token, which may stand in {_TOKEN} too. Only needed the first time.",
)
@click.option(
    "--slots",
    envvar="WHITESMOKE_RUNNER_SLOTS",
    type=click.IntRange(0, 256),
    help="Jobs without a GPU at a time; 1 by default with --arch cpu, else 0.",
)
@click.option(
    "--expect",
    envvar="WHITESMOKE_RUNNER_EXPECT",
    type=click.IntRange(1, 64),
    help="GPUs that must be visible, or none is used; all that were ever seen here by default.",
)
@click.option(
    "--pass",
    "passed",
    envvar="WHITESMOKE_RUNNER_PASS",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable that jobs see, such as NCCL_NVLS_ENABLE; without a value, this environment's.",
)
@click.option(
    "--readonly",
    envvar="WHITESMOKE_RUNNER_READONLY",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder that jobs may read beside the system's.",
)
@click.option("--no-sandbox", is_flag=True, help="Run without bubblewrap; jobs of forks are not taken then.")
@click.option("--once", is_flag=True, help="End after one job.")
def runner(
    url: str,
    arch: Arch,
    folder: Path,
    name: str | None,
    token_file: Path | None,
    slots: int | None,
    expect: int | None,
    passed: tuple[str, ...],
    readonly: tuple[Path, ...],
    no_sandbox: bool,
    once: bool,
) -> None:
    """Offer this host's GPUs to a whitesmoke service and run its CI jobs.

    SIGTERM drains: running jobs end, others go back. A second SIGTERM ends them.
    """
    # Jobs that run unconfined under this user cannot read the agent's memory and environment then.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    for library in ("httpx2", "httpcore2"):
        logging.getLogger(library).setLevel(logging.WARNING)
    try:
        options = Options(
            url=url.rstrip("/"),
            arch=arch,
            folder=folder,
            name=name or socket.gethostname(),
            token=_read_token(token_file),
            slots=(1 if arch == "cpu" else 0) if slots is None else slots,
            expected=expect,
            passed=_variables(passed),
            readonly=tuple(path.resolve() for path in readonly),
            sandbox=not no_sandbox,
            once=once,
        )
        run_agent(options, signals=(signal.SIGTERM, signal.SIGINT))
    except (RunnerError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _read_token(file: Path | None) -> str:
    """The registration token, which no process started from here will see."""
    token = os.environ.pop(_TOKEN, "")
    if file is None:
        return token.strip()
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        # It was spent and removed: who is registered needs none.
        return ""


def _variables(declared: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for one in declared:
        name, given, value = one.partition("=")
        if not name.isidentifier() or name.startswith("WHITESMOKE_"):
            raise RunnerError(
                f"--pass {name!r} is not passed to jobs", "name a variable such as NCCL_NVLS_ENABLE"
            )
        if given:
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
        else:
            logging.getLogger(__name__).warning("--pass %s: it is not set here", name)
    return variables


def main() -> None:
    """Entry point of `whitesmoke-runner`. Exit status 2 for any error."""
    try:
        sys.exit(runner.main(prog_name="whitesmoke-runner", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(_EXIT_ERROR)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()
