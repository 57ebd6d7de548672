"""`whitesmoke pr`: pull requests of the local forge, from the terminal of the person at the repository."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from service.forge.local import LocalForge
    from service.settings import ServerSettings


@click.group()
def pr() -> None:
    """Open, push to, comment on and read pull requests of the local forge.

    The service must run with WHITESMOKE_FORGE=local and the same environment.
    """


@pr.command("open")
@click.argument("head")
@click.option("--base", default="main", show_default=True, help="The branch to merge into.")
@click.option("--title", default="", help="The title; the head commit's subject if none is given.")
@click.option("--body", default="", help="The description.")
def open_(head: str, base: str, title: str, body: str) -> None:
    """Open a pull request for the branch HEAD."""
    from service.forge.local_events import pull_event

    settings, forge, repo = _open()
    state = forge.as_user(getpass.getuser()).open_pull(repo, head, base, title=title, body=body)
    _send(settings, "pull_request", pull_event("opened", state, state.author))
    click.echo(f"#{state.number} {state.title}")


@pr.command()
@click.argument("number", type=int)
def push(number: int) -> None:
    """Tell the service that the head of NUMBER moved."""
    from service.forge.local_events import pull_event

    settings, forge, repo = _open()
    state = forge.pull(repo, number)
    _send(settings, "pull_request", pull_event("synchronize", state, state.author))
    click.echo(f"#{number} is now at {state.head_sha[:12]}")


@pr.command()
@click.argument("number", type=int)
@click.argument("text")
def comment(number: int, text: str) -> None:
    """Say TEXT on NUMBER; lines that begin with a command run it."""
    from service.forge.local_events import comment_event

    settings, forge, repo = _open()
    comment_id = forge.as_user(getpass.getuser()).create_comment(repo, number, text)
    said = next(one for one in forge.comments(repo, number) if one.id == comment_id)
    _send(settings, "issue_comment", comment_event(forge.pull(repo, number), said))


@pr.command()
@click.argument("number", type=int)
def show(number: int) -> None:
    """Show the conversation of NUMBER."""
    _, forge, repo = _open()
    state = forge.pull(repo, number)
    click.echo(f"#{state.number} {state.title} ({state.state}) {state.head_ref} -> {state.base_ref}")
    for entry in forge.conversation(repo, number):
        place = f" at {entry.place}" if entry.place else ""
        click.echo(
            f"\n--- {entry.author.login}, {entry.kind}{place}, {entry.at:%Y-%m-%d %H:%M}\n{entry.body}"
        )


def _open() -> tuple[ServerSettings, LocalForge, str]:
    from reviewer.errors import ConfigError
    from service.forge.local import LocalForge
    from service.settings import load_settings
    from service.station import local_name, open_forge
    from service.store.database import Database

    settings = load_settings()
    forge = open_forge(settings, Database(settings.database))
    if not isinstance(forge, LocalForge) or settings.local_repository is None:
        raise ConfigError("these commands are for the local forge", "set WHITESMOKE_FORGE=local")
    return settings, forge, local_name(settings.local_repository)


def _send(settings: ServerSettings, event: str, payload: dict[str, object]) -> None:
    from service.webhook_client import deliver

    settings.require_secret()
    deliver(f"http://{settings.host}:{settings.port}", settings.secrets[0], event, payload)
