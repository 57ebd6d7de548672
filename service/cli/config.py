"""`whitesmoke config`: the policy file and the published schemas."""

from __future__ import annotations

from pathlib import Path

import click

from reviewer.policy import POLICY_FILE


@click.group()
def config() -> None:
    """Check and show the policy file, print its schema."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path(POLICY_FILE))
def check(file: Path) -> None:
    """Check a policy file; errors name the line and what was expected."""
    from service.local import read_policy

    read_policy(file)
    click.echo(f"{file} is valid")


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--repo", type=click.Path(path_type=Path), default=Path(), help="A git repository.  [default: .]"
)
@click.option("--base", default="main", show_default=True, help="The branch whose policy holds.")
def show(file: Path | None, repo: Path, base: str) -> None:
    """Show the policy in force, defaults included: FILE's, or that of the base branch."""
    import yaml

    from service.local import base_policy, read_policy

    policy = read_policy(file) if file else base_policy(repo, base)
    click.echo(yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False, allow_unicode=True), nl=False)


@config.command()
@click.option("--of", type=click.Choice(["policy", "report"]), default="policy", show_default=True)
def schema(of: str) -> None:
    """Print the JSON schema of the policy file or of the JSON report."""
    from reviewer.report.serial import json_schema
    from service.policy import policy_schema

    click.echo(policy_schema() if of == "policy" else json_schema(), nl=False)
