"""The words of the demo's reviewers: well-formed, exact about the code, and told apart by the clustering."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from reviewer.answers import (
    DedupAnswer,
    DiscoverAnswer,
    FactCheckAnswer,
    FindingDraft,
    ItemAnswer,
    MergeAnswer,
    RecheckAnswer,
)
from reviewer.checklist import applicable, cap, load_builtin
from reviewer.checkout.snapshot import GitCheckout
from reviewer.cluster import cluster, match
from reviewer.engines.base import ToolCall
from reviewer.facts import check_facts
from reviewer.model import FactCheck, Finding, Severity, Side
from reviewer.policy import ToolLimits
from reviewer.text import load_text
from reviewer.tools import Toolbox

Round = dict[str, Any]
Checkouts = tuple[GitCheckout, ...]
ITEMS = {item.id: item for checklist in load_builtin() for item in checklist.items}
# What each rep says in round 1, by fault: the votes that the demo's story needs.
VOTES = {
    "boundary": {0, 1, 2, 3, 4},
    "tail-mask": {0, 1, 2, 4},
    "admission": {1, 3},
    "zero-scale": {2, 3, 4},
    "injection": {3},
    "boundary-test": {0, 1, 4},
    "kernel-test": {1, 2},
    "scale-doc": {0, 2},
    "copy": {0, 4},
    "getattr": {1, 4},
    "mutable-default": {2, 4},
    "bare-except": {0, 2, 3},
    "reuse": {1},
}
AGENTIC = {0, 1}


def drafts(one: Round) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every finding of a round's discovery with the rep that reports it."""
    for rep, said in one["discover"].items():
        for finding in said["answer"]["findings"]:
            yield rep, finding


def said_in_all(one: Round) -> Iterator[dict[str, Any]]:
    """Every finding of a round, of the confirming reps too."""
    yield from (finding for _, finding in drafts(one))
    for place in one.get("confirm", ()):
        for answer in place["answers"]:
            yield from answer["findings"]


def as_finding(rep: int, draft: dict[str, Any]) -> Finding:
    read = FindingDraft.model_validate(draft)
    severity = cap(read.severity, (ITEMS[id_] for id_ in read.checklist_ids))
    return Finding(**read.model_dump(exclude={"severity"}), severity=severity, rep=rep)


def findings(one: Round) -> dict[str, list[Finding]]:
    by_fault: dict[str, list[Finding]] = defaultdict(list)
    for rep, draft in drafts(one):
        by_fault[draft["fault"]].append(as_finding(rep, draft))
    return by_fault


def cases(one: Round) -> dict[str, Finding]:
    """Each fault as the round words it: one finding's place with the synthesis of all."""
    words = {
        entry["fault"]: {name: entry["answer"][name] for name in ("title", "body")}
        for entry in one["synthesize"]
    }
    return {fault: said[0].model_copy(update=words.get(fault, {})) for fault, said in findings(one).items()}


@pytest.fixture(params=[0, 1], ids=["round1", "round2"])
def told(
    request: pytest.FixtureRequest, sample_rounds: list[Round], sample_checkouts: Checkouts
) -> tuple[Round, GitCheckout]:
    return sample_rounds[request.param], sample_checkouts[request.param]


def test_every_answer_is_what_its_step_asks_for(told: tuple[Round, GitCheckout]) -> None:
    one, _ = told
    assert set(one) <= {"discover", "confirm", "synthesize", "dedup", "fact_check", "recheck"}
    for said in one["discover"].values():
        DiscoverAnswer.model_validate(said["answer"])
        assert set(said["answer"]) <= {*DiscoverAnswer.model_fields, "pass_rest"}
        for item in said["answer"].get("checklist", ()):
            assert set(item) <= set(ItemAnswer.model_fields)
    for place in one.get("confirm", ()):
        assert len([DiscoverAnswer.model_validate(answer) for answer in place["answers"]]) == 2
    for step, model in (("synthesize", MergeAnswer), ("dedup", DedupAnswer), ("fact_check", FactCheckAnswer)):
        for entry in one.get(step, ()):
            model.model_validate(entry["answer"])
            assert set(entry["answer"]) <= set(model.model_fields)
    for entry in one.get("recheck", ()):
        for answer in entry["answers"]:
            RecheckAnswer.model_validate(answer)
    for draft in said_in_all(one):
        assert set(draft) <= {*FindingDraft.model_fields, "fault"}


def test_every_quotation_stands_at_exactly_the_lines_it_names(told: tuple[Round, GitCheckout]) -> None:
    one, checkout = told
    for draft in said_in_all(one):
        content = checkout.read(draft["path"], Side.RIGHT)
        assert content is not None, draft["path"]
        lines = content.decode().splitlines()[draft["line_start"] - 1 : draft["line_end"]]
        quoted = draft["quoted_code"].splitlines()
        assert [line.strip() for line in lines] == [line.strip() for line in quoted], draft["title"]


def test_every_finding_survives_the_machines_fact_check(told: tuple[Round, GitCheckout]) -> None:
    one, checkout = told
    text = load_text("round/text", "en")
    for fault, said in findings(one).items():
        for finding in (*said, cases(one)[fault]):
            assert check_facts(finding, checkout, text).refuted == "", finding.title


def test_checklist_answers_name_applicable_items_and_agree_with_the_findings(
    told: tuple[Round, GitCheckout],
) -> None:
    one, checkout = told
    ids = {item.id for item in applicable(ITEMS.values(), [file.path for file in checkout.diff.files])}
    for rep, said in one["discover"].items():
        answer = said["answer"]
        failed = {
            (item["id"], index) for item in answer.get("checklist", ()) for index in item.get("findings", ())
        }
        listed = {
            (id_, index) for index, draft in enumerate(answer["findings"]) for id_ in draft["checklist_ids"]
        }
        assert failed == listed, f"rep {rep}"
        assert {id_ for id_, _ in listed} <= ids
        for item in answer.get("checklist", ()):
            assert item["id"] in ids
            assert item["evidence"]
            assert (item["answer"] == "fail") == bool(item.get("findings"))


def test_tools_are_called_by_agentic_reps_and_checkers_and_answer_for_real(
    told: tuple[Round, GitCheckout],
) -> None:
    one, checkout = told
    assert {rep for rep, said in one["discover"].items() if said.get("tool_calls")} == AGENTIC
    conversations = [one["discover"][rep]["tool_calls"] for rep in AGENTIC]
    conversations += [entry["tool_calls"] for entry in one.get("fact_check", ())]
    for turns in conversations:
        toolbox = Toolbox(checkout, ToolLimits())
        calls = [call for turn in turns for call in turn]
        assert 2 <= len(calls) <= 5
        for call in calls:
            answer = toolbox.call(ToolCall("1", call["name"], json.dumps(call["arguments"])))
            assert toolbox.records[-1].ok, answer
            assert "no match" not in answer
            assert "does not occur" not in answer


def test_words_that_choose_an_answer_are_those_of_one_fault_and_of_no_code(
    sample_rounds: list[Round], sample_checkouts: Checkouts
) -> None:
    code = "\n".join(
        (checkout.read(path, Side.RIGHT) or b"").decode("utf-8", "replace")
        for checkout in sample_checkouts
        for path in checkout.files(Side.RIGHT)
    )
    open_before: dict[str, str] = {}
    for one in sample_rounds:
        raw = {fault: [finding.title for finding in said] for fault, said in findings(one).items()}
        merged = {fault: [case.title] for fault, case in cases(one).items()}
        known = {fault: [title] for fault, title in open_before.items()}
        for step, titles in (("synthesize", raw), ("fact_check", merged), ("recheck", known)):
            for entry in one.get(step, ()):
                chosen = {
                    fault
                    for fault, texts in titles.items()
                    if any(entry["contains"] in text for text in texts)
                }
                assert chosen == {entry["fault"]}, f"{step}: {entry['contains']}"
                assert entry["contains"] not in code
        open_before |= {fault: case.title for fault, case in cases(one).items()}


def test_votes_of_round_1_tell_the_story(sample_rounds: list[Round]) -> None:
    votes = {fault: {one.rep for one in said} for fault, said in findings(sample_rounds[0]).items()}
    assert votes == VOTES
    severe = {
        fault
        for fault, said in findings(sample_rounds[0]).items()
        if all(finding.severity.can_block for finding in said)
    }
    assert severe == {"boundary", "tail-mask", "admission", "zero-scale", "injection"}
    verdicts = {entry["fault"]: entry["answer"]["verdict"] for entry in sample_rounds[0]["fact_check"]}
    refuted = {fault for fault, verdict in verdicts.items() if verdict == FactCheck.REFUTED}
    assert refuted == {"zero-scale"}
    assert set(verdicts) == severe - {"injection"}


def test_everything_said_more_than_once_has_a_synthesis(told: tuple[Round, GitCheckout]) -> None:
    one, _ = told
    repeated = {fault for fault, said in findings(one).items() if len(said) > 1}
    assert {entry["fault"] for entry in one["synthesize"]} == repeated


def test_round_2_rechecks_what_round_1_left_open_a_blocker_by_every_rep(sample_rounds: list[Round]) -> None:
    first, second = sample_rounds
    rechecks = {entry["fault"]: entry["answers"] for entry in second["recheck"]}
    assert set(rechecks) == set(VOTES) - {"zero-scale"}
    blockers = {"boundary", "tail-mask", "admission"}
    assert {fault for fault, answers in rechecks.items() if len(answers) == 5} == blockers
    left = {fault for fault, answers in rechecks.items() if any(one["answer"] != "fixed" for one in answers)}
    assert left == {"copy"}
    assert all(finding.severity is Severity.P3 for said in findings(second).values() for finding in said)
    assert set(findings(first)) & set(findings(second)) == set()


def test_clustering_puts_each_fault_into_one_cluster(told: tuple[Round, GitCheckout]) -> None:
    one, _ = told
    by_fault = findings(one)
    everything = [(fault, finding) for fault, said in by_fault.items() for finding in said]
    groups = cluster([finding for _, finding in everything])
    named = sorted(sorted(everything[index][0] for index in group.members) for group in groups)
    assert named == sorted([fault] * len(said) for fault, said in by_fault.items())


def test_what_confirming_reps_say_counts_for_the_case_they_were_asked_about(
    sample_rounds: list[Round],
) -> None:
    one = sample_rounds[0]
    known = cases(one)
    for place in one["confirm"]:
        fresh = [as_finding(5, draft) for answer in place["answers"] for draft in answer["findings"]]
        for index, _ in match(fresh, list(known.values())):
            assert index is not None
            assert list(known)[index] == place["fault"]


def test_what_round_2_finds_is_not_taken_for_something_known(sample_rounds: list[Round]) -> None:
    first, second = sample_rounds
    fresh = list(cases(second).values())
    assert [index for index, _ in match(fresh, list(cases(first).values()))] == [None] * len(fresh)


def test_strengths_are_shared_by_two_reps_at_least_twice_in_each_round(
    told: tuple[Round, GitCheckout],
) -> None:
    one, _ = told
    said = [
        Finding(path="", severity=Severity.P3, title=text, rep=rep)
        for rep, answer in one["discover"].items()
        for text in answer["answer"].get("strengths", ())
    ]
    assert sum(group.support >= 2 for group in cluster(said)) == 2


def test_references_to_lines_in_evidence_exist(told: tuple[Round, GitCheckout]) -> None:
    one, checkout = told
    texts = [entry["answer"]["evidence"] for entry in one.get("fact_check", ())]
    texts += [answer["evidence"] for entry in one.get("recheck", ()) for answer in entry["answers"]]
    texts += [
        item["evidence"] for said in one["discover"].values() for item in said["answer"].get("checklist", ())
    ]
    places = [place for text in texts for place in re.findall(r"([\w/]+\.py):(\d+)", text)]
    assert places
    for path, line in places:
        content = checkout.read(path, Side.RIGHT)
        assert content is not None, path
        assert content.decode().splitlines()[int(line) - 1].strip(), f"{path}:{line}"


def test_the_refutation_cites_the_guard_outside_the_diff(
    sample_rounds: list[Round], sample_checkouts: Checkouts
) -> None:
    entry = next(entry for entry in sample_rounds[0]["fact_check"] if entry["fault"] == "zero-scale")
    place = re.search(r"([\w/]+\.py):(\d+)\) returns (\S.*?), so", entry["answer"]["evidence"])
    assert place is not None
    path, line, guard = place.groups()
    content = sample_checkouts[0].read(path, Side.RIGHT)
    assert content is not None
    assert guard in content.decode().splitlines()[int(line) - 1]
    assert sample_checkouts[0].diff.file(path) is None
