"""A server's configuration: everything that is wrong is said at once, defaults are filled in, nothing starts in between."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.__main__ import main
from runtime.checkpoint import NORM, specification
from runtime.config import read_config
from runtime.server.cli import read
from runtime.server.config import Role, ServerConfig, why_no_shared_port
from runtime.server.listen import AddressError, listen, reserve
from runtime.server.shapes import Shape
from tests.runtime.parallel_kit import DENSE, other_weights_on_rank_1

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
        tensor_parallel=0,
        pages=1,
        page_size=0,
        max_batch=4,
        max_step_tokens=0,
        cache_dtype="int4",
        buckets=(1, 8),
        gather=5,
        frontends=2,
        max_message=1,
        max_waiting=-1,
        max_queued=0,
        drain=float("nan"),
    )
    assert bad.problems() == [
        "model: expected a folder or a shape for random weights, one of them",
        f"model: {tmp_path} has no config.json",
        "random: expected one of qwen3-0.6b, qwen3-30b-a3b, tiny, tiny-tied, tiny-yarn, tiny-moe, tiny-fp8, tiny-fp8-wide,"
        " tiny-moe-wide, tiny-moe-fp8, tiny-odd, got huge",
        "device: expected cpu or cuda, got tpu",
        "attention: expected one of reference, triton, xqa, flashinfer, got magic",
        "tensor_parallel: expected at least 1, got 0",
        "pages: expected at least 2, got 1",
        "page_size: expected at least 1, got 0",
        "max_step_tokens: expected at least 1, got 0",
        "gather: expected at most max_batch, 4, got 5",
        "cache_dtype: expected one of e4m3, got int4",
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
        (replace(GOOD, gather=0), "gather: expected at least 1, got 0"),
        (
            replace(GOOD, role=Role.EMBED, tensor_parallel=2),
            "tensor_parallel: a server of role embed has but one rank, got 2",
        ),
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


@pytest.mark.parametrize("device", ["cuda", ""])
def test_one_gpu_where_two_are_asked_is_said_before_anything_starts(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("runtime.server.serve.EngineThread", lambda *_: pytest.fail("it was built"))
    words = [
        "serve",
        "--random",
        "tiny",
        "--tensor-parallel",
        "2",
        "--port",
        "0",
        *(["--device", device] if device else []),
    ]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said == "error: tensor_parallel: 2 ranks: expected 2 GPUs, there are 1; ask for fewer ranks\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--random", "tiny", "--tensor-parallel", "3"],
            "error: model.layers.0.self_attn.q_proj.weight: expected a multiple of 3 query heads for 3 ranks, got 4\n",
        ),
        (
            ["--random", "tiny-fp8", "--tensor-parallel", "2"],
            "error: model.layers.0.self_attn.q_proj.weight: 2 ranks would cut an fp8 block of 128 at 64 of 128; use fewer"
            " ranks\n",
        ),
        (
            ["--random", "tiny", "--pages", "2", "--page-size", "1"],
            "error: prompt: 1 tokens and 2 new ones need 3 pages of cache, there are 1 in all\n",
        ),
    ],
    ids=["heads", "blocks", "no cache to speak of"],
)
def test_what_cannot_be_built_is_an_error_of_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.parallel.engine.Processes", lambda *_: pytest.fail("a rank was started"))
    assert main(["serve", "--device", "cpu", "--port", "0", *words]) == 2
    assert capsys.readouterr().err == said


def test_a_checkpoint_that_is_not_its_configurations_is_an_error_on_several_ranks_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A tensor of another shape than config.json says: every rank refuses it."""
    tiny = {"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "dtype": "float32",
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 16,
            "max_position_embeddings": 32}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    tensors = {name: torch.ones(one.shape) for name, one in specification(read_config(tmp_path)).items()}
    save_file(tensors | {NORM: torch.ones(9)}, tmp_path / "model.safetensors")
    words = ["serve", "--device", "cpu", "--port", "0", "--model", str(tmp_path), "--tensor-parallel", "2"]
    assert main(words) == 2
    file = tmp_path / "model.safetensors"
    assert capsys.readouterr().err == f"error: {file}: {NORM}: expected shape [8], got [9]\n"


def test_ranks_with_other_weights_than_rank_0_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Shape(DENSE, other_weights_on_rank_1, has_text=False)
    monkeypatch.setattr("runtime.server.shapes.shape", lambda *_: other)
    assert (
        main(["serve", "--device", "cpu", "--port", "0", "--random", "tiny", "--tensor-parallel", "2"]) == 2
    )
    assert (
        capsys.readouterr().err == "error: rank 1: model.norm.weight: its weights are not those of rank 0\n"
    )


def test_every_word_of_the_command_reaches_the_configuration() -> None:
    words = {
        "--model": "m", "--random": "r", "--name": "n", "--role": "embed", "--host": "h", "--port": "1",
        "--device": "d", "--attention": "a", "--tensor-parallel": "2", "--pages": "3", "--page-size": "4",
        "--max-batch": "5", "--max-step-tokens": "6", "--cache-dtype": "e4m3", "--gather": "7", "--frontends": "8",
        "--max-message": "9", "--max-waiting": "10", "--max-queued": "11", "--drain": "12",
    }  # fmt: skip
    given = [word for pair in words.items() for word in pair]
    config = read([*given, "--buckets", "1", "2", "--no-overlap", "--no-prefix-reuse"])
    assert config == ServerConfig(
        Path("m"), "r", "n", Role.EMBED, "h", 1, "d", "a", 2, 3, 4, 5, 6, "e4m3", reuse_prefixes=False,
        buckets=(1, 2), overlap=False, gather=7, frontends=8, max_message=9, max_waiting=10, max_queued=11, drain=12.0,
    )  # fmt: skip
    assert read(["--random", "tiny"]) == ServerConfig(random="tiny")
    assert read(["--random", "tiny", "--buckets"]).buckets == ()


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
