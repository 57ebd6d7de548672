"""A server's configuration: everything that is wrong is said at once, defaults are filled in, nothing starts in between."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.__main__ import main
from runtime.server.config import Role, ServerConfig, why_no_shared_port
from runtime.server.listen import AddressError, listen, reserve

GOOD = ServerConfig(random="tiny", device="cpu")


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    bad = ServerConfig(
        model=tmp_path,
        random="huge",
        role=Role.EMBED,
        host="",
        port=70000,
        device="tpu",
        attention="magic",
        pages=1,
        page_size=0,
        max_batch=4,
        max_step_tokens=0,
        buckets=(1, 8),
        frontends=2,
        max_message=1,
        max_waiting=-1,
        max_queued=0,
        drain=float("nan"),
    )
    assert bad.problems() == [
        "model: expected a folder or a shape for random weights, one of them",
        f"model: {tmp_path} has no config.json",
        "random: expected one of qwen3-0.6b, tiny, got huge",
        "device: expected cpu or cuda, got tpu",
        "attention: expected one of reference, triton, xqa, flashinfer, got magic",
        "pages: expected at least 2, got 1",
        "page_size: expected at least 1, got 0",
        "max_step_tokens: expected at least 1, got 0",
        "buckets: expected lanes from 1 to max_batch, 4, got 8",
        "host: expected an address to listen at, got none",
        "port: expected 0 to 65535, got 70000",
        "frontends: a server of role embed has but one, got 2",
        "max_message: expected 1024 to 2147483647 bytes, got 1",
        "max_waiting: expected at least 0, got -1",
        "max_queued: expected at least 1, got 0",
        "drain: expected a finite number of seconds, at least 0, got nan",
    ]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ServerConfig(), "model: expected a folder or a shape for random weights, one of them"),
        (replace(GOOD, model=Path(__file__).parent), "model: expected a folder or a shape"),
        (replace(GOOD, attention="triton"), "attention: triton runs on a GPU; a CPU has reference"),
        (replace(GOOD, frontends=65), "frontends: expected 1 to 64, got 65"),
        (replace(GOOD, max_batch=0), "max_batch: expected at least 1, got 0"),
    ],
)
def test_a_problem_is_named(config: ServerConfig, problem: str) -> None:
    assert config.problems()[0].startswith(problem)


def test_a_good_one_has_no_problems_and_every_role_its_front_ends() -> None:
    assert GOOD.problems() == []
    assert replace(GOOD, frontends=2).problems() == []
    assert [role for role in Role if role.may_have_frontends] == [Role.GENERATE]


def test_defaults_are_filled_in_once_and_for_all(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    filled, notes = replace(GOOD, model=tmp_path, random=None, max_batch=6, buckets=(4, 2, 4)).normalised()
    assert (filled.name, filled.attention, filled.buckets) == (tmp_path.name, "reference", (2, 4, 6))
    assert notes == []
    assert filled.normalised() == (filled, [])
    assert GOOD.normalised()[0].buckets == ()
    on_gpu, _ = replace(GOOD, device="cuda", max_batch=6).normalised()
    assert (on_gpu.buckets, on_gpu.attention) == ((1, 2, 4, 6), "xqa")


def test_without_a_shared_port_there_is_one_process_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(GOOD, frontends=3)
    assert why_no_shared_port() is None
    assert config.normalised()[0].frontends == 3
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    filled, notes = config.normalised()
    assert filled.frontends == 1
    assert notes == ["frontends: one process instead of 3: this platform has no SO_REUSEPORT"]


@pytest.mark.parametrize("frontends", ["1", "2"])
def test_a_taken_port_is_said_before_anything_is_built(
    capsys: pytest.CaptureFixture[str], frontends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr("runtime.server.serve.EngineThread", never)
    monkeypatch.setattr("runtime.server.frontends.EngineThread", never)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status = main(["serve", "--random", "tiny", "--port", str(port), "--frontends", frontends])
    assert status == 2
    said = capsys.readouterr().err
    assert said == (
        f"error: 127.0.0.1:{port}: cannot listen there: Address already in use; choose another --port, or 0 for a"
        " free one\n"
    )


def test_an_address_of_another_machine_is_refused() -> None:
    config = replace(GOOD, host="192.0.2.1", port=0)

    async def alone() -> None:
        listen(None, config, 0, shared=False)

    for attempt in (lambda: asyncio.run(alone()), lambda: reserve(config)):
        with pytest.raises(AddressError, match=r"192\.0\.2\.1:0: cannot listen there: Cannot assign"):
            attempt()


def test_the_command_names_all_problems_and_a_folder_that_is_no_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "--random", "tiny", "--port", "-1", "--pages", "0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: pages: expected at least 2, got 0",
        "error: port: expected 0 to 65535, got -1",
    ]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert main(["serve", "--model", str(tmp_path), "--port", "0", "--device", "cpu"]) == 2
    assert "model_type: expected qwen3 or qwen3_moe, got gpt2" in capsys.readouterr().err
