"""GPUs out of use: who puts them there, who lets them go, and that a restart forgets nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci_dispatch.model import Notice
from ci_dispatch.runner.errors import RunnerError
from ci_dispatch.runner.inventory import Known
from ci_dispatch.runner.quarantine import GOOD_PROBES, Quarantine

SEEN = {"GPU-a": Known(0, "H200"), "GPU-b": Known(1, "H200")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.json"


def notice(kind: str, gpu: str = "GPU-a", **more: object) -> Notice:
    return Notice.model_validate({"kind": kind, "gpu": gpu, "detail": "why", **more})


def test_it_outlives_the_agent(path: Path) -> None:
    first = Quarantine(path)
    first.meet(SEEN)
    assert first.add([notice("compute")]) == [notice("compute")]
    again = Quarantine(path)
    assert again.reasons() == {"GPU-a": "quarantined, compute: why"}
    assert again.known() == SEEN
    assert path.stat().st_mode & 0o077 == 0


def test_the_same_again_is_no_news(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.add([notice("compute")])
    assert quarantine.add([notice("compute"), notice("orphan")]) == []


def test_good_probes_in_a_row_release_it(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.add([notice("orphan")])
    assert not any(quarantine.probed("GPU-a", good=True) for _ in range(GOOD_PROBES - 1))
    assert not quarantine.probed("GPU-a", good=False)
    assert not any(quarantine.probed("GPU-a", good=True) for _ in range(GOOD_PROBES - 1))
    assert quarantine.probed("GPU-a", good=True)
    assert Quarantine(path).reasons() == {}


def test_memory_errors_are_never_forgiven_by_probes(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.add([notice("orphan")])
    assert quarantine.add([notice("ecc")]) == [notice("ecc")]
    assert quarantine.on_trial() == ()
    assert not any(quarantine.probed("GPU-a", good=True) for _ in range(GOOD_PROBES * 2))
    assert "ecc" in quarantine.reasons()["GPU-a"]


def test_an_operator_releases_even_memory_errors(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.add([notice("ecc")])
    quarantine.hear([])
    assert quarantine.reasons(), "the service has not heard of it yet"
    quarantine.hear(["GPU-a"])
    quarantine.hear([])
    assert quarantine.reasons() == {}


def test_what_the_service_lists_is_out_of_use_until_it_does_not(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.hear(["GPU-b"])
    assert "GPU-b" in Quarantine(path).reasons()
    assert quarantine.on_trial() == ()
    quarantine.hear([])
    assert quarantine.reasons() == {}


@pytest.mark.parametrize(
    ("number", "used"), [(13, True), (31, True), (43, True), (48, False), (79, False), (None, False)]
)
def test_a_xid_that_a_wrong_kernel_causes_leaves_the_gpu_in_use(
    path: Path, number: int | None, used: bool
) -> None:
    quarantine = Quarantine(path)
    quarantine.add([notice("xid", code=number)])
    assert (quarantine.reasons() == {}) is used


def test_what_speaks_of_no_gpu_puts_none_out_of_use(path: Path) -> None:
    quarantine = Quarantine(path)
    assert quarantine.add([notice("gpu_missing", ""), notice("disk"), notice("source")]) == []
    assert quarantine.reasons() == {}


def test_a_gpu_that_is_gone_for_good_is_forgotten_when_it_is_released(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.meet(SEEN)
    quarantine.add([notice("gpu_missing", "GPU-b")])
    quarantine.hear(["GPU-b"])
    assert set(quarantine.known()) == {"GPU-a", "GPU-b"}
    quarantine.hear([])
    assert set(quarantine.known()) == {"GPU-a"}


def test_fewer_gpus_are_remembered_only_where_that_is_declared(path: Path) -> None:
    quarantine = Quarantine(path)
    quarantine.meet(SEEN)
    only = {"GPU-a": SEEN["GPU-a"]}
    quarantine.meet(only)
    assert quarantine.known() == SEEN
    quarantine.meet(only, forget_others=True)
    assert quarantine.known() == only


def test_a_damaged_file_brings_no_gpu_back(path: Path) -> None:
    path.write_text('{"entries": {"GPU-a"')
    with pytest.raises(RunnerError, match=r"quarantine.json cannot be read.*remove it to use all GPUs again"):
        Quarantine(path)
