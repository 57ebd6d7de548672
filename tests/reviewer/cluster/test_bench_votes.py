from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reviewer.errors import ReviewError
from service.bench import votes

LEAK = [
    "The opened file is never closed",
    "File handle leak: opened file not closed",
    "Never closes the opened file",
]
TYPO = ["Typo in the log message", "Spelling error in the log message text"]


def candidate(reviewer: str, text: str, *matches: int) -> dict[str, Any]:
    return {"reviewer": reviewer, "text": text, "matches": list(matches), "false_positive": not matches}


def pull(repo: str, candidates: list[dict[str, Any]], gold: int = 2) -> dict[str, Any]:
    listed = [{"text": f"gold {index}", "severity": "Low"} for index in range(gold)]
    return {"url": f"https://example.org/{repo}/1", "repo": repo, "gold": listed, "candidates": candidates}


def write(folder: Path, content: Any) -> Path:
    path = folder / "votes.json"
    path.write_text(json.dumps(content))
    return path


AGREED = [candidate(name, text, 0) for name, text in zip("abc", LEAK, strict=True)]
ALONE = [candidate("a", "Shadowed builtin `list`", 1), candidate("b", "Unrelated rename of a constant")]


def test_a_cluster_with_enough_reviewers_keeps_one_text_and_finds_its_gold(tmp_path: Path) -> None:
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED + ALONE)]}))
    assert result.scores == {"judge": {"r": votes.Score(kept=1, hits=1, found=1, gold=2)}}
    assert result.total("judge").precision == 100.0
    assert result.total("judge").recall == 50.0
    assert result.total("judge").f1 == pytest.approx(200 / 3)


def test_a_wrong_text_that_reviewers_agree_on_lowers_precision(tmp_path: Path) -> None:
    wrong = [candidate(name, text) for name, text in zip("ab", TYPO, strict=True)]
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED + wrong[:1])]}))
    assert result.total("judge") == votes.Score(kept=1, hits=1, found=1, gold=2)
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED + wrong)]}))
    assert result.total("judge") == votes.Score(kept=2, hits=1, found=1, gold=2)


def test_two_kept_texts_about_one_gold_find_it_once(tmp_path: Path) -> None:
    more = [candidate(name, text, 0) for name, text in zip("ab", TYPO, strict=True)]
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED + more)]}))
    assert result.total("judge") == votes.Score(kept=2, hits=2, found=1, gold=2)


def test_one_reviewer_who_repeats_itself_is_one_vote(tmp_path: Path) -> None:
    repeated = [candidate("a", text, 0) for text in LEAK]
    result = votes.run(write(tmp_path, {"judge": [pull("r", repeated)]}))
    assert result.total("judge").kept == 0


def test_the_more_is_said_the_more_reviewers_must_agree(tmp_path: Path) -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    noise = [candidate("d", f"{one} {other} nit") for one in words for other in words if one < other]
    few, many = pull("few", AGREED + noise[:10]), pull("many", AGREED + noise[:40])
    result = votes.run(write(tmp_path, {"judge": [few, many]}))
    assert result.scores["judge"]["few"].kept == 1
    assert result.scores["judge"]["many"].kept == 0


def test_each_judge_is_scored_apart_over_all_its_pull_requests(tmp_path: Path) -> None:
    content = {"one": [pull("r", AGREED), pull("s", AGREED)], "two": [pull("r", ALONE)]}
    result = votes.run(write(tmp_path, content))
    assert result.total("one") == votes.Score(kept=2, hits=2, found=2, gold=4)
    assert result.total("two") == votes.Score(kept=0, hits=0, found=0, gold=2)
    assert result.total("two").f1 == 0.0


def test_json_gives_percent_with_one_decimal_by_judge(tmp_path: Path) -> None:
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED + ALONE)]}))
    assert json.loads(votes.render_json(result)) == {
        "judge": {"precision": 100.0, "recall": 50.0, "f1": 66.7}
    }


def test_the_table_has_a_row_by_repository_and_one_for_all(tmp_path: Path) -> None:
    result = votes.run(write(tmp_path, {"judge": [pull("r", AGREED), pull("s", ALONE)]}), hold_out=True)
    rows = [line.split()[1:-5] for line in votes.render(result).splitlines()[1:]]
    assert rows == [["r"], ["s"], ["all"], ["all,", "held", "out"]]


def test_each_repository_is_scored_with_the_setting_that_is_best_on_the_others(tmp_path: Path) -> None:
    # In r a pair of reviewers is wrong, in s a pair is right: each would choose the other's opposite.
    nits = [
        candidate("c", f"{word} nit") for word in ("alpha", "beta", "gamma", "delta", "zeta", "eta", "iota")
    ]
    wrong = [candidate(name, text) for name, text in zip("ab", TYPO, strict=True)]
    right = [candidate(name, text, 0) for name, text in zip("ab", LEAK[1:], strict=True)]
    content = {"judge": [pull("r", AGREED + wrong + nits[:4], 1), pull("s", right + nits, 1)]}
    held_out = votes.run(write(tmp_path, content), hold_out=True).held_out
    r_by_s, s_by_r = votes.Score(kept=2, hits=1, found=1, gold=1), votes.Score(gold=1)
    assert held_out == {"judge": r_by_s + s_by_r}


def test_one_repository_cannot_be_held_out(tmp_path: Path) -> None:
    assert votes.run(write(tmp_path, {"judge": [pull("r", AGREED)]}), hold_out=True).held_out is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no json", "Invalid JSON"),
        ('{"judge": [{"url": "u", "repo": "r", "gold": []}]}', "judge.0.candidates: Field required"),
        (json.dumps({"judge": [pull("r", [candidate("a", "")])]}), "judge.0.candidates.0.text"),
        (json.dumps({"judge": [pull("r", [candidate("a", "x", 2)])]}), "matches gold that is not listed"),
        (json.dumps({"judge": [pull("r", [candidate("a", "x", -1)])]}), "matches gold that is not listed"),
    ],
)
def test_an_unusable_file_is_one_line_that_names_it(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "votes.json"
    path.write_text(content)
    with pytest.raises(ReviewError, match=said) as caught:
        votes.run(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match=r"absent\.json: No such file or directory; name a readable file"):
        votes.run(tmp_path / "absent.json")
