"""`whitesmoke checklist`: what reviews check."""

from __future__ import annotations

from typing import get_args

import click

from reviewer.errors import ReviewError
from reviewer.model import Language


@click.group()
def checklist() -> None:
    """List and show what reviews check."""


@checklist.command("list")
@click.argument("names", nargs=-1)
@click.option("--language", type=click.Choice(get_args(Language)), default="en", show_default=True)
def list_items(names: tuple[str, ...], language: Language) -> None:
    """List all items, or those of the checklists NAMES."""
    from reviewer.checklist import load_builtin

    for one in load_builtin(names or None):
        detectors = sum(item.detector is not None for item in one.items)
        click.echo(
            f"{one.id}: {one.name.say(language)} ({len(one.items)} items, {detectors} with a detector)"
        )
        for item in one.items:
            click.echo(f"  {item.severity}  {item.id:<42} {item.text.say(language)}")


@checklist.command()
@click.argument("item_id")
@click.option("--language", type=click.Choice(get_args(Language)), default="en", show_default=True)
def show(item_id: str, language: Language) -> None:
    """Show one item: what it asks, where, how severe, and what detects it."""
    import difflib

    from reviewer.checklist import load_builtin

    items = {item.id: item for one in load_builtin() for item in one.items}
    if item_id not in items:
        close = difflib.get_close_matches(item_id, items, n=1)
        hint = f"did you mean {close[0]}?" if close else "see `whitesmoke checklist list`"
        raise ReviewError(f"no checklist item {item_id!r}", hint)
    item = items[item_id]
    click.echo(f"{item.id}\n{item.checklist.say(language)} / {item.section.say(language)}")
    click.echo(f"\n{item.text.say(language)}\n")
    click.echo(f"applies to  {', '.join(item.applies_to)}")
    click.echo(f"severity    at worst {item.severity}")
    click.echo(f"blocking    {'a detector blocks by itself' if item.blocking else 'by votes alone'}")
    if item.detector is not None:
        rules = [rule if isinstance(rule, str) else rule.language for rule in item.detector.rules]
        click.echo(f"detector    {item.detector.kind}: {', '.join(rules)}")
        click.echo(f"            {item.detector.title.say(language)}. {item.detector.why.say(language)}")
        click.echo(f"            {item.detector.fix.say(language)}")
