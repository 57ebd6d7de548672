"""Argument checks: ValueError naming argument, expected, actual."""

import pytest
import torch

from kernels import contract


def _message(**expectations: object) -> str:
    tensor = expectations.pop("tensor", torch.zeros(4, 6))
    with pytest.raises(ValueError, match="x: expected") as caught:
        contract.require("x", tensor, **expectations)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.fixture(autouse=True)
def cpu_counts_as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "INTERPRETING", True)


@pytest.mark.parametrize(
    ("expectations", "message"),
    [
        ({"dtype": torch.bfloat16}, "x: expected dtype bfloat16, got float32"),
        ({"dtype": (torch.int8, torch.int32)}, "x: expected dtype int8 or int32, got float32"),
        ({"shape": (4, 7)}, "x: expected shape [4, 7], got [4, 6]"),
        ({"shape": (None, 7)}, "x: expected shape [any, 7], got [4, 6]"),
        ({"shape": (4,)}, "x: expected shape [4], got [4, 6]"),
        ({"device": torch.device("meta")}, "x: expected device meta, got cpu"),
        (
            {"tensor": torch.zeros(6, 4).T, "contiguous": True},
            "x: expected a contiguous tensor, got strides [1, 4] for shape [4, 6]",
        ),
        (
            {"tensor": torch.zeros(6, 4).T, "rows_contiguous": True},
            "x: expected contiguous rows (last stride 1), got strides [1, 4]",
        ),
        (
            {"tensor": torch.zeros(64)[1:], "aligned": 16},
            "x: expected a pointer aligned to 16 bytes, got one 4 bytes past",
        ),
        ({"tensor": [1, 2]}, "x: expected a tensor, got list"),
    ],
)
def test_names_argument_expected_and_actual(expectations: dict[str, object], message: str) -> None:
    assert _message(**expectations) == message


def test_accepts_what_fits() -> None:
    tensor = torch.zeros(4, 6)
    contract.require(
        "x",
        tensor,
        dtype=(torch.float32, torch.float16),
        shape=(None, 6),
        device=tensor.device,
        contiguous=True,
        aligned=16,
    )
    contract.require("x", torch.zeros(4, 8)[:, :6], rows_contiguous=True)
    contract.require("x", torch.zeros(4, 2)[:, :1], rows_contiguous=True)


def test_a_cpu_tensor_outside_the_interpreter_is_told_of_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contract, "INTERPRETING", False)
    assert _message() == "x: expected a CUDA device, got cpu (on a CPU use the reference function)"


def test_require_value() -> None:
    contract.require_value("group_size", 64, (64, 128))
    with pytest.raises(ValueError, match="group_size: expected one of 64, 128, got 12"):
        contract.require_value("group_size", 12, (64, 128))


def test_values_on_the_device_are_checked_in_debug_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = torch.tensor([0, 3, 9])
    contract.require_range("block_tables", pages, 0, 9)
    monkeypatch.setattr(contract, "DEBUG", True)
    contract.require_range("block_tables", pages, 0, 10)
    contract.require_range("block_tables", pages[:0], 0, 1)
    with pytest.raises(ValueError, match=r"block_tables: expected values in \[0, 9\), got \[0, 9\]"):
        contract.require_range("block_tables", pages, 0, 9)
