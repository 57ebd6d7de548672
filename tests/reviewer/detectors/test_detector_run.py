"""How a run behaves: what it reports, what it survives, and what it never does."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reviewer.checklist import Item, load_text
from reviewer.detectors import analysis, bandit, ruff
from reviewer.detectors.run import MAX_SPAN, DetectorRun, detect
from reviewer.detectors.tree import MAX_FILE_BYTES

Detect = Callable[..., DetectorRun]

DEFAULT = "def f(x=[]):\n    return x\n"


def places(run: DetectorRun) -> list[tuple[str, int]]:
    return [(finding.path, finding.line_start) for finding in run.findings]


def test_only_findings_on_changed_lines_are_reported(run_detectors: Detect) -> None:
    text = DEFAULT + "def g(x={}):\n    return x\n"
    run = run_detectors({"a.py": text}, ["python.mutable-default"], changed={"a.py": {3}})
    assert places(run) == [("a.py", 3)]
    assert run_detectors({"a.py": text}, ["python.mutable-default"], changed={}).findings == ()


def test_a_finding_over_several_lines_counts_when_any_of_them_changed(run_detectors: Detect) -> None:
    text = "value = getattr(\n    owner,\n    'name',\n)\n"
    for line, found in ((1, 1), (3, 1), (4, 1), (5, 0)):
        run = run_detectors({"a.py": text}, ["python.literal-attribute-access"], changed={"a.py": {line}})
        assert [(finding.line_start, finding.line_end) for finding in run.findings] == [(1, 4)] * found


def test_a_long_stretch_is_reported_at_its_first_line(run_detectors: Detect) -> None:
    text = "import os\nos.system(\n    a +" + "\n" * MAX_SPAN + "    b\n)\n"
    (finding,) = run_detectors({"a.py": text}, ["python.shell-command"]).findings
    assert finding.line_start == finding.line_end


def test_one_finding_for_a_rule_and_line(run_detectors: Detect) -> None:
    run = run_detectors({"a.py": "def f(x=[], y={}, z=set()): ...\n"}, ["python.mutable-default"])
    assert [(finding.line_start, finding.source) for finding in run.findings] == [(1, "ruff:B006")]


def test_findings_do_not_depend_on_the_order_of_files_or_items(run_detectors: Detect) -> None:
    files = {f"{name}.py": DEFAULT + "eval(x)\ngetattr(a, 'b')\n" for name in "cab"}
    ids = ["python.literal-attribute-access", "python.dynamic-code", "python.mutable-default"]
    first = run_detectors(files, ids)
    second = run_detectors(dict(reversed(files.items())), ids[::-1])
    assert first == second
    assert places(first) == sorted(places(first))
    assert len(first.findings) == 9


def test_words_are_in_the_wanted_language(run_detectors: Detect, all_items: dict[str, Item]) -> None:
    detector = all_items["python.mutable-default"].detector
    assert detector is not None
    for language, title in (("en", detector.title.en), ("zh", detector.title.zh)):
        (finding,) = run_detectors({"a.py": DEFAULT}, ["python.mutable-default"], language=language).findings
        assert finding.title == title
        assert finding.body
        assert finding.suggestion


def test_a_secret_is_reported_and_never_repeated(run_detectors: Detect, all_cases: dict[str, object]) -> None:
    text = "key = AK" + "IAQ7ZNB3KX5WVTRUHD\n"
    (finding,) = run_detectors({"a.ini": text}, ["general.secrets-in-code"]).findings
    assert "AKIA" not in finding.model_dump_json()
    assert finding.line_start == 1


def test_comments_of_the_author_silence_nothing(run_detectors: Detect) -> None:
    text = (
        "import subprocess\n"
        "def f(x=[]): ...  # noqa: B006\n"
        "subprocess.run(f'ls {x}', shell=True)  # nosec  # noqa\n"
        "# ruff: noqa\n"
    )
    run = run_detectors({"a.py": text}, ["python.mutable-default", "python.shell-command"])
    assert places(run) == [("a.py", 2), ("a.py", 3)]


def test_settings_in_the_change_silence_nothing(run_detectors: Detect) -> None:
    files = {
        "a.py": DEFAULT + "eval(x)\n",
        "ruff.toml": 'exclude = ["*"]\n',
        ".ruff.toml": 'exclude = ["*"]\n',
        "pyproject.toml": '[tool.ruff]\nexclude = ["*"]\n[tool.bandit]\nexclude_dirs = ["."]\n',
        ".bandit": "[bandit]\nexclude = .\n",
        ".gitignore": "*\n",
    }
    assert places(run_detectors(files, ["python.mutable-default", "python.dynamic-code"])) == [
        ("a.py", 1),
        ("a.py", 3),
    ]


def test_code_of_the_change_is_never_imported_or_executed(run_detectors: Detect, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    text = f"open({str(marker)!r}, 'w').close()\n"
    names = ("json", "yaml", "bandit", "ruff", "sitecustomize", "reviewer/__init__", "__init__", "conftest")
    run = run_detectors({f"{name}.py": text for name in names})
    assert run.failures == ()
    assert not marker.exists()


def test_settings_above_the_temporary_folder_silence_nothing(tmp_path: Path) -> None:
    (tmp_path / "ruff.toml").write_text('[lint.per-file-ignores]\n"*" = ["B006"]\n')
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "f0.py").write_text(DEFAULT)
    assert [hit.rule for hit in ruff.analyse(folder, ["f0.py"], {"B006"}).hits] == ["B006"]


def test_python_starts_no_module_from_the_folder_it_examines(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    (tmp_path / "bandit.py").write_text("raise SystemExit(3)")
    assert bandit.analyse(tmp_path, ["json.py"], {"B602"}).hits == []


def test_a_package_file_keeps_the_names_that_only_it_has(run_detectors: Detect) -> None:
    run = run_detectors(
        {"a/__init__.py": "print(__path__)\n", "b.py": "print(__path__)\n"}, ["python.undefined-name"]
    )
    assert places(run) == [("b.py", 1)]


def test_lines_are_right_with_windows_line_ends(run_detectors: Detect) -> None:
    text = "import os\r\n\r\n" + DEFAULT.replace("\n", "\r\n")
    (finding,) = run_detectors({"a.py": text}, ["python.mutable-default"]).findings
    assert (finding.line_start, finding.quoted_code) == (3, "def f(x=[]):")


UNREADABLE = {
    "syntax": b"def f(:\n",
    "huge": b"x = 1\n" * (MAX_FILE_BYTES // 6 + 1),
    "binary": b"\0\1\2" * 100,
    "latin": "x = 'ü'\n".encode("latin-1"),
    "return": b"x = 1\r# y\n",
    "nested": b"(" * 200_000,
    "signs": b"x = " + b"-" * 200_000 + b"1\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named_and_its_items_did_not_run(
    run_detectors: Detect, all_items: dict[str, Item], name: str
) -> None:
    ids = [each for each in all_items if each.startswith(("python.", "general."))]
    run = run_detectors({"bad.py": UNREADABLE[name], "good.txt": "hello\n"}, ids)
    assert any(failure.startswith("bad.py: ") for failure in run.failures)
    assert "python.float-equality" not in run.ran
    assert run.findings == ()


def test_a_file_that_cannot_be_read_costs_no_finding_in_another(run_detectors: Detect) -> None:
    files = {f"{name}.py": content for name, content in UNREADABLE.items()} | {"a.py": DEFAULT}
    run = run_detectors(files, ["python.mutable-default", "python.literal-attribute-access"])
    assert ("a.py", 1) in places(run)
    assert run.ran == frozenset()


def test_pictures_are_no_failure(run_detectors: Detect) -> None:
    run = run_detectors({"logo.png": b"\x89PNG\0\0\xff", "a.py": "x = 1\n"})
    assert run.failures == ()
    assert "general.secrets-in-code" in run.ran


def test_deep_nesting_in_native_code_does_not_end_the_round(run_detectors: Detect) -> None:
    files = {
        "deep.cu": "{" * 50_000,
        "call.cpp": "f(" * 50_000,
        "a.cpp": "void f(char* a, char* b) { strcpy(a, b); }\n",
    }
    run = run_detectors(files, ["cpp.bounded-copies", "cpp.virtual-destructor", "general.secrets-in-code"])
    assert places(run) == [("a.cpp", 1)] or any(failure.startswith("ast_grep: ") for failure in run.failures)
    assert "cpp.virtual-destructor" in run.ran


def test_arbitrary_bytes_under_any_name_end_in_an_answer(run_detectors: Detect) -> None:
    source = random.Random(5)
    alphabet = [
        b"(",
        b")",
        b"{",
        b"}",
        b"<<<",
        b">>>",
        b"\n",
        b"'",
        b'"""',
        b"#",
        b"//",
        b"/*",
        b"def f",
        b"\xff",
        b"\r",
        b'R"(',
    ]
    files = {
        f"f{number}{suffix}": b" ".join(source.choices(alphabet, k=60))
        for number, suffix in enumerate(
            source.choices([".py", ".pyi", ".cu", ".h", ".cpp", ".txt", ""], k=80)
        )
    }
    run = run_detectors(files)
    assert run.failures
    assert run == run_detectors(files)


def test_an_analyser_that_hangs_is_ended_and_named(
    run_detectors: Detect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "TIMEOUT_SECONDS", 0.001)
    run = run_detectors({"a.py": DEFAULT}, ["python.mutable-default"])
    assert run.failures == ("ruff: no answer within 0 s",)
    assert run.ran == frozenset()


def test_an_analyser_that_crashes_is_named(run_detectors: Detect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    run = run_detectors({"a.py": DEFAULT}, ["python.mutable-default", "python.literal-attribute-access"])
    assert run.failures == ("own: ended with status 1: ", "ruff: ended with status 1: ")
    assert (run.findings, run.ran) == ((), frozenset())


def test_an_analyser_that_is_missing_is_named(run_detectors: Detect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    run = run_detectors({"a.py": DEFAULT}, ["python.mutable-default"])
    assert run.failures == ("ruff: cannot be started: No such file or directory",)


def test_a_full_or_missing_temporary_folder_is_named(
    run_detectors: Detect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    run = run_detectors({"a.py": DEFAULT}, ["python.mutable-default"])
    assert run == DetectorRun(
        (), frozenset(), ("detectors need room for temporary files: No such file or directory",)
    )


def test_an_answer_without_end_is_refused(run_detectors: Detect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "MAX_OUTPUT_BYTES", 100)
    run = run_detectors({"a.py": DEFAULT}, ["python.mutable-default"])
    assert run.failures == ("ruff: answered more than 100 bytes",)


def test_an_analyser_sees_none_of_the_callers_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cret")
    (tmp_path / "show").mkdir()
    (tmp_path / "show" / "__main__.py").write_text("import os; print(dict(os.environ))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert b"s3cret" not in analysis.run_module(["show"], tmp_path)


CUSTOM = """
checklist: ours
name: {en: Ours, zh: 自定}
sections:
  - id: O
    name: {en: Ours, zh: 自定}
    items:
      - id: ours.rule
        text: {en: A rule, zh: 规则}
        severity: P2
        detector:
          kind: KIND
          title: {en: Broken, zh: 违反}
          why: {en: Why, zh: 原因}
          fix: {en: Fix, zh: 修复}
          rules: RULES
"""


def custom(kind: str, rules: str) -> tuple[Item, ...]:
    return load_text(CUSTOM.replace("KIND", kind).replace("RULES", rules), "ours.yaml").items


def test_a_checklist_of_the_repository_may_bring_its_own_patterns() -> None:
    items = custom("ast_grep", '[{language: python, rule: {pattern: "foo($A)"}}]')
    run = detect({"a.py": b"foo(1)\nbar(1)\n"}, {"a.py": {1, 2}}, items, "en")
    assert [(finding.line_start, finding.source) for finding in run.findings] == [(1, "ast-grep:ours.rule")]


def test_a_pattern_that_ast_grep_refuses_is_named_and_costs_no_other(all_items: dict[str, Item]) -> None:
    items = (
        *custom("ast_grep", "[{language: cpp, rule: {kind: no_such_kind}}]"),
        all_items["cpp.bounded-copies"],
    )
    files = {"a.cpp": b"void f(char* a, char* b) { strcpy(a, b); }\n"}
    run = detect(files, {"a.cpp": {1}}, items, "en")
    assert places(run) == [("a.cpp", 1)]
    assert run.ran == {"cpp.bounded-copies"}
    assert [failure.startswith("ast_grep: ours.rule: ") for failure in run.failures] == [True]


def test_a_rule_that_ruff_does_not_know_is_named() -> None:
    run = detect({"a.py": b"x = 1\n"}, {"a.py": {1}}, custom("ruff", "[ZZZ999]"), "en")
    assert run.ran == frozenset()
    assert len(run.failures) == 1
    assert "ZZZ999" in run.failures[0]


def test_nothing_is_started_without_files_or_items(
    all_items: dict[str, Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    nothing = DetectorRun((), frozenset(), ())
    assert detect({}, {}, list(all_items.values()), "en") == nothing
    assert detect({"a.py": b"x"}, {"a.py": {1}}, [], "en") == nothing
