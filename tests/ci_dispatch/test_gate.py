"""Every sentence of the design's gate, as a row: what was seen, what the answer is, and why."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci_dispatch.gate import (
    Case,
    CommentSeen,
    Decision,
    GoSeen,
    Ground,
    PushSeen,
    ReviewSeen,
    ReviewState,
    StoredVerdict,
    decide,
    people,
    pushed_at,
)
from ci_dispatch.policy import GatePolicy
from ci_dispatch.reasons import SENTENCES, Why, sentence

A, B = "a" * 40, "b" * 40
ME = "whitesmoke[bot]"
PHRASE = "lgtm ready to ci"


def at(minutes: float) -> datetime:
    return datetime(2026, 12, 1, 10, tzinfo=UTC) + timedelta(minutes=minutes)


def push(sha: str, minutes: float, source: str = "receipt") -> PushSeen:
    return PushSeen(sha, at(minutes), source)  # type: ignore[arg-type]


def review(
    login: str, state: ReviewState, minutes: float = 5, *, body: str = "", commit: str = A, **more: object
) -> ReviewSeen:
    values = {
        "id": int(minutes * 10) + 1,
        "body": body,
        "commit": commit,
        "submitted_at": at(minutes),
        **more,
    }
    return ReviewSeen(login=login, state=state, **values)  # type: ignore[arg-type]


def comment(login: str, body: str = PHRASE, minutes: float = 5, **more: object) -> CommentSeen:
    values = {"id": int(minutes * 10) + 2, "body": body, "created_at": at(minutes), **more}
    return CommentSeen(login=login, **values)  # type: ignore[arg-type]


def case(*, head: str = A, pushes: tuple[PushSeen, ...] = (push(A, 0),), **more: object) -> Case:
    values = {
        "author": "ada",
        "me": ME,
        "is_fork": False,
        "writers": frozenset({"bob", "carol", "ada", "ci[bot]", ME}),
    }
    return Case(head_sha=head, pushes=pushes, **{**values, **more})  # type: ignore[arg-type]


@dataclass
class Row:
    """`why` is the answer's reason; `login` and `ground` say on whose word, where it qualifies."""

    name: str
    case: Case
    why: Why
    login: str = ""
    ground: Ground | None = None
    policy: GatePolicy = field(default_factory=GatePolicy)
    notes: tuple[Why, ...] = ()


QUALIFIES = [
    Row(
        "a trusted reviewer's latest state for the head is APPROVED",
        case(reviews=(review("bob", "APPROVED"),)),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "an approval counts whenever the push was, as it is pinned",
        case(reviews=(review("bob", "APPROVED"),), pushes=()),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "the phrase in a review that is pinned to the head",
        case(reviews=(review("bob", "COMMENTED", body=f"Nice.\n\n{PHRASE}"),), pushes=()),
        Why.SAID_IN_REVIEW,
        "bob",
        Ground.REVIEW,
    ),
    Row(
        "the phrase in a comment after the receipt of the push",
        case(comments=(comment("bob"),)),
        Why.SAID_IN_COMMENT,
        "bob",
        Ground.COMMENT,
    ),
    Row(
        "the phrase in a comment after the check suite's creation, where no delivery came",
        case(comments=(comment("bob", minutes=1),), pushes=(push(A, 0, "check_suite"),)),
        Why.SAID_IN_COMMENT,
        "bob",
        Ground.COMMENT,
    ),
    Row(
        "in any case and spacing",
        case(comments=(comment("bob", "thanks\r\n\r\nLGTM  Ready to CI \r\n"),)),
        Why.SAID_IN_COMMENT,
        "bob",
        Ground.COMMENT,
    ),
    Row(
        "the policy's own phrase",
        case(comments=(comment("bob", "ship it"),)),
        Why.SAID_IN_COMMENT,
        "bob",
        Ground.COMMENT,
        GatePolicy(phrase="ship it"),
    ),
    Row(
        "somebody whom the policy names, without write permission",
        case(comments=(comment("Erin"),)),
        Why.SAID_IN_COMMENT,
        "Erin",
        Ground.COMMENT,
        GatePolicy(trusted=("erin",)),
    ),
    Row(
        "a bot that the policy names",
        case(reviews=(review("ci[bot]", "APPROVED", is_bot=True),)),
        Why.APPROVED,
        "ci[bot]",
        Ground.APPROVAL,
        GatePolicy(trusted=("ci[bot]",)),
    ),
    Row(
        "our own stored verdict, where the policy names us",
        case(verdict=StoredVerdict(A, "LGTM")),
        Why.OWN_VERDICT,
        ME,
        Ground.VERDICT,
        GatePolicy(trusted=(ME,)),
    ),
    Row(
        "approval followed by a plain comment of the same reviewer",
        case(reviews=(review("bob", "APPROVED", 5), review("bob", "COMMENTED", 6, body="one more thing"))),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "changes requested, then lifted by the same reviewer's approval",
        case(reviews=(review("bob", "CHANGES_REQUESTED", 5), review("bob", "APPROVED", 6))),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "changes requested, then dismissed",
        case(reviews=(review("carol", "DISMISSED", 4), review("bob", "APPROVED", 5))),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "changes requested on A, lifted on B, whose approval a rule of the forge dismissed at the next push",
        case(
            reviews=(
                review("carol", "CHANGES_REQUESTED", 1, commit=B),
                review("carol", "DISMISSED", 2, commit=B),
                review("bob", "APPROVED", 5),
            )
        ),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "changes requested by someone without permission",
        case(reviews=(review("mallory", "CHANGES_REQUESTED", 4), review("bob", "APPROVED", 5))),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "/ci run of someone with the right",
        case(goes=(GoSeen("bob", at(5), allowed=True, comment_id=7),)),
        Why.COMMANDED,
        "bob",
        Ground.COMMAND,
    ),
    Row(
        "a button on a check of the head",
        case(goes=(GoSeen("bob", at(5), allowed=True, commit=A),), pushes=()),
        Why.PRESSED,
        "bob",
        Ground.BUTTON,
    ),
    Row(
        "BLOCKED, where the policy only warns",
        case(reviews=(review("bob", "APPROVED"),), verdict=StoredVerdict(A, "BLOCKED")),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
        GatePolicy(blocked="warn"),
        notes=(Why.BLOCKED_WARNING,),
    ),
    Row(
        "BLOCKED of another commit",
        case(reviews=(review("bob", "APPROVED"),), verdict=StoredVerdict(B, "BLOCKED")),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "INCONCLUSIVE stops nothing",
        case(reviews=(review("bob", "APPROVED"),), verdict=StoredVerdict(A, "INCONCLUSIVE")),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "a fork's head that a maintainer approved",
        case(is_fork=True, reviews=(review("bob", "APPROVED"),)),
        Why.APPROVED,
        "bob",
        Ground.APPROVAL,
    ),
    Row(
        "a fork's head for which a maintainer commanded /ci run",
        case(is_fork=True, goes=(GoSeen("bob", at(5), allowed=True, comment_id=7),)),
        Why.COMMANDED,
        "bob",
        Ground.COMMAND,
    ),
    Row(
        "the words next to an approval that policy alone does not take",
        case(reviews=(review("bob", "APPROVED", body=PHRASE),)),
        Why.SAID_IN_REVIEW,
        "bob",
        Ground.REVIEW,
        GatePolicy(approvals=False),
    ),
    Row(
        "back at A after B, as the newest receipt says",
        case(pushes=(push(A, 0), push(B, 1), push(A, 2)), comments=(comment("bob", minutes=3),)),
        Why.SAID_IN_COMMENT,
        "bob",
        Ground.COMMENT,
    ),
]

DOES_NOT = [
    Row("nothing was said", case(), Why.NOBODY),
    Row("nothing was said, of a fork", case(is_fork=True), Why.NOBODY_FOR_FORK),
    Row("negated", case(comments=(comment("bob", "NOT lgtm ready to ci yet"),)), Why.NOT_ALONE),
    Row(
        "quoted", case(comments=(comment("bob", "> lgtm ready to ci\n\nis what carol wants"),)), Why.NOT_ALONE
    ),
    Row("a code block", case(comments=(comment("bob", "```\nlgtm ready to ci\n```"),)), Why.NOT_ALONE),
    Row("code in a line", case(reviews=(review("bob", "COMMENTED", body=f"`{PHRASE}`"),)), Why.NOT_ALONE),
    Row("over two lines", case(comments=(comment("bob", "lgtm ready\nto ci"),)), Why.NOT_ALONE),
    Row("an old comment, edited", case(comments=(comment("bob", minutes=-60, edited=True),)), Why.EDITED),
    Row(
        "somebody else's comment, edited by a maintainer",
        case(author="bob", comments=(comment("carol", edited=True),)),
        Why.EDITED,
    ),
    Row(
        "somebody else's review, edited by a maintainer",
        case(author="bob", reviews=(review("carol", "COMMENTED", body=PHRASE, edited=True),)),
        Why.EDITED,
    ),
    Row(
        "changes requested on an older commit stay in force across pushes",
        case(reviews=(review("carol", "CHANGES_REQUESTED", -9, commit=B), review("bob", "APPROVED"))),
        Why.CHANGES_REQUESTED,
    ),
    Row(
        "changes requested, then a plain comment",
        case(
            reviews=(
                review("carol", "CHANGES_REQUESTED", 4),
                review("carol", "COMMENTED", 5),
                review("bob", "APPROVED", 6),
            )
        ),
        Why.CHANGES_REQUESTED,
    ),
    Row(
        "changes requested after one's own approval",
        case(reviews=(review("bob", "APPROVED", 5), review("bob", "CHANGES_REQUESTED", 6))),
        Why.CHANGES_REQUESTED,
    ),
    Row(
        "changes requested with the phrase in it",
        case(reviews=(review("bob", "CHANGES_REQUESTED", body=PHRASE),)),
        Why.CHANGES_REQUESTED,
    ),
    Row(
        "changes requested by somebody whom the policy names",
        case(reviews=(review("erin", "CHANGES_REQUESTED", 4), review("bob", "APPROVED", 5))),
        Why.CHANGES_REQUESTED,
        policy=GatePolicy(trusted=("erin",)),
    ),
    Row(
        "changes requested, against /ci run",
        case(
            reviews=(review("carol", "CHANGES_REQUESTED"),),
            goes=(GoSeen("bob", at(5), allowed=True, comment_id=7),),
        ),
        Why.CHANGES_REQUESTED,
    ),
    Row(
        "an association with the repository, but no permission now",
        case(comments=(comment("bob"),), writers=frozenset()),
        Why.NO_PERMISSION,
    ),
    Row("a stranger approves", case(reviews=(review("mallory", "APPROVED"),)), Why.NO_PERMISSION),
    Row("the author approves", case(reviews=(review("Ada", "APPROVED"),)), Why.AUTHOR),
    Row("the author says it", case(comments=(comment("ada"),)), Why.AUTHOR),
    Row(
        "the author, named in the policy",
        case(comments=(comment("ada"),)),
        Why.AUTHOR,
        policy=GatePolicy(trusted=("ada",)),
    ),
    Row(
        "the author commands /ci run",
        case(goes=(GoSeen("ada", at(5), allowed=True, comment_id=7),)),
        Why.AUTHOR,
    ),
    Row(
        "a bot with write permission that nobody named",
        case(reviews=(review("ci[bot]", "APPROVED"),)),
        Why.BOT,
    ),
    Row("a bot by its type alone", case(comments=(comment("bob", is_bot=True),)), Why.BOT),
    Row("our own bot's text", case(comments=(comment(ME),)), Why.OURSELVES, policy=GatePolicy(trusted=(ME,))),
    Row(
        "our own bot's approval",
        case(reviews=(review(ME, "APPROVED", body=PHRASE),)),
        Why.OURSELVES,
        policy=GatePolicy(trusted=(ME,)),
        notes=(Why.OURSELVES,),
    ),
    Row("our verdict, without the policy's word", case(verdict=StoredVerdict(A, "LGTM")), Why.NOBODY),
    Row(
        "our verdict of another commit",
        case(verdict=StoredVerdict(B, "LGTM")),
        Why.NOBODY,
        policy=GatePolicy(trusted=(ME,)),
    ),
    Row(
        "our verdict of our own pull request",
        case(author=ME, verdict=StoredVerdict(A, "LGTM")),
        Why.AUTHOR,
        policy=GatePolicy(trusted=(ME,)),
    ),
    Row(
        "BLOCKED stops",
        case(reviews=(review("bob", "APPROVED"),), verdict=StoredVerdict(A, "BLOCKED")),
        Why.BLOCKED,
    ),
    Row(
        "approved A, then B was pushed before dispatch",
        case(head=B, pushes=(push(A, 0), push(B, 6)), reviews=(review("bob", "APPROVED", 5),)),
        Why.STALE_REVIEW,
    ),
    Row(
        "trust ends at a push: the phrase said of A",
        case(head=B, pushes=(push(A, 0), push(B, 6)), comments=(comment("bob", minutes=5),)),
        Why.BEFORE_PUSH,
    ),
    Row(
        "trust ends at a push: the phrase in a review of A",
        case(head=B, pushes=(push(A, 0), push(B, 6)), reviews=(review("bob", "COMMENTED", 5, body=PHRASE),)),
        Why.STALE_REVIEW,
    ),
    Row(
        "/ci run, delivered after a later push",
        case(
            head=B,
            pushes=(push(A, 0), push(B, 6)),
            goes=(GoSeen("bob", at(5), allowed=True, comment_id=7),),
        ),
        Why.BEFORE_PUSH,
    ),
    Row(
        "a button on a check of the older head",
        case(head=B, pushes=(push(B, 6),), goes=(GoSeen("bob", at(7), allowed=True, commit=A),)),
        Why.STALE_BUTTON,
    ),
    Row(
        "/ci run without the right",
        case(goes=(GoSeen("bob", at(5), allowed=False, comment_id=7),)),
        Why.NOT_ALLOWED,
    ),
    Row(
        "/ci run, edited in",
        case(goes=(GoSeen("bob", at(5), allowed=True, comment_id=7, edited=True),)),
        Why.EDITED,
    ),
    Row(
        # The commit says that it is an hour old; what was said since then was said of something else.
        "a backdated commit: only the push's time counts",
        case(comments=(comment("bob", minutes=-30),)),
        Why.BEFORE_PUSH,
    ),
    Row("in the same second as the push", case(comments=(comment("bob", minutes=0),)), Why.BEFORE_PUSH),
    Row("nobody knows when it was pushed", case(comments=(comment("bob"),), pushes=()), Why.PUSH_UNKNOWN),
    Row(
        "only another commit's push is known",
        case(comments=(comment("bob"),), pushes=(push(B, 0),)),
        Why.PUSH_UNKNOWN,
    ),
    Row(
        "back at A after B, and nobody recorded when",
        case(pushes=(push(A, 0), push(B, 1)), comments=(comment("bob", minutes=2),)),
        Why.PUSH_UNKNOWN,
    ),
    Row(
        # Its suite was made when the commit was first pushed anywhere.
        "the suite of a commit that is older than another head",
        case(pushes=(push(A, 0, "check_suite"), push(B, 1)), comments=(comment("bob", minutes=2),)),
        Why.PUSH_UNKNOWN,
    ),
    Row(
        "an approval that was dismissed",
        case(reviews=(review("bob", "DISMISSED"),)),
        Why.DISMISSED,
    ),
    Row(
        "approved twice, the newer one dismissed",
        case(reviews=(review("bob", "APPROVED", 4), review("bob", "DISMISSED", 5))),
        Why.DISMISSED,
    ),
    Row(
        "the phrase in a dismissed review",
        case(reviews=(review("bob", "DISMISSED", body=PHRASE),)),
        Why.DISMISSED,
        notes=(Why.DISMISSED,),
    ),
    Row(
        "an approval where the policy asks for the words",
        case(reviews=(review("bob", "APPROVED"),)),
        Why.PHRASE_WANTED,
        policy=GatePolicy(approvals=False),
    ),
    Row(
        "a pending review",
        case(reviews=(review("bob", "PENDING", body=PHRASE),)),
        Why.NOBODY,
    ),
    Row(
        "a fork's head, approved by somebody whom the policy names, without write permission",
        case(is_fork=True, reviews=(review("erin", "APPROVED"),)),
        Why.FORK,
        policy=GatePolicy(trusted=("erin",)),
    ),
    Row(
        "a fork's head, approved by a named bot that may write",
        case(is_fork=True, reviews=(review("ci[bot]", "APPROVED", is_bot=True),)),
        Why.FORK,
        policy=GatePolicy(trusted=("ci[bot]",)),
    ),
    Row(
        "a fork's head, approved by a bot that only its name tells",
        case(is_fork=True, reviews=(review("ci[bot]", "APPROVED"),)),
        Why.FORK,
        policy=GatePolicy(trusted=("ci[bot]",)),
    ),
    Row(
        "a fork's head with our verdict",
        case(is_fork=True, verdict=StoredVerdict(A, "LGTM")),
        Why.FORK,
        policy=GatePolicy(trusted=(ME,)),
    ),
    Row(
        "a fork's next head needs its own go",
        case(
            head=B,
            is_fork=True,
            pushes=(push(A, 0), push(B, 6)),
            goes=(GoSeen("bob", at(5), allowed=True, comment_id=7),),
        ),
        Why.BEFORE_PUSH,
    ),
    Row(
        "a conflict comes first",
        case(mergeable=False, reviews=(review("bob", "APPROVED"),)),
        Why.CONFLICT,
    ),
    Row(
        "the newest word that does not count is the answer, the others are notes",
        case(
            comments=(
                comment("mallory", minutes=3),
                comment("ada", minutes=4),
                comment("bob", f"not {PHRASE}", 5),
            )
        ),
        Why.NOT_ALONE,
        notes=(Why.AUTHOR, Why.NO_PERMISSION),
    ),
    Row(
        "how a stranger wrote it interests nobody",
        case(comments=(comment("mallory", f"> {PHRASE}"),)),
        Why.NOBODY,
    ),
]


@pytest.mark.parametrize("row", QUALIFIES, ids=lambda row: row.name)
def test_it_qualifies(row: Row) -> None:
    decision = decide(row.case, row.policy)
    assert decision.qualified, sentence(decision.reason)
    assert (decision.reason.why, decision.login, decision.ground) == (row.why, row.login, row.ground)
    assert tuple(note.why for note in decision.notes) == row.notes
    assert decision.head_sha == row.case.head_sha


@pytest.mark.parametrize("row", DOES_NOT, ids=lambda row: row.name)
def test_it_does_not_qualify(row: Row) -> None:
    decision = decide(row.case, row.policy)
    assert (decision.qualified, decision.reason.why) == (False, row.why)
    assert (decision.login, decision.ground, decision.id) == ("", None, 0)
    assert tuple(note.why for note in decision.notes) == row.notes


@pytest.mark.parametrize("row", [*QUALIFIES, *DOES_NOT], ids=lambda row: row.name)
def test_every_answer_is_one_sentence_and_survives_storage(row: Row) -> None:
    decision = decide(row.case, row.policy)
    for reason in (decision.reason, *decision.notes):
        said = sentence(reason)
        assert said.endswith(".")
        assert "\n" not in said
        assert "{" not in said
        assert A not in said, "a whole commit name is too long to read"
    assert Decision.model_validate_json(decision.model_dump_json()) == decision


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Why)


def test_the_answer_names_the_person_the_review_and_the_commit() -> None:
    decision = decide(case(reviews=(review("bob", "APPROVED", 5),)), GatePolicy())
    assert sentence(decision.reason) == "bob approved aaaaaaaaaaaa (review 51)."
    assert decision.id == 51


def test_a_login_with_braces_is_printed_as_it_is() -> None:
    decision = decide(case(comments=(comment("{id}"),)), GatePolicy())
    assert sentence(decision.reason).startswith("{id} has no write permission")


def test_nothing_that_is_seen_tells_an_association_or_a_commits_date() -> None:
    names = {part.name for one in (ReviewSeen, CommentSeen, PushSeen, GoSeen, Case) for part in fields(one)}
    assert not [name for name in names if "association" in name or "committed" in name or "authored" in name]


def test_a_case_without_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="without a head"):
        case(head="", reviews=(review("bob", "APPROVED", commit=""),))


def test_only_those_are_asked_for_on_whom_the_answer_depends() -> None:
    seen = case(
        writers=frozenset(),
        reviews=(
            review("bob", "APPROVED"),
            review("carol", "CHANGES_REQUESTED", commit=B),
            review("dave", "COMMENTED", body="hm"),
            review("ci[bot]", "APPROVED"),
            review(ME, "CHANGES_REQUESTED"),
        ),
        comments=(comment("erin"), comment("ada"), comment("frank", "thanks"), comment("grace")),
        goes=(GoSeen("heidi", at(5), allowed=True, comment_id=7),),
    )
    assert people(seen, GatePolicy(trusted=("grace",))) == {"bob", "carol", "erin"}
    assert people(replace(seen, is_fork=True), GatePolicy(trusted=("grace",))) == {
        "bob",
        "carol",
        "erin",
        "grace",
    }


def test_the_push_is_the_newest_receipt_before_any_check_suite() -> None:
    assert pushed_at(case(pushes=(push(A, 3), push(A, 1), push(A, 9, "check_suite")))) == at(3)
    assert pushed_at(case(pushes=(push(A, 3), push(B, 5, "check_suite")))) == at(3)
    assert pushed_at(case(pushes=(push(A, 3, "check_suite"),))) == at(3)


# Properties over mixed cases

logins = st.sampled_from(["ada", "bob", "carol", "mallory", "erin", "ci[bot]", ME])
shas = st.sampled_from([A, B])
minutes = st.integers(-5, 20)
bodies = st.sampled_from(["", PHRASE, f"not {PHRASE}", f"> {PHRASE}", f"ok\n\n{PHRASE}"])
states = st.sampled_from(["APPROVED", "CHANGES_REQUESTED", "COMMENTED", "DISMISSED"])
ids = st.integers(1, 1_000_000)
review_lists = st.lists(
    st.builds(
        ReviewSeen,
        id=ids,
        login=logins,
        state=states,
        body=bodies,
        commit=shas,
        submitted_at=minutes.map(at),
        edited=st.booleans(),
    ),
    max_size=5,
    unique_by=lambda one: one.id,
).map(tuple)
comment_lists = st.lists(
    st.builds(
        CommentSeen, id=ids, login=logins, body=bodies, created_at=minutes.map(at), edited=st.booleans()
    ),
    max_size=5,
    unique_by=lambda one: one.id,
).map(tuple)
cases = st.builds(
    Case,
    head_sha=shas,
    author=st.just("ada"),
    me=st.just(ME),
    is_fork=st.booleans(),
    reviews=review_lists,
    comments=comment_lists,
    pushes=st.lists(
        st.builds(PushSeen, shas, minutes.map(at), st.sampled_from(["receipt", "check_suite"])), max_size=3
    ).map(tuple),
    verdict=st.none() | st.builds(StoredVerdict, shas, st.sampled_from(["BLOCKED", "LGTM"])),
    writers=st.frozensets(logins),
)
policies = st.builds(
    GatePolicy,
    trusted=st.lists(st.sampled_from(["erin", "ci[bot]", ME, "ada"]), unique=True).map(tuple),
    approvals=st.booleans(),
    blocked=st.sampled_from(["stop", "warn"]),
)
copies = st.sampled_from(
    [
        f"> {PHRASE}",
        f"```\n{PHRASE}\n```",
        f"    {PHRASE}",
        f"NOT {PHRASE} yet",
        f"<!--\n{PHRASE}\n-->",
        f"- {PHRASE}",
    ]
)


@given(cases, policies, logins, copies, st.integers(1, 19))
def test_quoting_the_phrase_or_showing_it_as_code_changes_nothing(
    seen: Case, policy: GatePolicy, login: str, body: str, minute: int
) -> None:
    before = decide(seen, policy)
    after = decide(
        replace(seen, comments=(*seen.comments, comment(login, body, minute, id=2_000_000))), policy
    )
    assert (after.qualified, after.login, after.ground, after.id) == (
        before.qualified,
        before.login,
        before.ground,
        before.id,
    )


@given(cases, policies, st.randoms(use_true_random=False))
def test_the_order_of_what_was_seen_is_no_matter(seen: Case, policy: GatePolicy, random: object) -> None:
    def mixed(items: tuple[object, ...]) -> tuple[object, ...]:
        shuffled = list(items)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        return tuple(shuffled)

    other = replace(
        seen, reviews=mixed(seen.reviews), comments=mixed(seen.comments), pushes=mixed(seen.pushes)
    )  # type: ignore[arg-type]
    assert decide(other, policy) == decide(seen, policy)


@given(cases, policies)
def test_what_qualifies_is_the_word_of_another_who_is_trusted(seen: Case, policy: GatePolicy) -> None:
    decision = decide(seen, policy)
    if decision.qualified:
        assert decision.login.casefold() != "ada"
        assert decision.login in seen.writers or decision.login in policy.trusted
        assert not seen.is_fork or (decision.login in seen.writers and not decision.login.endswith("[bot]"))
        if decision.login == ME:
            assert (decision.ground, seen.verdict) == (Ground.VERDICT, StoredVerdict(seen.head_sha, "LGTM"))


@given(cases, policies)
def test_without_permissions_and_names_nothing_qualifies(seen: Case, policy: GatePolicy) -> None:
    assert not decide(replace(seen, writers=frozenset()), policy.model_copy(update={"trusted": ()})).qualified


@given(cases, policies)
def test_a_trusted_request_for_changes_always_stops(seen: Case, policy: GatePolicy) -> None:
    last = review("bob", "CHANGES_REQUESTED", 30, commit="c" * 40)
    stopped = replace(seen, reviews=(*seen.reviews, last), writers=seen.writers | {"bob"})
    decision = decide(stopped, policy)
    assert (decision.qualified, decision.reason.why) == (False, Why.CHANGES_REQUESTED)


@given(cases, policies)
def test_a_push_ends_all_trust(seen: Case, policy: GatePolicy) -> None:
    pushed = replace(seen, head_sha="c" * 40, pushes=(*seen.pushes, push("c" * 40, 60)))
    assert not decide(pushed, policy).qualified


@given(cases, policies)
def test_asking_for_those_named_is_enough(seen: Case, policy: GatePolicy) -> None:
    asked = people(seen, policy)
    assert (
        decide(replace(seen, writers=seen.writers & asked), policy).qualified
        == decide(seen, policy).qualified
    )
