"""Interleaved base and head runs of a bench step, with the base's harness on both sides."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ci_dispatch.model import Perf
from ci_dispatch.runner.harness import harness_files, lay_over
from ci_dispatch.runner.measure import order
from tests.kit.runner_jobs import Bench, MemorySources, Ran, job, shell

BENCH = "sh bench/run.sh $OUT"
HARNESS = 'echo "{\\"kpis\\": [{\\"name\\": \\"k\\", \\"value\\": $(cat speed), \\"unit\\": \\"us\\"}]}" > $1/kpis.json\n'
PERF = Perf(rounds=3, harness=("bench/**",))


def run(bench: Bench, head: dict[str, str], base: dict[str, str], *steps: object, perf: Perf = PERF) -> Ran:
    spec = (*steps, shell(BENCH, "bench"))
    return bench.run(job(*spec, trusted=True, perf=perf), MemorySources(head, base))  # type: ignore[arg-type]


def values(ran: Ran, side: str) -> list[float]:
    return [sample.value for sample in ran.report.samples if sample.side == side]


def test_each_side_runs_once_a_round_on_its_own_tree(bench: Bench) -> None:
    ran = run(bench, {"speed": "12", "bench/run.sh": HARNESS}, {"speed": "10", "bench/run.sh": HARNESS})
    assert (values(ran, "head"), values(ran, "base"), values(ran, "base_again")) == (
        [12] * 3,
        [10] * 3,
        [10] * 3,
    )
    assert sorted({sample.round for sample in ran.report.samples}) == [0, 1, 2]
    assert [run.side for run in ran.report.runs] == [*order(0), *order(1), *order(2)]
    assert "bench-0-head/kpis.json" in {artifact.path for artifact in ran.report.artifacts}


def test_the_order_is_balanced_over_six_rounds() -> None:
    rounds = [order(round) for round in range(6)]
    for place in range(3):
        assert set(Counter(one[place] for one in rounds).values()) == {2}
    after = Counter(pair for one in rounds for pair in pairwise(one))
    assert set(after.values()) == {2}
    assert len(after) == 6


def test_the_head_is_measured_with_the_bases_harness(bench: Bench) -> None:
    cheat = 'echo "{\\"kpis\\": [{\\"name\\": \\"k\\", \\"value\\": 1}]}" > $1/kpis.json\n'
    ran = run(bench, {"speed": "12", "bench/run.sh": cheat}, {"speed": "10", "bench/run.sh": HARNESS})
    assert values(ran, "head") == [12] * 3


def test_the_base_is_built_too(bench: Bench) -> None:
    build = shell("cp source speed", "build")
    ran = run(
        bench, {"source": "12", "bench/run.sh": HARNESS}, {"source": "10", "bench/run.sh": HARNESS}, build
    )
    assert values(ran, "base") == [10] * 3
    assert [(run.name, run.side) for run in ran.report.runs[:2]] == [("build", "head"), ("build", "base")]


def test_a_base_that_does_not_build_leaves_the_head_alone(bench: Bench) -> None:
    build = shell("cp source speed", "build")
    ran = run(bench, {"source": "12", "bench/run.sh": HARNESS}, {"bench/run.sh": HARNESS}, build)
    assert values(ran, "head") == [12] * 3
    assert values(ran, "base") == []
    assert "the base does not build" in ran.watcher.text


def test_a_base_without_the_bench_leaves_the_head_alone(bench: Bench) -> None:
    ran = run(bench, {"speed": "12", "bench/run.sh": HARNESS}, {"speed": "10"})
    assert values(ran, "head") == [12] * 3
    assert values(ran, "base") == []
    assert [run.status for run in ran.report.runs if run.side == "head"] == [0, 0, 0]
    assert len([run for run in ran.report.runs if run.side != "head"]) == 1
    assert ran.report.bad_numbers == ()


def test_a_head_whose_bench_fails_ends_the_job(bench: Bench) -> None:
    ran = run(
        bench,
        {"bench/run.sh": HARNESS},
        {"speed": "10", "bench/run.sh": "cat speed > /dev/null && " + HARNESS},
    )
    assert ran.report.runs[-1].side == "head"
    assert values(ran, "head") == [] or ran.report.runs[-1].status != 0


@pytest.mark.parametrize(
    "said",
    [
        '{"kpis": [{"name": "k", "value": "fast"}]}',
        '{"kpis": {"k": 1}}',
        "[]",
        "no json",
        '{"kpis": [{"name": "k", "value": 1e400}]}',
    ],
)
def test_numbers_that_lie_about_their_type_are_named(bench: Bench, said: str) -> None:
    head = {"bench/run.sh": "cat said > $1/kpis.json", "said": said}
    ran = run(bench, head, {**head, "said": '{"kpis": [{"name": "k", "value": 3}]}'})
    assert values(ran, "head") == []
    assert ran.report.bad_numbers
    assert json.loads(ran.report.model_dump_json())


def test_a_forks_head_does_not_touch_what_the_base_is_measured_with(confined: Bench) -> None:
    bench = (
        "echo bad > $TRITON_CACHE_DIR/../mine 2>/dev/null || true; ls /job/cache $HOME > $1/seen; " + HARNESS
    )
    head = {"speed": "12", "bench/run.sh": bench}
    base = {"speed": "10", "bench/run.sh": "ls /job/cache $HOME > $1/seen; " + HARNESS}
    spec = job(shell("touch /job/cache/mine $HOME/mine", "build"), shell(BENCH, "bench"), perf=Perf(rounds=2))
    # Both sides run the build; only the head's may show in the head's cache.
    ran = confined.run(spec, MemorySources(head, base))
    assert ran.endings == ["exited"] * len(ran.endings)
    ran = confined.run(
        job(
            shell('[ "$(cat speed)" = 10 ] || touch /job/cache/mine', "build"),
            shell(BENCH, "bench"),
            perf=Perf(rounds=2),
        ),
        MemorySources(head, base),
    )
    seen = {
        path.parent.name: path.read_text() for path in (confined.folder / "artifacts").glob("bench-*/seen")
    }
    assert "mine" in seen["bench-0-head"]
    assert "mine" not in seen["bench-0-base"]


def test_a_glob_names_files_in_every_folder_or_all_below_a_folder(tmp_path: Path) -> None:
    for name in ("bench/a.py", "bench/in/b.py", "x/bench_k.py", "bench_k.py", "other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "out").symlink_to("/usr")
    (tmp_path / "bench/link").symlink_to("/etc/passwd")

    def found(*globs: str) -> list[str]:
        return [str(path) for path in harness_files(tmp_path, globs)]

    assert found("bench/**") == found("bench/") == found("/bench") == ["bench/a.py", "bench/in/b.py"]
    assert found("bench_*.py") == ["bench_k.py", "x/bench_k.py"]
    assert found("x/*.py", "other.py") == ["other.py", "x/bench_k.py"]
    assert found("out/bin/*") == []
    assert found("missing/**") == []


def test_links_in_the_head_are_replaced_by_the_bases_files_and_never_followed(tmp_path: Path) -> None:
    base, head, host = tmp_path / "base", tmp_path / "head", tmp_path / "host"
    for folder in (base / "bench/in", head, host):
        folder.mkdir(parents=True)
    (base / "bench/in/run.sh").write_text("base")
    (base / "one.py").write_text("base")
    (base / "two.py").write_text("base")
    (host / "run.sh").write_text("host")
    (head / "bench").symlink_to(host)
    (head / "one.py").symlink_to(host / "run.sh")
    (head / "two.py").mkdir()
    lay_over(base, head, harness_files(base, ["**"]), None)
    assert (host / "run.sh").read_text() == "host"
    assert not (host / "in").exists()
    assert (head / "bench/in/run.sh").read_text() == "base"
    assert ((head / "one.py").read_text(), (head / "two.py").read_text()) == ("base", "base")
    assert not (head / "one.py").is_symlink()
