from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reviewer import cluster as clustering
from reviewer.cluster import cluster
from reviewer.model import Cluster, Finding, Severity, Side

Make = Callable[..., Finding]

RACE = (
    "Race condition on `item.stock`",
    "The stock is read and written back without a lock, so two orders race.",
)
RACE_REWORDED = (
    "Stock update is not locked",
    "Two concurrent orders read `item.stock` before either writes it.",
)
RACE_ZH = ("扣减 `item.stock` 存在竞态", "读取后写回没有加锁，并发请求会同时通过。")
NEGATIVE = ("Negative `count` is accepted", "A client may pass count=-5; validate the quantity before use.")
NEGATIVE_REWORDED = ("Quantity is not validated", "Nothing refuses a negative `count` sent by the client.")


def partition(findings: list[Finding]) -> set[frozenset[int]]:
    return {frozenset(found.members) for found in cluster(findings)}


def wordings(findings: list[Finding], clusters: Iterable[Cluster]) -> set[frozenset[str]]:
    """The partition by what is said, which must not depend on positions in the input."""
    return {frozenset(findings[i].model_dump_json() for i in found.members) for found in clusters}


def test_no_findings_make_no_clusters() -> None:
    assert cluster([]) == ()


def test_one_fault_worded_differently_is_one_cluster(finding: Make) -> None:
    findings = [finding(*RACE), finding(*RACE_REWORDED, line=43, rep=1)]
    assert partition(findings) == {frozenset({0, 1})}


def test_one_fault_in_english_and_chinese_is_one_cluster(finding: Make) -> None:
    assert partition([finding(*RACE), finding(*RACE_ZH, rep=1)]) == {frozenset({0, 1})}


def test_two_faults_on_one_line_stay_apart(finding: Make) -> None:
    quoted = {"quoted_code": "if item.stock >= count:"}
    findings = [
        finding(*RACE, **quoted, category="concurrency"),
        finding(*RACE_REWORDED, **quoted, category="concurrency", rep=1),
        finding(*NEGATIVE, **quoted, category="validation"),
        finding(*NEGATIVE_REWORDED, **quoted, category="validation", rep=1),
    ]
    assert partition(findings) == {frozenset({0, 1}), frozenset({2, 3})}


def test_the_same_words_in_another_file_stay_apart(finding: Make) -> None:
    assert len(cluster([finding(*RACE), finding(*RACE, path="shop/refunds.py", rep=1)])) == 2


def test_the_same_words_at_far_lines_stay_apart(finding: Make) -> None:
    assert len(cluster([finding(*RACE, line=41), finding(*RACE, line=140, rep=1)])) == 2


def test_the_same_words_on_the_other_side_of_the_diff_stay_apart(finding: Make) -> None:
    assert len(cluster([finding(*RACE), finding(*RACE, side=Side.LEFT, rep=1)])) == 2


def test_the_same_words_about_a_line_that_stands_twice_stay_apart(finding: Make) -> None:
    quoted = {"quoted_code": "item.save()"}
    assert len(cluster([finding(*RACE, line=41, **quoted), finding(*RACE, line=300, **quoted, rep=1)])) == 2


def test_one_fault_on_moved_lines_is_one_cluster_where_the_code_is_quoted(finding: Make) -> None:
    moved = [finding(*RACE, line=41), finding(*RACE_REWORDED, line=75, rep=1)]
    assert len(cluster(moved)) == 2
    quoted = [one.model_copy(update={"quoted_code": "  item.stock -= count"}) for one in moved]
    assert len(cluster(quoted)) == 1


def test_a_finding_about_the_whole_file_joins_one_about_a_line_of_it(finding: Make) -> None:
    assert len(cluster([finding(*RACE), finding(*RACE, line=0, rep=1)])) == 1


def test_a_finding_about_the_whole_file_joins_the_one_whose_code_it_quotes(finding: Make) -> None:
    code = {"quoted_code": "item.stock -= count"}
    assert (
        len(cluster([finding(*RACE, line=400, **code), finding(*RACE_REWORDED, line=0, rep=1, **code)])) == 1
    )
    assert len(cluster([finding(*RACE, line=400, **code), finding(*NEGATIVE, line=0, rep=1, **code)])) == 2


def test_without_places_the_words_alone_decide(finding: Make) -> None:
    findings = [
        finding(*text, path="", line=0, rep=rep)
        for rep, text in enumerate((RACE, RACE_REWORDED, RACE_ZH, NEGATIVE, NEGATIVE_REWORDED))
    ]
    assert frozenset({3, 4}) in partition(findings)
    assert frozenset({0, 1}) <= next(group for group in partition(findings) if 0 in group)
    assert all(not ({0, 1, 2} & group and {3, 4} & group) for group in partition(findings))


def test_a_round_in_which_all_say_the_same_is_one_cluster(finding: Make) -> None:
    findings = [finding(*RACE), finding(*RACE_REWORDED, rep=1), finding(*RACE_ZH, rep=2)]
    assert [found.support for found in cluster(findings)] == [3]


def test_many_faults_in_the_same_vocabulary_stay_apart(finding: Make) -> None:
    words = [f"{one}{other}" for one in ("lock", "index", "cache", "mask") for other in "abcdefgh"]
    findings = []
    for fault in range(60):
        chosen = random.Random(fault)
        said = [chosen.choice(words) for _ in range(20)] + [f"name{chosen.randrange(999)}" for _ in range(8)]
        for rep in range(5):
            other = random.Random(fault * 5 + rep)
            text = [word if other.random() < 0.6 else other.choice(words) for word in said]
            findings.append(finding(" ".join(text), path="", line=0, rep=rep))
    right = {frozenset(range(5 * fault, 5 * fault + 5)) for fault in range(60)}
    assert len(partition(findings) & right) >= 50


def test_support_counts_distinct_reps(finding: Make) -> None:
    findings = [finding(*RACE), finding(*RACE_REWORDED), finding(*RACE, rep=3)]
    (found,) = cluster(findings)
    assert (found.members, found.support) == ((0, 1, 2), 2)


def test_detectors_join_but_do_not_vote(finding: Make) -> None:
    detected = finding(*RACE, rep=-1, source="ruff")
    assert [found.support for found in cluster([detected])] == [0]
    (found,) = cluster([detected, finding(*RACE_REWORDED, rep=2)])
    assert (found.members, found.support) == ((0, 1), 1)


def test_the_medoid_is_the_member_most_like_the_others(finding: Make) -> None:
    aside = (
        "Lock missing",
        "No lock around `item.stock`; also the log line is noisy and the name is misleading.",
    )
    findings = [finding(*aside), finding(*RACE_REWORDED, rep=1), finding(*RACE, rep=2)]
    findings += [finding(RACE[0], RACE[1] + " Lock it.", rep=3)]
    (found,) = cluster(findings)
    assert found.medoid in (2, 3)


def test_of_two_members_the_longer_is_the_medoid(finding: Make) -> None:
    longer = (RACE_REWORDED[0], RACE_REWORDED[1] + " Use select_for_update around both statements.")
    for findings in ([finding(*longer), finding(*RACE, rep=1)], [finding(*RACE), finding(*longer, rep=1)]):
        (found,) = cluster(findings)
        assert findings[found.medoid].body == longer[1]


def test_of_equal_wordings_the_earliest_rep_is_the_medoid(finding: Make) -> None:
    (found,) = cluster([finding(*RACE, rep=4), finding(*RACE, rep=1), finding(*RACE, rep=2)])
    assert found.medoid == 1


def test_a_repeated_wording_weighs_no_more_than_a_single_one(finding: Make) -> None:
    others = [finding(*RACE_REWORDED, rep=1), finding(*NEGATIVE, rep=2), finding(*RACE_ZH, rep=3)]
    once = wordings([finding(*RACE), *others], cluster([finding(*RACE), *others]))
    many = [finding(*RACE)] * 50 + others
    assert wordings(many, cluster(many)) == once


TEXTS = st.sampled_from(
    [RACE, RACE_REWORDED, RACE_ZH, NEGATIVE, NEGATIVE_REWORDED, ("typo", ""), ("锁", "???")]
)
FINDINGS = st.lists(
    st.builds(
        lambda text, path, line, length, side, code, rep: Finding(
            path=path,
            line_start=line,
            line_end=line + length if line else 0,
            side=side,
            severity=Severity.P2,
            title=text[0],
            body=text[1],
            quoted_code=code,
            rep=rep,
        ),
        TEXTS,
        st.sampled_from(["", "a.py", "b.py"]),
        st.sampled_from([0, 1, 4, 30, 200]),
        st.integers(0, 6),
        st.sampled_from(Side),
        st.sampled_from(["", "x = 1", "x = 1\n}", "\n"]),
        st.integers(-1, 4),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(FINDINGS, st.randoms(use_true_random=False))
def test_shuffling_the_findings_changes_neither_partition_nor_medoids(
    findings: list[Finding], shuffler: random.Random
) -> None:
    shuffled = list(findings)
    shuffler.shuffle(shuffled)
    before, after = cluster(findings), cluster(shuffled)
    assert wordings(findings, before) == wordings(shuffled, after)
    medoids = sorted(findings[found.medoid].model_dump_json() for found in before)
    assert medoids == sorted(shuffled[found.medoid].model_dump_json() for found in after)


@settings(deadline=None, max_examples=60)
@given(FINDINGS)
def test_clusters_are_a_partition_with_a_medoid_and_a_vote_count_each(findings: list[Finding]) -> None:
    clusters = cluster(findings)
    assert sorted(index for found in clusters for index in found.members) == list(range(len(findings)))
    for found in clusters:
        assert found.medoid in found.members
        assert found.members == tuple(sorted(found.members))
        assert found.support == len({findings[i].rep for i in found.members} - {-1})
        assert len({findings[i].path for i in found.members}) == 1


def test_ten_thousand_identical_findings_are_one_cluster_in_little_memory(finding: Make) -> None:
    findings = [finding(*RACE, rep=index % 5) for index in range(10_000)]
    tracemalloc.start()
    (found,) = cluster(findings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found.members), found.support) == (10_000, 5)
    assert peak < 10_000_000


def test_a_flood_of_like_findings_about_one_file_stays_within_bounded_memory(finding: Make) -> None:
    findings = [finding(*RACE, line=1 + index // 3, category=str(index % 3)) for index in range(3_000)]
    cluster(findings[:10])  # what is loaded once is not counted
    tracemalloc.start()
    found = cluster(findings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(len(one.members) for one in found) == 3_000
    assert peak < 120_000_000  # one matrix of all against all in float64 would be 72 MB, and ten are needed


def test_a_file_with_too_many_findings_is_cut_in_the_order_of_lines(
    finding: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "LIMIT", 4)
    findings = [finding(*RACE, line=line, rep=line) for line in (40, 1, 41, 2, 42, 3, 43, 4)]
    assert partition(findings) == {frozenset({1, 3, 5, 7}), frozenset({0, 2, 4, 6})}


def test_importing_it_loads_neither_numpy_nor_scipy_nor_the_stemmer() -> None:
    heavy = "{'numpy', 'scipy', 'snowballstemmer'}"
    script = f"import sys, reviewer.cluster; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
