"""Raw outputs beside goldens: what matches, what differs, what is refused, and what a job may not talk us into."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci_dispatch import untrusted
from ci_dispatch.golden import MAX_DIFFERENCES, compare
from ci_dispatch.model import Arch, Comparison, Golden, Tolerance

GOLDENS = Path(__file__).parents[2] / "runtime/smoke/goldens"
TOLERANT = Golden(
    output="smoke/cpu.json", kept="goldens/cpu.json", tolerances={"logprobs": Tolerance(absolute=1e-4)}
)


def made(**cases: Any) -> dict[str, Any]:
    return {
        "provenance": {
            "suite": "cpu",
            "arch": "cpu",
            "dtype": "float32",
            "torch": "2.11",
            "commit": "a" * 40,
        },
        "cases": cases,
    }


def answer(
    ids: Any = (5, 6), text: str = "hi", logprobs: Any = (-1.0, -2.0), error: str = ""
) -> dict[str, Any]:
    return {"ids": list(ids), "text": text, "logprobs": list(logprobs), "error": error}


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Comparison]:
    def judge(
        ours: Any, theirs: Any, golden: Golden = TOLERANT, arch: Arch = "cpu", raw: bytes | None = None
    ) -> Comparison:
        output, kept = tmp_path / "out" / golden.output, tmp_path / "base" / golden.kept
        for path, value in ((output, ours), (kept, theirs)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        if raw is not None:
            output.write_bytes(raw)
        return compare(golden, output, kept, arch)

    return judge


def counts(one: Comparison) -> tuple[int, int, int, int, int]:
    assert one.total == one.matched + one.different + one.failed + one.other
    return one.total, one.matched, one.different, one.failed, one.other


@pytest.mark.parametrize(
    ("file", "arch"), [("cpu-cpu.json", "cpu"), ("tp2-cpu.json", "cpu"), ("gpu-sm90.json", "sm90")]
)
def test_the_kept_goldens_of_this_repository_match_themselves(file: str, arch: Arch) -> None:
    golden = Golden(output=file, kept=file, tolerances={"logprobs": Tolerance(absolute=1e-4)})
    one = compare(golden, GOLDENS / file, GOLDENS / file, arch)
    assert one.passed
    assert one.total == sum(map(len, json.loads((GOLDENS / file).read_text())["cases"].values()))


def test_a_token_that_differs_is_a_difference_of_its_request(judged: Callable[..., Comparison]) -> None:
    one = judged(made(a=[answer(), answer(ids=(5, 7))]), made(a=[answer(), answer()]))
    assert counts(one) == (2, 1, 1, 0, 0)
    (difference,) = one.differences
    assert (difference.case, difference.request, difference.field) == ("a", 1, "ids[1]")
    assert (difference.expected, difference.actual) == ("6", "7")
    assert not one.passed


@pytest.mark.parametrize(
    ("ours", "theirs", "matches"),
    [
        ([-1.00009], [-1.0], True),
        ([-1.00011], [-1.0], False),
        ([float("nan")], [float("nan")], True),
        ([float("nan")], [-1.0], False),
        ([-1.0], [float("nan")], False),
        ([float("inf")], [float("inf")], True),
        ([float("inf")], [float("-inf")], False),
        ([float("inf")], [1.0], False),
        ([10**400], [1.0], False),
        ([None], [None], True),
        ([None], [0.0], False),
        ([True], [1], False),
        (["-1.0"], [-1.0], False),
        ([-1.0, -2.0], [-1.0], False),
        ([[-1.00005], [-2.0]], [[-1.0], [-2.00005]], True),
        ([{"deep": -1.00005}], [{"deep": -1.0}], True),
    ],
)
def test_numbers_of_a_tolerant_field(
    judged: Callable[..., Comparison], ours: Any, theirs: Any, matches: bool
) -> None:
    one = judged(made(a=[answer(logprobs=ours)]), made(a=[answer(logprobs=theirs)]))
    assert one.passed is matches


def test_relative_tolerance_is_relative_to_the_kept_number(judged: Callable[..., Comparison]) -> None:
    golden = TOLERANT.model_copy(update={"tolerances": {"logprobs": Tolerance(relative=0.1)}})
    assert judged(made(a=[answer(logprobs=[110.0])]), made(a=[answer(logprobs=[100.0])]), golden).passed
    assert not judged(made(a=[answer(logprobs=[100.0])]), made(a=[answer(logprobs=[90.0])]), golden).passed


def test_nothing_is_near_infinity(judged: Callable[..., Comparison]) -> None:
    golden = TOLERANT.model_copy(update={"tolerances": {"logprobs": Tolerance(relative=0.1)}})
    assert not judged(
        made(a=[answer(logprobs=[1.0])]), made(a=[answer(logprobs=[float("inf")])]), golden
    ).passed


@pytest.mark.parametrize("changed", [{"ids": [5.00001, 6]}, {"text": "hi "}, {"more": 1}])
def test_everything_else_is_exact(judged: Callable[..., Comparison], changed: dict[str, Any]) -> None:
    one = judged(made(a=[answer() | changed]), made(a=[answer()]))
    assert counts(one) == (1, 0, 1, 0, 0)


def test_a_field_that_is_gone_differs(judged: Callable[..., Comparison]) -> None:
    short = answer()
    del short["logprobs"]
    one = judged(made(a=[short]), made(a=[answer()]))
    assert one.differences[0].field == "logprobs"
    assert one.differences[0].actual == '"(absent)"'


def test_requests_and_cases_on_one_side_alone_are_other_and_never_pass(
    judged: Callable[..., Comparison],
) -> None:
    one = judged(
        made(a=[answer()], new=[answer()]), made(a=[answer(), answer()], dropped=[answer(), answer()])
    )
    assert counts(one) == (5, 1, 0, 0, 4)
    assert "dropped: kept, but not asked" in one.failures
    assert "new: no kept answers" in one.failures


def test_a_case_that_ended_with_an_error_fails_all_its_requests(judged: Callable[..., Comparison]) -> None:
    one = judged(made(a={"error": "ValueError: no"}, b=[answer()]), made(a=[answer()] * 3, b=[answer()]))
    assert counts(one) == (4, 1, 0, 3, 0)
    assert one.failures == ("a: ValueError: no",)


def test_a_request_that_ended_with_an_error_fails_unless_that_very_error_is_kept(
    judged: Callable[..., Comparison],
) -> None:
    broken = answer(error="too long")
    assert counts(judged(made(a=[broken]), made(a=[answer()]))) == (1, 0, 0, 1, 0)
    assert judged(made(a=[broken]), made(a=[broken])).passed


@pytest.mark.parametrize("cases", [{}, {"a": []}])
def test_nothing_asked_and_nothing_kept_does_not_pass(
    judged: Callable[..., Comparison], cases: dict[str, Any]
) -> None:
    one = judged(made(**cases), made(**cases))
    assert not one.passed
    assert one.failures


@pytest.mark.parametrize("value", [5, "x", None, True])
def test_a_case_that_is_neither_answers_nor_an_error_fails_or_is_missing(
    judged: Callable[..., Comparison], value: Any
) -> None:
    assert not judged(made(a=value, b=[answer()]), made(a=[answer()], b=[answer()])).passed


def test_a_golden_of_another_architecture_is_refused_on_this_job(judged: Callable[..., Comparison]) -> None:
    """CI.md 18."""
    kept = made(a=[answer()])
    kept["provenance"]["arch"] = "sm90"
    for claim in ("sm120", "sm90"):  # whatever the outputs say of themselves
        ours = copy.deepcopy(kept)
        ours["provenance"]["arch"] = claim
        one = judged(ours, kept, arch="sm120")
        assert 'kept on "sm90", this job runs on sm120' in one.refused
        assert one.total == 0


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "bfloat16"), ("suite", "gpu"), ("arch", "sm90"), ("dtype", None)]
)
def test_outputs_of_another_origin_are_refused(
    judged: Callable[..., Comparison], key: str, value: str | None
) -> None:
    ours = made(a=[answer()])
    if value is None:
        del ours["provenance"][key]
    else:
        ours["provenance"][key] = value
    one = judged(ours, made(a=[answer()]))
    assert f"kept for {key}" in one.refused
    assert not one.passed


def test_architecture_is_compared_even_where_the_policy_names_other_keys(
    judged: Callable[..., Comparison],
) -> None:
    golden = TOLERANT.model_copy(update={"provenance": ("suite",)})
    assert judged(made(a=[answer()]), made(a=[answer()]), golden, "sm90").refused


def test_versions_that_differ_are_named_and_compared_and_commits_are_not_named(
    judged: Callable[..., Comparison],
) -> None:
    ours = made(a=[answer()])
    ours["provenance"] |= {"torch": "2.12", "commit": "b" * 40}
    one = judged(ours, made(a=[answer()]))
    assert one.passed
    assert one.notes == ('torch: kept with "2.11", made with "2.12"',)


def test_twins_are_believed_of_the_golden_and_not_of_the_job(judged: Callable[..., Comparison]) -> None:
    good, bad = [answer()], [answer(ids=(9, 9))]
    claims = made(sync=good, quick=bad, liar=bad) | {"twins": {"quick": "liar"}}
    assert not judged(claims, made(sync=good, quick=good, liar=bad)).passed
    kept = made(sync=good) | {"twins": {"quick": "sync"}}
    assert judged(made(sync=good, quick=good), kept).passed
    one = judged(made(sync=good, quick=bad), kept)
    assert counts(one) == (2, 1, 1, 0, 0)
    assert counts(judged(made(sync=good), kept)) == (2, 1, 0, 0, 1)


@pytest.mark.parametrize("twins", [["sync"], {"quick": 5}, {"quick": "nowhere"}])
def test_a_golden_whose_twins_make_no_sense_is_refused(judged: Callable[..., Comparison], twins: Any) -> None:
    assert "twin" in judged(made(sync=[answer()]), made(sync=[answer()]) | {"twins": twins}).refused


def test_a_twin_of_a_twin_is_refused(judged: Callable[..., Comparison]) -> None:
    kept = made(sync=[answer()], fast=[answer()]) | {"twins": {"quick": "fast", "fast": "sync"}}
    assert "twin" in judged(made(sync=[answer()]), kept).refused


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"provenance": {}, "cases": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}", "nested deeper"),
        (b"9" * 10_000, "not JSON"),
        (b"[]", "no such provenance"),
        (b'{"provenance": {}}', "no such cases"),
        (b'{"provenance": [], "cases": {}}', "no such provenance"),
        (b'{"provenance": {}, "cases": []}', "no such cases"),
        (b" " * (untrusted.MAX_BYTES + 1), "larger than"),
    ],
)
def test_outputs_that_are_no_outputs_are_refused_in_words(
    judged: Callable[..., Comparison], raw: bytes, words: str
) -> None:
    one = judged(None, made(a=[answer()]), raw=raw)
    assert words in one.refused
    assert "raw outputs smoke/cpu.json" in one.refused


def test_a_missing_file_says_whose_it_is(judged: Callable[..., Comparison], tmp_path: Path) -> None:
    judged(made(a=[answer()]), made(a=[answer()]))
    (tmp_path / "out/smoke/cpu.json").unlink()
    output, kept = tmp_path / "out/smoke/cpu.json", tmp_path / "base/goldens/cpu.json"
    assert "raw outputs smoke/cpu.json: no such file" in compare(TOLERANT, output, kept, "cpu").refused
    output.write_text("{}")
    kept.unlink()
    output.write_text(json.dumps(made(a=[answer()])))
    assert "golden goldens/cpu.json: no such file" in compare(TOLERANT, output, kept, "cpu").refused


def test_links_pipes_and_folders_in_place_of_outputs_are_refused(
    judged: Callable[..., Comparison], tmp_path: Path
) -> None:
    judged(made(a=[answer()]), made(a=[answer()]))
    output, kept = tmp_path / "out/smoke/cpu.json", tmp_path / "base/goldens/cpu.json"
    output.unlink()
    output.symlink_to(kept)
    assert "cannot be opened" in compare(TOLERANT, output, kept, "cpu").refused
    output.unlink()
    os.mkfifo(output)
    assert "not a regular file" in compare(TOLERANT, output, kept, "cpu").refused
    output.unlink()
    output.mkdir()
    assert compare(TOLERANT, output, kept, "cpu").refused
    output.rmdir()
    output.parent.rmdir()
    output.parent.symlink_to(kept.parent)
    assert "cannot be opened" in compare(TOLERANT, output, kept, "cpu").refused


def test_hostile_text_stays_bounded_and_survives_json_and_utf8(judged: Callable[..., Comparison]) -> None:
    raw = json.dumps(made(**{"\ud800\0" + "n" * 9_999: [answer(text="\ud800\0" + "t" * 9_999)]})).encode()
    one = judged(None, json.loads(raw) | {"cases": {"\ud800\0" + "n" * 9_999: [answer()]}}, raw=raw)
    assert Comparison.model_validate_json(one.model_dump_json()) == one
    (difference,) = one.differences
    assert len(difference.case) <= 200
    assert "\0" not in difference.case + difference.actual
    assert len(difference.actual) <= 500


def test_the_first_differences_are_named_and_all_are_counted(judged: Callable[..., Comparison]) -> None:
    one = judged(
        made(a=[answer(ids=range(1, 1000))] * 300, **{f"c{n}": {"error": "x" * 9_999} for n in range(99)}),
        made(a=[answer(ids=range(999))] * 300),
    )
    assert counts(one) == (399, 0, 300, 99, 0)
    assert len(one.differences) == MAX_DIFFERENCES
    assert len(one.failures) == 20
    assert len(one.model_dump_json()) < 50_000


def test_a_runner_needs_pydantic_alone_for_it() -> None:
    code = (
        "import sys, ci_dispatch.golden, ci_dispatch.kpis\n"
        "print(*sorted({'numpy', 'scipy', 'jinja2', 'yaml', 'reviewer', 'service'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
