"""The policy in force on a pull request, as far as a worker knows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import sqlalchemy as sa

from reviewer.errors import ConfigError
from reviewer.model import Outcome
from reviewer.policy import POLICY_FILE
from service.events.policy import ServerCaps, resolve
from service.forge.base import PullState
from service.policy import Policy, load_policy
from service.publisher.publication import Posting
from service.store import pulls
from service.worker.station import Station


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """The policy of the base branch. `fault` says what is wrong with the file that stands there, "" where nothing is;
    `policy` is then the last good one. `sha` names the file's content."""

    policy: Policy
    sha: str
    fault: str = ""


def stored_policy(connection: sa.Connection, forge: str, repo: str, number: int | None) -> Policy:
    """The last good policy of a pull request, or the defaults."""
    return known_policy(connection, forge, repo, number) or Policy()


def known_policy(connection: sa.Connection, forge: str, repo: str, number: int | None) -> Policy | None:
    """The last good policy of a pull request; None where none was read yet."""
    pull = pulls.find(connection, forge, repo, number) if number is not None else None
    return pulls.policy(connection, pull) if pull is not None else None


def read_policy(station: Station, state: PullState, last_good: Policy | None) -> FoundPolicy:
    """Reads the file on the base branch. Who is trusted with what, and what may be spent, the default branch says."""
    content = station.forge.read_file(state.repo, state.base_ref, POLICY_FILE) or b""
    sha = hashlib.sha256(content).hexdigest()
    try:
        policy = load_policy(content.decode("utf-8", "replace"), f"{POLICY_FILE} on {state.base_ref}")
    except ConfigError as error:
        return FoundPolicy(last_good or Policy(), sha, str(error))
    default = policy
    trusted = station.forge.read_file(state.repo, "HEAD", POLICY_FILE) or b""
    if trusted != content:
        try:
            default = load_policy(trusted.decode("utf-8", "replace"), f"{POLICY_FILE} on the default branch")
        except ConfigError:
            default = last_good or Policy()
    service = resolve(policy.service, default.service, ServerCaps())
    trusted_ci = {"say_phrase": default.ci.say_phrase, "gate": default.ci.gate, "merge": default.ci.merge}
    ci = policy.ci.model_copy(update=trusted_ci)
    return FoundPolicy(policy.model_copy(update={"service": service, "ci": ci}), sha)


def posting_of(policy: Policy, station: Station, repo: str) -> Posting:
    """What policy and server say about posting."""
    labels = policy.service.labels
    named = {
        Outcome.BLOCKED: labels.blocked,
        Outcome.LGTM: labels.lgtm,
        Outcome.INCONCLUSIVE: labels.inconclusive,
    }
    return Posting(
        blocked_event=policy.service.review_event,
        phrase=policy.ci.gate.phrase if policy.ci.say_phrase else "",
        forbidden=(policy.ci.gate.phrase,),
        labels={outcome: label for outcome, label in named.items() if label is not None},
        blob_url=f"{station.web_url}/{repo}/blob" if station.web_url else "",
        details_url=station.public_url,
    )
