"""The command `whitesmoke`: reads arguments, runs one subcommand, turns errors into one line.

Subcommands are imported when they are called: `whitesmoke --help` must not wait for numpy or a model's SDK.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from reviewer.errors import ReviewError

_COMMANDS = {
    "review": ("service.cli.review", "Review a change in the repository at hand."),
    "dismiss": ("service.cli.findings", "Set a finding aside, with a reason."),
    "reopen": ("service.cli.findings", "Take a dismissal back."),
    "serve": ("service.cli.serve", "Run the whole service in one command."),
    "valkey": ("service.cli.serve", ""),
    "web": ("service.cli.serve", "Run its web process alone."),
    "worker": ("service.cli.serve", "Run its workers and keeper alone."),
    "ci": ("service.cli.ci", "CI jobs without a service: run them here, see their report."),
    "runner": ("service.cli.runner", "Offer this host's GPUs to a service and run its CI jobs."),
    "runners": ("service.cli.runners", "The hosts that run CI jobs: list, drain, quarantine a GPU."),
    "runner-token": ("service.cli.runners", "Make a token with which a host registers."),
    "replay": ("service.cli.serve", "Process a stored delivery again."),
    "doctor": ("service.cli.doctor", "Check the service's set-up and say what to do."),
    "backup": ("service.cli.backup", "Copy the service's database while it runs."),
    "app": ("service.cli.doctor", "The GitHub App that the service signs in as."),
    "pr": ("service.cli.pull", "Pull requests of the local forge: open, push, comment, show."),
    "config": ("service.cli.config", "Check and show the policy file, print its schema."),
    "checklist": ("service.cli.checklist", "List and show what reviews check."),
    "bench": ("service.cli.bench", "Measure speed, memory and the quality of clustering."),
    "demo": ("service.cli.demo", "Review a sample pull request in two rounds, with no model and no network."),
}
EXIT_ERROR = 2


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name.replace("-", "_")
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items() if about])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="whitesmoke")
def cli() -> None:
    """Reviews pull requests in rounds of independent passes that vote."""


def main() -> None:
    """Entry point. Exit status 2 for any error; a subcommand's own otherwise."""
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_ERROR)
    except ReviewError as error:
        _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("whitesmoke: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader has gone; Python must not try to flush into the closed pipe when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_ERROR)
    except Exception as error:
        if os.environ.get("WHITESMOKE_DEBUG"):
            raise
        _fail(
            f"unexpected {type(error).__name__}: {error}; this is a fault of whitesmoke: "
            "run again with WHITESMOKE_DEBUG=1 and report what it prints"
        )


def _fail(message: str) -> None:
    click.echo(f"whitesmoke: {message}", err=True)
    sys.exit(EXIT_ERROR)


if __name__ == "__main__":
    main()
