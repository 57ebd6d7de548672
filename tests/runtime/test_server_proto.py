"""The generated code is what the definition says."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from runtime import proto
from runtime.proto import engine_pb2 as pb
from runtime.server.from_proto import submit
from runtime.server.messages import DTYPES
from tests.runtime.server_kit import ask

ROOT = Path(__file__).parents[2]
FOLDER = Path("runtime/proto")


def test_generated_code_is_that_of_the_definition(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed here")
    command = [
        sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT), f"--python_out={tmp_path}", f"--pyi_out={tmp_path}",
        f"--grpc_python_out={tmp_path}", str(FOLDER / "engine.proto"),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=ROOT)
    made = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert made == ["engine_pb2.py", "engine_pb2.pyi", "engine_pb2_grpc.py"]
    for name in made:
        assert (tmp_path / FOLDER / name).read_text() == (ROOT / FOLDER / name).read_text(), (
            f"{name}: another one was committed; generate it anew, as {proto.__name__} says"
        )


def test_every_sampling_field_reaches_the_engine_under_its_name() -> None:
    given = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.25,
        "seed": 9,
        "max_tokens": 4,
        "stop": ["a"],
        "stop_ids": [5],
        "ignore_stop_ids": True,
        "logprobs": 0,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.5,
        "no_repeat_ngram_size": 2,
        "min_tokens": 1,
        "logit_bias": {3: -1.5},
    }
    assert list(given) == [field.name for field in pb.Sampling.DESCRIPTOR.fields]
    sampling = submit(ask([1], **given), ()).sampling
    read = {**sampling.__dict__, **sampling.processors.__dict__}
    del read["processors"]
    assert read == {**given, "stop": ("a",), "stop_ids": frozenset({5})}


def test_every_dtype_has_a_number() -> None:
    assert [f"DTYPE_{name.upper()}" for name in DTYPES] == pb.DType.keys()[1:]
