"""`whitesmoke doctor` and `whitesmoke app`: setting a service up."""

from __future__ import annotations

from collections.abc import Iterator

import click

from reviewer.errors import ConfigError
from service.doctor import PARTS, Finding, diagnose
from service.settings import load_settings

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(epilog=f"Parts: {', '.join(PARTS)}.")
@click.argument("parts", nargs=-1, type=click.Choice(PARTS), metavar="[PARTS]...")
@click.option("--model-call", is_flag=True, help="Also ask each configured model for one word.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(parts: tuple[str, ...], model_call: bool, as_json: bool) -> int:
    """Check the service's set-up, or only PARTS of it, and say what to do.

    Exit status: 0 without problems (there may be warnings), 1 with any.
    """
    import json
    from dataclasses import asdict

    found = []
    for one in _findings(parts or PARTS, model_call):
        found.append(one)
        if not as_json:
            level = click.style(f"{one.level:<8}", fg=_COLOURS[one.level])
            click.echo(f"{level} {one.part:<9} {one.said}{f'; {one.remedy}' if one.remedy else ''}")
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    return 1 if any(one.level == "problem" for one in found) else 0


def _findings(parts: tuple[str, ...], ask_models: bool) -> Iterator[Finding]:
    try:
        settings = load_settings()
    except ConfigError as error:
        yield Finding("settings", "problem", error.problem, error.remedy)
        return
    yield from diagnose(settings, parts, ask_models=ask_models)


@click.group()
def app() -> None:
    """The GitHub App that the service signs in as: what it must be allowed and told."""


_url = click.option("--url", help="The service's address.  [default: $WHITESMOKE_PUBLIC_URL]")
_name = click.option(
    "--name", default="whitesmoke", show_default=True, help="The App's name, unique on GitHub."
)
_resolve = click.option(
    "--resolve-threads",
    is_flag=True,
    help="Ask for contents: write, without which GitHub lets no App resolve threads or merge.",
)
_ci = click.option("--ci", is_flag=True, help="Ask for actions: write, to start workflows again.")


@app.command()
@_url
@_name
@_resolve
@_ci
def manifest(url: str | None, name: str, resolve_threads: bool, ci: bool) -> None:
    """Print the App's manifest as JSON."""
    import json

    from service.manifest import make_manifest

    made = make_manifest(name, url or load_settings().public_url, resolve_threads=resolve_threads, ci=ci)
    click.echo(json.dumps(made, indent=2))


@app.command()
@click.option("--org", default="", help="Make it an App of this organisation, not your own.")
@_url
@_name
@_resolve
@_ci
def link(org: str, url: str | None, name: str, resolve_threads: bool, ci: bool) -> None:
    """Print the address of GitHub's form for a new App, filled in like the manifest."""
    from service.manifest import make_link, make_manifest

    settings = load_settings()
    made = make_manifest(name, url or settings.public_url, resolve_threads=resolve_threads, ci=ci)
    click.echo(make_link(settings.web_url, org, made))
