"""Kept answers: where they are, what they were made with, and whether a file holds any."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from kernels import target
from runtime.smoke.errors import SmokeError

FOLDER = Path(__file__).parent / "goldens"
_FIELDS: Mapping[str, type] = {
    "ids": list,
    "text": str,
    "logprobs": list,
    "finish_reason": str,
}


def device_of(suite: str) -> str:
    """Two ranks are two GPUs where there are GPUs, else two processes."""
    return "cuda" if suite == "gpu" or (suite == "tp2" and torch.cuda.is_available()) else "cpu"


def provenance(suite: str) -> dict[str, str]:
    """What an answer depends on: architecture, dtype and versions; and the commit that it was made at."""
    on_gpu = device_of(suite) == "cuda"
    return {
        "suite": suite,
        "arch": target.current().arch if on_gpu else "cpu",
        "dtype": "bfloat16" if on_gpu else "float32",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": _commit(),
    }


def path_of(suite: str) -> Path:
    """Where a suite's answers are kept: by architecture, since another rounds otherwise."""
    return FOLDER / f"{suite}-{provenance(suite)['arch']}.json"


def read(path: Path) -> dict[str, Any]:
    """Kept answers.

    Raises:
        SmokeError: there are none, or the file does not hold what it should; says where.
    """
    if not path.exists():
        raise SmokeError(
            f"{path}: no kept answers for this architecture; look at the raw outputs, then --rebaseline"
        )
    try:
        kept = json.loads(path.read_text())
    except ValueError as error:
        raise _malformed(path, f"no JSON: {error}") from None
    _require(path, isinstance(kept, dict), "the file", "an object")
    made_with, cases = kept.get("provenance"), kept.get("cases")
    _require(path, isinstance(made_with, dict), "provenance", "an object")
    for key in ("suite", "arch", "dtype"):
        _require(path, isinstance(made_with.get(key), str), f"provenance.{key}", "a string")
    _require(path, isinstance(cases, dict), "cases", "an object")
    for name, answers in cases.items():
        _require(path, isinstance(answers, list), f"cases[{name!r}]", "a list of answers")
        for number, answer in enumerate(answers):
            at = f"cases[{name!r}][{number}]"
            _require(path, isinstance(answer, dict), at, "an object")
            for field, kind in _FIELDS.items():
                _require(path, isinstance(answer.get(field), kind), f"{at}.{field}", f"a {kind.__name__}")
            numbers = all(one is None or isinstance(one, int | float) for one in answer["logprobs"])
            _require(path, numbers, f"{at}.logprobs", "numbers")
    return dict(kept)


def _require(path: Path, holds: bool, what: str, expected: str) -> None:
    if not holds:
        raise _malformed(path, f"{what}: expected {expected}")


def _malformed(path: Path, what: str) -> SmokeError:
    return SmokeError(f"{path}: {what}; restore it, or remove it and keep answers anew (--rebaseline)")


def _commit() -> str:
    """The commit of the code, with `-dirty` where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        cwd=FOLDER.parent,
        check=False,
    )
    return done.stdout.strip() or "unknown"
