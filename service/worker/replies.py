"""What the service says of itself on a pull request, unasked: once each."""

from __future__ import annotations

from datetime import date

from reviewer.policy import POLICY_FILE
from service.events.replies import Replies
from service.forge.base import PullState
from service.policy import Policy
from service.publisher.effects import Reply
from service.store.budgets import Spent
from service.worker.policy import FoundPolicy


def policy_fault(state: PullState, policy: Policy, found: FoundPolicy) -> Reply:
    """The policy file is invalid: said once for each content of the file."""
    body = _replies(policy).policy_invalid(POLICY_FILE, state.base_ref, found.fault)
    return Reply(repo=state.repo, number=state.number, to=f"policy:{found.sha[:16]}", body=body)


def budget_spent(state: PullState, policy: Policy, spent: Spent, day: date) -> Reply:
    """The day's budget is used up: said once a day."""
    limits, replies = policy.service.budget, _replies(policy)
    if limits.tokens_per_day is not None and spent.tokens >= limits.tokens_per_day:
        body = replies.over_tokens(spent.tokens, limits.tokens_per_day)
    else:
        body = replies.over_cost(spent.cost_usd, limits.cost_usd_per_day or 0.0)
    return Reply(repo=state.repo, number=state.number, to=f"budget:{day.isoformat()}", body=body)


def too_large(state: PullState, policy: Policy, files: int, size: int) -> Reply:
    """The pull request is over the limits: said once for each head."""
    limits, replies = policy.service.size, _replies(policy)
    if files > limits.files:
        body = replies.too_many_files(files, limits.files)
    else:
        body = replies.patch_too_large(size, limits.patch_bytes)
    return Reply(repo=state.repo, number=state.number, to=f"size:{state.head_sha[:12]}", body=body)


def _replies(policy: Policy) -> Replies:
    return Replies(policy.review.language, (policy.ci.gate.phrase,))
