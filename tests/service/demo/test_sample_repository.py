"""The sample repository: built the same everywhere, with faults that are real and a push that mends them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from reviewer.errors import GitError
from service.demo import sample

ROOT = Path(__file__).parents[3]
DATA = ROOT / "service" / "demo" / "sample"

# Each prints what a user of the sample would see; base and fix agree, the pull request as opened does not.
ONE_TOKEN_OVER_A_PAGE = """
import numpy as np
from quire.cache import PagedCache
cache = PagedCache(num_pages=4, page_size=4, width=1, max_requests=2)
def put(name, number):
    token = np.full((1, 1), number, np.float32)
    if hasattr(cache, "append"):
        cache.append(name, token[0], token[0])
    else:
        from quire.cache import Write
        cache.append_batch([Write(name, token, token)])
for name in "ab":
    cache.open(name)
for number in (1, 2):
    put("a", number)
for number in range(10, 15):
    put("b", number)
print(cache.read("a")[0].ravel().tolist())
"""
TWO_PROMPTS_FOR_ONE = """
from quire import PagedCache, Request, Scheduler
from quire.toy import ToyModel
scheduler = Scheduler(PagedCache(2, 4, 1, 4), ToyModel(1), 4)
for name in "ab":
    scheduler.submit(Request(name, [1] * 6, 2))
done = []
while scheduler.waiting or scheduler.running:
    done += [request.id for request in scheduler.step()]
print(done)
"""
ROW_OF_ZEROS = """
import numpy as np
from quire.cache import PagedCache, Write
np.seterr(all="raise")
cache = PagedCache(2, 4, 3, 1, "int8")
cache.open("a")
zeros = np.zeros((2, 3), np.float32)
cache.append_batch([Write("a", zeros, zeros)])
print(cache.read("a")[0].any())
"""


def git(repo: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repo, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory, sample_repos: tuple[Path, Path]) -> dict[str, Path]:
    """Checked-out files: the base, the pull request as opened (`change`), and after the push (`fix`)."""
    opened, pushed = sample_repos
    folder = tmp_path_factory.mktemp("trees")
    trees = {}
    for name, repo, branch in (
        ("base", opened, "main"),
        ("change", opened, "pull"),
        ("fix", pushed, "pull"),
    ):
        trees[name] = folder / name
        trees[name].mkdir()
        archive = subprocess.run(["git", "archive", branch], cwd=repo, check=True, capture_output=True)
        subprocess.run(["tar", "-x"], cwd=trees[name], input=archive.stdout, check=True)
    return trees


def run(tree: Path, *arguments: str) -> str:
    """What Python prints in the tree; its last line of stderr where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_commit_ids_are_the_same_whatever_the_users_git_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_repos: tuple[Path, Path]
) -> None:
    home = tmp_path / "home"
    hooks = home / "hooks"
    (home / ".config" / "git").mkdir(parents=True)
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    (home / ".gitconfig").write_text(
        f"[commit]\n\tgpgSign = true\n[core]\n\tautocrlf = true\n\thooksPath = {hooks}\n"
        "[init]\n\tdefaultBranch = trunk\n[rebase]\n\tautoSquash = true\n"
    )
    (home / ".config" / "git" / "ignore").write_text("*.py\n")
    (home / ".config" / "git" / "attributes").write_text("* text eol=crlf\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    before = os.umask(0o077)
    try:
        sample.build(tmp_path / "sample")
        sample.push_fix(tmp_path / "sample")
    finally:
        os.umask(before)
        monkeypatch.undo()

    def refs(repo: Path) -> str:
        return git(repo, "for-each-ref", "--format=%(refname) %(objectname)")

    assert refs(tmp_path / "sample") == refs(sample_repos[1])
    assert git(tmp_path / "sample", "status", "--porcelain") == ""


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(GitError, match="is not empty; name a new or empty folder"):
        sample.build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_push_into_no_repository_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GitError, match=r"^git switch failed in .*: fatal: not a git repository.*anew$"):
        sample.push_fix(tmp_path)


def test_a_machine_without_git_is_told_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="install git"):
        sample.build(tmp_path / "sample")


def test_building_leaves_the_pull_request_checked_out(sample_repos: tuple[Path, Path]) -> None:
    assert git(sample_repos[0], "branch", "--show-current") == sample.HEAD
    assert git(sample_repos[0], "status", "--porcelain") == ""


def test_the_pull_request_mixes_faults_with_innocent_changes(sample_repos: tuple[Path, Path]) -> None:
    opened, _ = sample_repos
    status = git(opened, "diff", "--name-status", "--find-renames", "main...pull").splitlines()
    assert len(git(opened, "rev-list", "main..pull").split()) == 3
    assert "R100\tdocs/pages.md\tdocs/page-format.md" in status
    assert {"M\tpoetry.lock", "M\tquire/layouts.py", "M\tdocs/pages.png", "M\tquire/toy.py"} <= set(status)
    assert "-\t-\tdocs/pages.png" in git(opened, "diff", "--numstat", "main...pull").splitlines()


def test_the_push_rebases_onto_two_new_commits_and_keeps_both_sides_changes(
    sample_repos: tuple[Path, Path],
) -> None:
    opened, pushed = sample_repos
    assert git(pushed, "merge-base", "main", "pull") == git(pushed, "rev-parse", "main")
    old_main, old_pull = git(opened, "rev-parse", "main"), git(opened, "rev-parse", "pull")
    assert len(git(pushed, "rev-list", f"{old_main}..main").split()) == 2
    assert len(git(pushed, "rev-list", "main..pull").split()) == 3
    assert old_pull not in git(pushed, "rev-list", "pull").split()
    readme = git(pushed, "show", "pull:README.md")
    assert "the kernels too" in readme
    assert "`page_format`" in readme


@pytest.mark.parametrize("name", ["base", "change", "fix"])
def test_the_samples_own_tests_pass(name: str, trees: dict[str, Path]) -> None:
    arguments = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", "tests")
    assert " passed, 1 skipped" in run(trees[name], *arguments)


def test_the_fixed_tests_fail_on_the_pull_request_as_opened(trees: dict[str, Path], tmp_path: Path) -> None:
    for name in ("test_cache.py", "test_scheduler.py"):
        (tmp_path / name).write_bytes((trees["fix"] / "tests" / name).read_bytes())
    arguments = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider")
    told = subprocess.run(
        [sys.executable, *arguments, str(tmp_path)],
        cwd=trees["change"],
        env={**os.environ, "PYTHONPATH": str(trees["change"]), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 1
    for test in ("stay_in_the_request_s_own_pages", "run_one_after_the_other", "ends_the_same"):
        assert test in told.stdout


@pytest.mark.parametrize(
    ("name", "kept"), [("base", "[1.0, 2.0]"), ("change", "[14.0, 2.0]"), ("fix", "[1.0, 2.0]")]
)
def test_fault_a_token_over_a_page_boundary_corrupts_another_request(
    name: str, kept: str, trees: dict[str, Path]
) -> None:
    assert run(trees[name], "-c", ONE_TOKEN_OVER_A_PAGE) == kept


@pytest.mark.parametrize(
    ("name", "outcome"), [("base", "['a', 'b']"), ("change", "OutOfPages"), ("fix", "['a', 'b']")]
)
def test_fault_prompts_that_do_not_fit_together_are_admitted(
    name: str, outcome: str, trees: dict[str, Path]
) -> None:
    assert outcome in run(trees[name], "-c", TWO_PROMPTS_FOR_ONE)


def test_the_refuted_claim_is_false_a_row_of_zeros_reads_back_as_zeros(trees: dict[str, Path]) -> None:
    assert run(trees["change"], "-c", ROW_OF_ZEROS) == "False"


def test_the_simulation_shows_the_corruption_and_its_end(trees: dict[str, Path]) -> None:
    outputs = {
        name: run(tree, "-m", "quire", "simulate", "examples/trace.json") for name, tree in trees.items()
    }
    assert outputs["base"].startswith("greeting: [60, ")
    assert outputs["fix"] == outputs["base"] != outputs["change"]


def test_the_generated_file_of_every_tree_is_current(trees: dict[str, Path]) -> None:
    for tree in trees.values():
        before = (tree / "quire" / "layouts.py").read_text("utf-8")
        run(tree, "tools/make_layouts.py")
        assert (tree / "quire" / "layouts.py").read_text("utf-8") == before


def test_the_wheel_ships_the_sample_and_the_words() -> None:
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    wanted = {path for path in DATA.rglob("*") if path.is_file()} | {DATA.with_name("answers.yaml")}
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= shipped
