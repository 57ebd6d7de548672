"""`whitesmoke demo`: what a review looks like, without a model and without a network."""

from __future__ import annotations

import getpass
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
    """Start the service, open a sample pull request, watch it being reviewed in two rounds and tested by CI."""
    from ci_dispatch.policy import DEFAULT_PHRASE
    from reviewer.report import render_summary
    from service.demo.ci import running_runner, say, wait_for_answer, wait_for_jobs
    from service.demo.play import REPO, ROUNDS, open_pull, prepare, running_service
    from service.demo.sample import build, push_fix

    phrase, me = DEFAULT_PHRASE, getpass.getuser()
    prepare(out)
    sample = build((out / "repository").absolute())
    click.echo(f"A sample repository is in {out / 'repository'}.")
    click.echo(
        "Its reviewers' words were written for it; service, tools, detectors, votes and verdicts are real."
    )
    with running_service(out, sample.path) as stage:
        click.echo(f"The service listens on {stage.url}; its forge is the repository itself.")
        number = open_pull(stage, sample)
        for index in ROUNDS:
            if index == 1:
                click.echo(f"\n{sample.pull.author} opens pull request #{number} “{sample.pull.title}”.")
                stage.happen("opened", number)
            else:
                push_fix(sample.path)
                click.echo(
                    f"\n{sample.pull.author} force-pushes a fix: {sample.head} is rebased and amended."
                )
                stage.happen("synchronize", number)
            report = stage.wait_for_round(number, index)
            click.echo(f"\n{render_summary(report)}")
            stage.write_reports(out / f"round-{index}", number, report)
            if index == 1:
                asked = say(stage, number, me, phrase)
                click.echo(f"\n{me} says “{phrase}”. {wait_for_answer(stage, number, asked)}")
        click.echo(f"\nA runner offers this machine for jobs without a GPU; {me} says “{phrase}”.\n")
        with running_runner(stage, out):
            say(stage, number, me, phrase)
            click.echo(wait_for_jobs(stage, number, out / "ci"))
        kinds = [one.kind for one in stage.forge.conversation(REPO, number)]
        click.echo(
            f"\nOn #{number} stand {kinds.count('comment')} comments, {kinds.count('review')} reviews, "
            f"{kinds.count('inline')} inline comments and a check on each head."
        )
    click.echo("What each round left there:")
    for index in ROUNDS:
        click.echo(f"  {out / f'round-{index}'}/  round.md  review.md  inline.md  report.json  report.sarif")
    click.echo(f"  {out / 'ci'}/  report.md")
