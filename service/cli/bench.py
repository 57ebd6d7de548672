"""`whitesmoke bench`: figures, printed and never asserted."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def bench() -> None:
    """Measure speed, memory and the quality of clustering."""


@bench.command()
@click.option(
    "--patch", type=click.Path(path_type=Path, exists=True), help="A patch instead of the made one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def review(patch: Path | None, as_json: bool) -> None:
    """Seconds and peak memory of parse, plan, cluster and render on a large patch."""
    from service.bench.review import render, render_json, run, run_synthetic

    figures = run(patch) if patch else run_synthetic()
    click.echo(render_json(figures) if as_json else render(figures))


@bench.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "as_json", is_flag=True, help="Print {judge: {precision, recall, f1}} in percent.")
@click.option("--hold-out", is_flag=True, help="Choose the setting on the other repositories, for each one.")
def votes(file: Path, as_json: bool, hold_out: bool) -> None:
    """Precision and recall of clustering and voting on the findings of public tools in FILE."""
    import service.bench.votes as measured

    result = measured.run(file, hold_out)
    click.echo(measured.render_json(result) if as_json else measured.render(result))


@bench.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pairs(file: Path | None, as_json: bool) -> None:
    """Precision and recall of clustering over labelled pairs of findings; the shipped set by default."""
    import service.bench.pairs as measured

    result = measured.run(file or measured.DATA)
    click.echo(measured.render_json(result) if as_json else measured.render(result))


@bench.command()
@click.option("--sample", type=click.IntRange(1), help="Kill at so many of the points only.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here as JSON.")
def faults(sample: int | None, out: Path | None) -> None:
    """Kill the service at every commit and every call to the forge: nothing lost, nothing twice."""
    import service.bench.faults as measured

    def show(done: int, total: int) -> None:
        click.echo(f"\r{done}/{total}", nl=done == total, err=True)

    result = measured.run(sample, show)
    click.echo(measured.render(result))
    if out is not None:
        out.write_text(measured.render_json(result) + "\n")


@bench.command()
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here as JSON.")
def drain(out: Path | None) -> None:
    """How fast a backlog of deliveries drains, in how much memory, and how soon a review is queued."""
    import service.bench.drain as measured

    figures = measured.run()
    click.echo(measured.render(figures))
    if out is not None:
        out.write_text(measured.render_json(figures) + "\n")


@bench.command()
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here as JSON.")
@click.option("--postgresql", metavar="URL", help="Measure this empty PostgreSQL database beside SQLite.")
def webhook(out: Path | None, postgresql: str | None) -> None:
    """Durable acceptance of deliveries under load, beside an empty Probot handler. Needs wrk and node."""
    import service.bench.webhook as measured

    figures = measured.run(postgresql=postgresql)
    click.echo(measured.render(figures))
    if out is not None:
        out.write_text(measured.render_json(figures) + "\n")


@bench.command()
@click.option(
    "--jobs", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Jobs that come."
)
@click.option("--hosts", type=click.IntRange(1, 1000), default=8, show_default=True, help="Hosts of 8 GPUs.")
@click.option(
    "--fill",
    type=click.FloatRange(0.01, 10),
    default=0.9,
    show_default=True,
    help="What they ask for, as a part of all GPUs.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="How often, with other jobs."
)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here as JSON.")
def lease(jobs: int, hosts: int, fill: float, seeds: int, out: Path | None) -> None:
    """Simulate leases of GPUs beside fixed labels and first come, first served; time a decision."""
    import service.bench.lease as measured

    figures = measured.run(jobs, hosts, fill, seeds)
    click.echo(measured.render(figures))
    if out is not None:
        out.write_text(measured.render_json(figures) + "\n")


@bench.command()
@click.option("--runners", type=click.IntRange(1), default=200, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here as JSON.")
@click.option(
    "--words",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Comments to a service with a real runner.",
)
def ci(runners: int, jobs: int, words: int, out: Path | None) -> None:
    """What deciding costs and how soon a runner has its job, with many of both, over HTTP."""
    import service.bench.ci as measured
    from service.bench import ci_words

    figures = measured.run(runners, jobs)
    click.echo(measured.render(figures))
    if words:
        click.echo("\n" + ci_words.run(words).render())
    if out is not None:
        out.write_text(measured.render_json(figures) + "\n")
