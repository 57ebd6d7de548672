"""`whitesmoke review`: one round on a local change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import click

from reviewer.errors import ReviewError
from reviewer.model import Language, Outcome, RoundReport
from reviewer.policy import ReviewPolicy
from service.engines import EngineName

EXIT_STATUS = {Outcome.LGTM: 0, Outcome.BLOCKED: 1, Outcome.INCONCLUSIVE: 3}
FORMATS = ("md", "json", "sarif", "summary")


@click.command()
@click.option(
    "--repo", type=click.Path(path_type=Path), default=Path(), help="A git repository.  [default: .]"
)
@click.option("--base", default="main", show_default=True, help="What the change is to be merged into.")
@click.option("--head", default="HEAD", show_default=True, help="The tip of the change.")
@click.option("--patch", type=click.Path(path_type=Path), help="Review this patch of BASE instead of HEAD.")
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="auto",
    help="Who reviews: a model endpoint, a recording, or the detectors alone.  "
    "[default: openai where $OPENAI_API_KEY or $OPENAI_BASE_URL is set, else none]",
)
@click.option(
    "--model", "models", multiple=True, help="A model's name; repeat it to spread reps over models."
)
@click.option(
    "--recording",
    type=click.Path(path_type=Path),
    help="A file of completions: read by replay, written by openai.",
)
@click.option("--reps", type=click.IntRange(1, 32), help="Independent passes.  [default: the policy's, 5]")
@click.option("--language", type=click.Choice(get_args(Language)), help="Language of the report.")
@click.option("--full", is_flag=True, help="Read everything again, also a head already reviewed.")
@click.option("--config", type=click.Path(path_type=Path), help="A policy file instead of the base branch's.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="md", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Write the report here instead of printing it.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of ledgers.  [default: $WHITESMOKE_DATA]"
)
def review(
    repo: Path,
    base: str,
    head: str,
    patch: Path | None,
    engine: EngineName,
    models: tuple[str, ...],
    recording: Path | None,
    reps: int | None,
    language: Language | None,
    full: bool,
    config: Path | None,
    form: str,
    out: Path | None,
    data: Path | None,
) -> int:
    """Review a change and print the round's report.

    A new head of the same branch is the next round: what was found before is asked about again. The same head
    prints its report again. Exit status: 0 LGTM, 1 BLOCKED, 3 INCONCLUSIVE, 2 for an error.
    """
    from service.cli.progress import show_progress
    from service.engines import choose
    from service.ledger_file import data_folder
    from service.local import base_policy, read_policy
    from service.review import review_local

    policy = read_policy(config) if config else base_policy(repo, base)
    chosen = choose(engine)
    if chosen == "none":
        click.echo(
            "no model reviews this change, only detectors; "
            "set OPENAI_API_KEY (and OPENAI_BASE_URL for another endpoint) and name a model with --model",
            err=True,
        )
    with show_progress() as on_progress:
        result = asyncio.run(
            review_local(
                repo, base, head, patch, adjust(policy.review, reps, language),
                engine=chosen, models=models, recording=recording, full=full,
                data=data_folder(data), on_progress=on_progress,
            )
        )  # fmt: skip
    if result.reprinted:
        click.echo(
            f"this head was reviewed in round {result.report.round_index}; --full reviews it again", err=True
        )
    write(renderer(form)(result.report), out)
    return EXIT_STATUS[result.report.verdict.outcome]


def adjust(policy: ReviewPolicy, reps: int | None, language: Language | None) -> ReviewPolicy:
    """The policy with the command line's wishes. Fewer reps lower the quorum to their majority at most."""
    wishes: dict[str, object] = {}
    if reps is not None:
        wishes["reps"] = reps
        wishes["quorum"] = min(policy.quorum, reps // 2 + 1)
        wishes["agentic_reps"] = min(policy.agentic_reps, reps)
    if language is not None:
        wishes["language"] = language
    return ReviewPolicy.model_validate({**policy.model_dump(), **wishes})


def renderer(form: str) -> Callable[[RoundReport], str]:
    """How a report is written in one of `FORMATS`."""
    if form == "json":
        from reviewer.report.serial import to_json

        return to_json
    if form == "sarif":
        from reviewer.report.sarif import to_sarif

        return to_sarif
    if form == "summary":
        from reviewer.report.summary import render_summary

        return render_summary
    from reviewer.report.round import render_round

    return render_round


def write(text: str, out: Path | None) -> None:
    """Prints a text or writes it to a file."""
    if out is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReviewError(f"cannot write {out}: {error.strerror}", "name another file with --out") from error
