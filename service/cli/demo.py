"""`whitesmoke demo`: what a review looks like, without a model and without a network."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="A new folder for the sample repository and the reports.",
)
def demo(out: Path) -> None:
    """Review a sample pull request in two rounds, from recorded completions."""
    from reviewer.engines.recording import Replay
    from reviewer.ledger import Ledger
    from reviewer.report.summary import render_summary
    from service.cli.progress import show_progress
    from service.demo.play import ROUNDS, play_round, prepare, recording, write_reports
    from service.demo.sample import build, push_fix

    prepare(out)
    sample = build(out / "repository")
    click.echo(f"A sample pull request, #{sample.pull.number} “{sample.pull.title}”, is in {sample.path}.")
    click.echo(
        "Its reviewers' words were written for the sample; tools, detectors, votes and verdicts are real."
    )
    ledger = Ledger()
    for index in ROUNDS:
        if index > 1:
            push_fix(sample.path)
            click.echo(f"\nThe author force-pushes a fix: {sample.head} is rebased and amended.")
        click.echo()
        replay = Replay(recording(index))
        now = datetime.fromisoformat(replay.recorded_at)
        with show_progress() as on_progress:
            result, diff = asyncio.run(play_round(sample, ledger, replay, now, on_progress))
        ledger = result.ledger
        write_reports(out / f"round-{index}", result.report, diff)
        click.echo()
        click.echo(render_summary(result.report).rstrip())
    click.echo("\nWhat each round publishes:")
    for index in ROUNDS:
        click.echo(f"  {out / f'round-{index}'}/  round.md  review.md  inline.md  report.json  report.sarif")
