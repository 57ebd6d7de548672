"""`whitesmoke review` as its users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from reviewer.model import RoundReport
from reviewer.report.serial import json_schema
from tests.kit.checkouts import Repo


def test_without_a_model_the_detectors_review_and_the_report_says_that_no_model_did(run, repo: Repo) -> None:
    ran = run("review", "--repo", repo.folder)
    assert "no model reviews this change, only detectors" in ran.err
    assert "load.py:1" in ran.out
    assert "no model" in ran.out.lower()


def test_a_clean_change_passes_with_exit_status_0_and_detectors_only(run, repo: Repo) -> None:
    repo.git("switch", "--quiet", "-c", "clean", "main")
    repo.commit({"app.py": "x = 2\n"})
    ran = run("review", "--repo", repo.folder, "--format", "summary")
    assert ran.status == 0
    assert "LGTM (detectors only)" in ran.out


def test_a_blocking_detector_finding_has_exit_status_1(run, repo: Repo) -> None:
    repo.commit({"check.py": 'def check(value):\n    assert (value > 0, "positive")\n'})
    ran = run("review", "--repo", repo.folder, "--format", "summary")
    assert ran.status == 1
    assert "BLOCKED(1)" in ran.out


def test_json_validates_against_the_published_schema(run, repo: Repo) -> None:
    report = json.loads(run("review", "--repo", repo.folder, "--format", "json").out)
    jsonschema.validate(report, json.loads(json_schema()))
    assert report["pull"]["title"] == "Add a loader"
    assert report["pull"]["body"] == "It loads."


def test_sarif_goes_to_a_file(run, repo: Repo, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.sarif"
    ran = run("review", "--repo", repo.folder, "--format", "sarif", "--out", out)
    assert ran.out == ""
    assert json.loads(out.read_text())["version"] == "2.1.0"


def test_the_same_head_reprints_its_round_and_a_new_head_is_the_next_round(run, repo: Repo) -> None:
    first = run("review", "--repo", repo.folder, "--format", "json")
    again = run("review", "--repo", repo.folder, "--format", "json")
    assert "was reviewed in round 1" in again.err
    assert again.out == first.out

    repo.commit({"load.py": "def load(path, cache):\n    return cache.get(path)\n"})
    second = RoundReport.model_validate_json(run("review", "--repo", repo.folder, "--format", "json").out)
    assert second.round_index == 2
    assert {one.recheck for one in second.closed} == {"fixed"}
    assert len(second.closed) == RoundReport.model_validate_json(first.out).kpi.detector_findings


def test_full_reviews_the_same_head_in_a_new_round(run, repo: Repo) -> None:
    run("review", "--repo", repo.folder)
    ran = run("review", "--repo", repo.folder, "--full", "--format", "json")
    assert json.loads(ran.out)["round_index"] == 2


def test_the_policy_comes_from_the_base_branch_and_not_from_the_pull_request(run, repo: Repo) -> None:
    repo.commit({".whitesmoke.yml": "version: 1\nreview:\n  ignore: ['**']\n"})
    assert "load.py:1" in run("review", "--repo", repo.folder).out

    repo.git("switch", "--quiet", "main")
    repo.commit({".whitesmoke.yml": "version: 1\nreview:\n  language: zh\n"})
    assert "第 2 轮" in run("review", "--repo", repo.folder, "--head", "pull", "--full").out


CHECKLIST = """\
checklist: house
name: {en: House rules, zh: 内部规范}
sections:
  - id: H
    name: {en: Names, zh: 命名}
    items:
      - id: house.no-load
        text: {en: "Names: nothing is called load", zh: 命名：不使用 load}
        severity: P1
        blocking: true
        detector:
          kind: ast_grep
          rules: [{language: python, rule: {pattern: "def load($$$): $$$"}}]
          title: {en: A function is called load, zh: 函数名为 load}
          why: {en: It says nothing., zh: 含义不明。}
          fix: {en: Say what it loads., zh: 说明加载什么。}
"""


def test_a_checklist_of_the_base_branch_is_used_and_a_wrong_one_names_its_line(run, repo: Repo) -> None:
    repo.git("switch", "--quiet", "main")
    policy = "review: {checklists: [python, checks/house.yaml]}\n"
    repo.commit({".whitesmoke.yml": policy, "checks/house.yaml": CHECKLIST})
    ran = run("review", "--repo", repo.folder, "--head", "pull", "--format", "summary")
    assert (ran.status, "A function is called load" in ran.out) == (1, True)

    repo.commit({"checks/house.yaml": CHECKLIST.replace("severity: P1", "severity: P9")})
    ran = run("review", "--repo", repo.folder, "--head", "pull", "--full")
    assert (ran.status, "checks/house.yaml:9" in ran.err) == (2, True)

    repo.commit({"checks/house.yaml": None})
    assert (
        "'checks/house.yaml' does not exist"
        in run("review", "--repo", repo.folder, "--head", "pull", "--full").err
    )


def test_a_patch_file_is_reviewed_without_touching_the_repository(run, repo: Repo, tmp_path: Path) -> None:
    patch = tmp_path / "change.patch"
    patch.write_text(repo.git("diff", "main", "pull") + "\n")
    repo.git("switch", "--quiet", "main")
    before = repo.git("count-objects", "-v")
    ran = run("review", "--repo", repo.folder, "--patch", patch)
    assert "load.py:1" in ran.out
    assert repo.git("count-objects", "-v") == before


def test_a_dismissed_finding_leaves_the_report_and_reopening_brings_it_back(run, repo: Repo) -> None:
    repo.commit({"check.py": 'def check(value):\n    assert (value > 0, "positive")\n'})
    report = json.loads(run("review", "--repo", repo.folder, "--format", "json").out)
    (blocker,) = report["blocking"]

    assert run("dismiss", blocker["id"], "--reason", "trusted input", "--repo", repo.folder).status == 0
    assert run("review", "--repo", repo.folder, "--format", "summary").status == 0
    assert run("reopen", blocker["id"], "--repo", repo.folder).status == 0
    assert run("review", "--repo", repo.folder, "--format", "summary").status == 1


def test_a_replay_of_a_recording_gives_the_same_bytes(run, repo: Repo, tmp_path: Path) -> None:
    """A whole round replays byte for byte, whoever reviews the machine it runs on."""
    from tests.service.cli.recordings import record_round

    recording = record_round(repo, tmp_path / "round.jsonl")
    arguments = (
        "review",
        "--repo",
        repo.folder,
        "--engine",
        "replay",
        "--recording",
        recording,
        "--format",
        "json",
    )
    first = run(*arguments, "--data", tmp_path / "one")
    second = run(*arguments, "--data", tmp_path / "two")
    assert first.out == second.out
    assert json.loads(first.out)["kpi"]["discover_ok"] == 5


def test_reps_lower_the_quorum_to_their_majority(run, repo: Repo, tmp_path: Path) -> None:
    from tests.service.cli.recordings import record_round

    recording = record_round(repo, tmp_path / "round.jsonl", reps=2)
    arguments = ("--engine", "replay", "--recording", recording, "--reps", "2", "--format", "json")
    report = json.loads(run("review", "--repo", repo.folder, *arguments).out)
    assert (report["kpi"]["reps"], report["kpi"]["discover_ok"]) == (2, 2)


def test_progress_counts_reps_and_shards_on_standard_error(run, repo: Repo, tmp_path: Path) -> None:
    from tests.service.cli.recordings import record_round

    recording = record_round(repo, tmp_path / "round.jsonl")
    ran = run("review", "--repo", repo.folder, "--engine", "replay", "--recording", recording)
    assert "discover   5/5  rep" in ran.err


class TestBadInput:
    """One line that says what is wrong and what to do; exit status 2; nothing lost."""

    def refused(self, ran, *words: str) -> None:
        assert ran.status == 2
        (line,) = [line for line in ran.err.splitlines() if line.startswith("whitesmoke: ")]
        for word in words:
            assert word in line

    def test_an_unknown_reference(self, run, repo: Repo) -> None:
        self.refused(run("review", "--repo", repo.folder, "--base", "mian"), "'mian'", "did you mean main?")

    def test_no_repository(self, run, tmp_path: Path) -> None:
        self.refused(run("review", "--repo", tmp_path), "is not a git repository")

    def test_no_merge_base(self, run, repo: Repo) -> None:
        repo.git("switch", "--quiet", "--orphan", "other")
        repo.commit({"z.py": "z = 1\n"})
        self.refused(run("review", "--repo", repo.folder), "no common commit")

    def test_a_shallow_clone(self, run, repo: Repo, tmp_path: Path) -> None:
        shallow = tmp_path / "shallow"
        repo.git("clone", "--quiet", "--depth=1", "--no-single-branch", f"file://{repo.folder}", str(shallow))
        self.refused(
            run("review", "--repo", shallow, "--base", "origin/main", "--head", "origin/pull"),
            "shallow clone",
            "fetch --unshallow",
        )

    def test_an_invalid_policy_names_file_and_line(self, run, repo: Repo, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yml"
        policy.write_text("version: 1\nreview:\n  repz: 3\n")
        self.refused(run("review", "--repo", repo.folder, "--config", policy), "policy.yml:3", "reps")

    def test_a_missing_patch(self, run, repo: Repo) -> None:
        self.refused(run("review", "--repo", repo.folder, "--patch", "nowhere.patch"), "nowhere.patch")

    def test_a_patch_that_does_not_apply(self, run, repo: Repo, tmp_path: Path) -> None:
        patch = tmp_path / "bad.patch"
        patch.write_text("--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-y = 9\n+y = 8\n")
        self.refused(run("review", "--repo", repo.folder, "--patch", patch), "does not apply")

    def test_a_patch_of_200_mb(self, run, repo: Repo, tmp_path: Path) -> None:
        patch = tmp_path / "huge.patch"
        with patch.open("wb") as file:
            file.truncate(200_000_000)
        self.refused(run("review", "--repo", repo.folder, "--patch", patch), "64.0 MiB is the limit")

    def test_an_unreachable_endpoint(self, run, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key")
        ran = run("review", "--repo", repo.folder, "--model", "any")
        self.refused(ran, "127.0.0.1:9")
        assert "sk-not-a-key" not in ran.err

    def test_an_endpoint_without_a_model(self, run, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key")
        self.refused(run("review", "--repo", repo.folder), "no model is named", "--model")

    def test_replay_without_a_recording(self, run, repo: Repo) -> None:
        self.refused(run("review", "--repo", repo.folder, "--engine", "replay"), "--recording FILE")

    def test_a_malformed_ledger_is_named_and_kept(self, run, repo: Repo, data: Path) -> None:
        run("review", "--repo", repo.folder)
        (ledger,) = (data / "ledgers").glob("*.json")
        ledger.write_text("{")
        self.refused(run("review", "--repo", repo.folder), str(ledger))
        assert ledger.read_text() == "{"

    def test_a_report_that_cannot_be_written(self, run, repo: Repo) -> None:
        self.refused(
            run("review", "--repo", repo.folder, "--out", "/proc/report.md"), "cannot write /proc/report.md"
        )

    def test_a_reader_that_goes_away_is_no_traceback(self, repo: Repo, tmp_path: Path) -> None:
        command = f"{sys.executable} -m service.cli.main review --repo {repo.folder} --data {tmp_path} 2>err | true; cat err"
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert "Traceback" not in done.stdout


class TestOddButFine:
    def test_a_detached_head(self, run, repo: Repo) -> None:
        repo.git("switch", "--quiet", "--detach")
        assert "load.py:1" in run("review", "--repo", repo.folder).out

    def test_an_empty_diff(self, run, repo: Repo) -> None:
        ran = run("review", "--repo", repo.folder, "--head", "main", "--format", "summary")
        assert (ran.status, "LGTM" in ran.out) == (0, True)

    def test_a_diff_of_binary_files_alone_names_them(self, run, repo: Repo) -> None:
        repo.git("switch", "--quiet", "-c", "binary", "main")
        (repo.folder / "logo.png").write_bytes(b"\x89PNG\0\0\1")
        repo.commit({})
        assert "logo.png" in run("review", "--repo", repo.folder).out
