"""`whitesmoke ci`: CI jobs without a service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ci_dispatch.model import Job
    from ci_dispatch.report_parts import JobView
    from ci_dispatch.runner.base import Workplace
    from reviewer.checkout.snapshot import GitCheckout

EXIT_FAILED = 1
EXIT_NOT_TESTED = 2


@click.group("ci")
def ci() -> None:
    """CI jobs without a service: run them here, see their report."""


@ci.command("run")
@click.option(
    "--local",
    is_flag=True,
    help="Run on this host, the only way here: a service is told on the pull request.",
)
@click.option("--job", "names", multiple=True, help="Run this job, whatever changed; repeat it for more.")
@click.option("--all", "everything", is_flag=True, help="Run every job, whatever changed.")
@click.option(
    "--repo", type=click.Path(path_type=Path), default=Path(), help="A git repository.  [default: .]"
)
@click.option("--base", default="main", show_default=True, help="What the change is to be merged into.")
@click.option(
    "--head", default="HEAD", show_default=True, help="The tip of the change; only commits are run."
)
@click.option("--config", type=click.Path(path_type=Path), help="A policy file instead of the base branch's.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Keep logs, artifacts and results below this folder."
)
@click.option("--no-sandbox", is_flag=True, help="Do not confine the jobs.")
@click.option("--log", "show_log", is_flag=True, help="Show what the jobs print while they run.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of work and caches.  [default: $WHITESMOKE_DATA]"
)
def run(
    local: bool,
    names: tuple[str, ...],
    everything: bool,
    repo: Path,
    base: str,
    head: str,
    config: Path | None,
    out: Path | None,
    no_sandbox: bool,
    show_log: bool,
    data: Path | None,
) -> int:
    """Run the jobs of .whitesmoke.yml that the change concerns, and print their report.

    The same executor as a runner's, judged the same way. Jobs that need GPUs run where this host has them. Exit status: 0 all
    passed, 1 a job failed, 2 nothing failed but something could not be tested.
    """
    from ci_dispatch.report import terminal
    from reviewer.checkout.snapshot import open_range
    from reviewer.errors import ReviewError
    from service import local_ci
    from service.ledger_file import data_folder
    from service.local import base_policy, read_policy
    from service.writing import make_writing

    if not local:
        raise ReviewError(
            "only --local runs jobs from here",
            "add it, or comment /ci run on the pull request for a service's runners",
        )
    policy = read_policy(config) if config else base_policy(repo, base)
    if not policy.ci.jobs:
        where = str(config) if config else f".whitesmoke.yml on {base}"
        raise ReviewError(
            f"{where} declares no CI jobs", "declare some under ci.jobs, or name a file with --config"
        )
    writing = make_writing(policy.review.language, ())
    place = local_ci.workplace(data_folder(data) / "ci", confined=not no_sandbox)
    views: list[JobView] = []
    with open_range(repo, base, head) as checkout:
        change = local_ci.change_of(checkout, repo)
        for job, reason in local_ci.select(policy.ci.jobs, change, names, everything):
            kept = out / job.spec.name if out is not None else None
            view = _view(job, reason, checkout, place, kept, show_log)
            views.append(view)
            click.echo(terminal(view, writing))
    return exit_status(views, asked=bool(names))


def exit_status(views: Sequence[JobView], asked: bool) -> int:
    """0: all passed, or nothing had to run. 1: the change failed. 2: something was not tested.

    A job that this host has no GPUs for was not tested where it was `asked` for, or where nothing else ran either.
    """
    outcomes = [view.outcome for view in views if view.outcome is not None]
    unable = [view for view in views if view.state == "waiting"]
    if any(not (outcome == "passed" or outcome.is_retried or outcome.is_quiet) for outcome in outcomes):
        return EXIT_FAILED
    if any(outcome != "passed" for outcome in outcomes) or (unable and (asked or not outcomes)):
        return EXIT_NOT_TESTED
    return 0


def _view(
    job: Job, reason: str, checkout: GitCheckout, place: Workplace, kept: Path | None, show_log: bool
) -> JobView:
    from ci_dispatch.report_parts import JobView
    from service import local_ci

    if reason:
        return JobView(job, "skipped")
    gpus, lacking = local_ci.free_gpus(job.spec)
    if lacking:
        return JobView(job, "waiting", reason=lacking)
    name = job.spec.name
    watcher = local_ci.FolderWatcher(
        kept,
        lambda step: click.echo(f"{name}: {step}", err=True),
        _show if show_log else None,
    )
    result = local_ci.run_job(job, gpus, checkout, watcher, place)
    if kept is not None:
        (kept / "result.json").write_text(result.model_dump_json(indent=2) + "\n")
    return JobView(job, "done", result)


def _show(chunk: bytes) -> None:
    click.echo(chunk, nl=False, err=True)
