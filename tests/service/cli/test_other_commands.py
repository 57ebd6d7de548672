"""`whitesmoke config`, `checklist`, `bench`, `demo` and the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from service.cli import main as entry
from service.policy import Policy, policy_schema
from tests.kit.checkouts import Repo

ROOT = Path(__file__).parents[3]


class TestConfig:
    def test_check_says_that_a_file_is_valid(self, run, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yml"
        policy.write_text("review: {reps: 3, quorum: 2, agentic_reps: 1}\n")
        assert run("config", "check", policy).out == f"{policy} is valid\n"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("review:\n  reps: 2\n", "quorum 3 exceeds reps 2"),
            ("review:\n  reps: 3\n  agentic_reps: 4\n", "agentic_reps 4 exceeds reps 3"),
            ("review:\n  ignore: ['[z-a]']\n", "is not a valid glob"),
            ("review:\n  language: fr\n", "policy.yml:2"),
            ("review:\n\treps: 3\n", "policy.yml:2"),
            ("reviews: {}\n", "review"),
        ],
    )
    def test_check_names_the_line_and_what_was_expected(
        self, run, tmp_path: Path, text: str, words: str
    ) -> None:
        policy = tmp_path / "policy.yml"
        policy.write_text(text)
        ran = run("config", "check", policy)
        assert ran.status == 2
        assert "policy.yml:" in ran.err
        assert words in ran.err

    def test_show_prints_the_policy_of_the_base_branch_with_its_defaults(self, run, repo: Repo) -> None:
        repo.git("switch", "--quiet", "main")
        repo.commit({".whitesmoke.yml": "review: {reps: 7}\n"})
        shown = yaml.safe_load(run("config", "show", "--repo", repo.folder).out)
        assert Policy.model_validate(shown).review.reps == 7
        assert shown["review"]["quorum"] == 3

    def test_the_schema_accepts_what_the_policy_accepts_and_is_the_published_one(self, run) -> None:
        printed = run("config", "schema").out
        jsonschema.validate({"review": {"reps": 3, "language": "zh"}}, json.loads(printed))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"review": {"repz": 3}}, json.loads(printed))
        assert printed == policy_schema() == (ROOT / "docs" / "policy.schema.json").read_text()


class TestChecklist:
    def test_list_shows_every_item_in_either_language(self, run) -> None:
        assert "general.state-invariants" in run("checklist", "list").out
        assert "状态不变量" in run("checklist", "list", "general", "--language", "zh").out

    def test_show_tells_what_detects_an_item(self, run) -> None:
        out = run("checklist", "show", "python.mutable-default").out
        assert "ruff: B006" in out

    def test_an_unknown_item_is_met_with_a_near_one(self, run) -> None:
        ran = run("checklist", "show", "python.mutable-defaults")
        assert (ran.status, "did you mean python.mutable-default?" in ran.err) == (2, True)

    def test_an_unknown_checklist_is_met_with_those_there_are(self, run) -> None:
        assert "use one of: general, python" in run("checklist", "list", "pyhton").err


class TestBench:
    def test_review_measures_a_given_patch(self, run, repo: Repo, tmp_path: Path) -> None:
        patch = tmp_path / "small.patch"
        patch.write_text(repo.git("diff", "main", "pull") + "\n")
        figures = json.loads(run("bench", "review", "--patch", patch, "--json").out)
        assert (figures["files"], figures["added"]) == (1, 5)
        assert [stage["name"] for stage in figures["stages"]] == [
            "parse",
            "parse+plan",
            "cluster 1000",
            "cluster 10000",
            "render",
        ]
        assert figures["unidiff_ratio"] > 0

    def test_pairs_prints_precision_and_recall_of_the_shipped_set(self, run) -> None:
        figures = json.loads(run("bench", "pairs", "--json").out)
        assert 0.9 < figures["all"]["precision"] <= 1
        assert 0.8 < figures["all"]["recall"] <= 1


class TestDemo:
    def test_two_rounds_from_recorded_completions_tell_the_whole_story(self, run, tmp_path: Path) -> None:
        out = tmp_path / "demo"
        ran = run("demo", "--out", out)
        assert ran.status == 0
        first, second = (json.loads((out / f"round-{index}" / "report.json").read_text()) for index in (1, 2))

        assert first["verdict"]["outcome"] == "BLOCKED"
        assert first["kpi"]["reps"] == 5
        assert first["kpi"]["agentic_reps"] == 2
        assert first["kpi"]["fact_check"]["refuted"] == 1
        assert first["kpi"]["tool_calls"] > 0
        assert "1 of 7 reps" in " ".join(one["demoted"] for one in first["non_blocking"])
        assert second["verdict"]["outcome"] == "LGTM"
        assert second["kpi"]["recheck"]["fixed"] == 11
        assert {one["state"] for one in second["closed"]} == {"fixed"}
        assert first["warnings"] == second["warnings"] == []
        for index in (1, 2):
            names = {path.name for path in (out / f"round-{index}").iterdir()}
            assert names == {"round.md", "review.md", "inline.md", "report.json", "report.sarif"}

    def test_it_can_be_run_again_but_never_empties_a_folder_of_somebody_elses(
        self, run, tmp_path: Path
    ) -> None:
        assert run("demo", "--out", tmp_path / "demo").status == 0
        assert run("demo", "--out", tmp_path / "demo").status == 0
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("x")
        ran = run("demo", "--out", tmp_path / "mine")
        assert (ran.status, "is not empty" in ran.err) == (2, True)
        assert (tmp_path / "mine" / "thesis.txt").exists()

    def test_the_recording_is_the_one_that_sample_answers_prompts_and_checklists_give(
        self, tmp_path: Path
    ) -> None:
        import asyncio

        from service.demo.play import RECORDING
        from service.demo.record import record

        made = tmp_path / "recording.jsonl"
        asyncio.run(record(made))
        # Reps answer at once, in no fixed order.
        lines = [sorted(one.read_text().splitlines()) for one in (made, RECORDING)]
        assert lines[0] == lines[1], "stale: run `python -m service.demo.record`"


class TestCommand:
    def test_help_names_every_command_and_imports_none(self) -> None:
        code = (
            "import sys; sys.argv = ['whitesmoke', '--help']\n"
            "from service.cli.main import main\n"
            "try: main()\nexcept SystemExit: pass\n"
            "print(sorted({'numpy', 'scipy', 'openai', 'pydantic', 'jinja2'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("[]\n")
        assert all(name in done.stdout for name, (_, about) in entry._COMMANDS.items() if about)

    def test_a_wrong_option_is_a_usage_error(self, run) -> None:
        ran = run("review", "--rep", "3")
        assert (ran.status, "No such option" in ran.err) == (2, True)

    def test_an_unexpected_fault_is_one_line_that_says_how_to_report_it(
        self, run, monkeypatch: pytest.MonkeyPatch, repo: Repo
    ) -> None:
        monkeypatch.setattr("service.review.open_local", lambda *_: 1 / 0)
        ran = run("review", "--repo", repo.folder)
        assert ran.status == 2
        assert "unexpected ZeroDivisionError" in ran.err
        assert "WHITESMOKE_DEBUG=1" in ran.err
