from __future__ import annotations

import pytest

from reviewer import yamlfile
from reviewer.errors import ConfigError
from service.events import ServerCaps, ServicePolicy, resolve
from service.events.policy import Budget, Rights, SizeLimits, Triggers, VerdictLabels


def load(text: str) -> ServicePolicy:
    return yamlfile.load(text, ServicePolicy, ".whitesmoke.yml")


def test_a_whole_policy_is_read() -> None:
    policy = load("""
triggers: {drafts: true, bots: false, automatic: false, labels: [review me], skip_labels: [wip], debounce_seconds: 5}
permissions: {review: read, ci_run: maintain, author_may_review: false}
size: {files: 10, patch_bytes: 1000}
budget: {tokens_per_day: null, cost_usd_per_day: 2.5}
review_event: REQUEST_CHANGES
labels: {blocked: blocked, lgtm: lgtm}
""")
    assert policy == ServicePolicy(
        triggers=Triggers(
            drafts=True,
            bots=False,
            automatic=False,
            labels=("review me",),
            skip_labels=("wip",),
            debounce_seconds=5,
        ),
        permissions=Rights(review="read", ci_run="maintain", author_may_review=False),
        size=SizeLimits(files=10, patch_bytes=1000),
        budget=Budget(tokens_per_day=None, cost_usd_per_day=2.5),
        review_event="REQUEST_CHANGES",
        labels=VerdictLabels(blocked="blocked", lgtm="lgtm"),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "triggers:\n  draft: true",
            ".whitesmoke.yml:2: triggers: expected one of the keys .* did you mean 'drafts'",
        ),
        (
            "permissions:\n  dismiss: everyone",
            ":2: permissions.dismiss: expected 'read', .* found \"everyone\"",
        ),
        ("triggers:\n  debounce_seconds: -1", ":2: triggers.debounce_seconds: "),
        ("budget:\n  tokens_per_day: 0", ":2: budget.tokens_per_day: "),
        ("review_event: APPROVE", ":1: review_event: expected 'COMMENT' or 'REQUEST_CHANGES'"),
        ("labels: {blocked: x, lgtm: X}", "one label cannot say two verdicts; name a label for each"),
        (
            "labels: {blocked: x}\ntriggers: {labels: [X]}",
            "the label 'X' says a verdict and is a trigger too",
        ),
        (
            "labels: {lgtm: x}\ntriggers: {skip_labels: [x]}",
            "the label 'x' says a verdict and is a trigger too",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(text)


def test_trust_and_money_are_the_default_branchs_the_rest_the_base_branchs() -> None:
    default = ServicePolicy(
        permissions=Rights(review="write"),
        budget=Budget(tokens_per_day=100),
        review_event="REQUEST_CHANGES",
    )
    base = ServicePolicy(
        triggers=Triggers(drafts=True),
        permissions=Rights(review="read"),
        budget=Budget(tokens_per_day=900),
        size=SizeLimits(files=3),
        labels=VerdictLabels(lgtm="ok"),
    )
    found = resolve(base, default, ServerCaps())
    assert (found.permissions.review, found.budget.tokens_per_day) == ("write", 100)
    assert (found.triggers, found.labels, found.review_event) == (base.triggers, base.labels, "COMMENT")
    assert found.size == SizeLimits(files=3)


def test_no_policy_goes_beyond_the_server() -> None:
    caps = ServerCaps(
        budget=Budget(tokens_per_day=50, cost_usd_per_day=1), size=SizeLimits(files=2, patch_bytes=10)
    )
    greedy = ServicePolicy(
        budget=Budget(tokens_per_day=None, cost_usd_per_day=9), size=SizeLimits(files=99, patch_bytes=9)
    )
    found = resolve(greedy, greedy, caps)
    assert found.budget == caps.budget
    assert found.size == SizeLimits(files=2, patch_bytes=9)
    free = ServerCaps(budget=Budget(tokens_per_day=None))
    assert resolve(greedy, greedy, free).budget == greedy.budget
