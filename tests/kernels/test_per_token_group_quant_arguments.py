"""per_token_group_quant_8bit: bad input is refused by name; its own check and build cases."""

import pytest
import torch

from kernels import contract
from kernels.per_token_group_quant import build_cases, check, per_token_group_quant_8bit
from tests.kernels.group_quant_kit import BACKENDS, E4M3, INT8

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def valid(device: torch.device) -> dict:
    return {"x": torch.ones(4, 256, dtype=torch.bfloat16, device=device)}


def masked(device: torch.device, **changes) -> dict:
    counts = torch.ones(2, dtype=torch.int32, device=device)
    return {"x": torch.ones(2, 4, 256, device=device), "masked_m": counts} | changes


def rows_apart(columns: int, device: torch.device) -> torch.Tensor:
    return torch.ones(4, columns, dtype=torch.bfloat16, device=device)


BAD = {
    "not a tensor": (lambda d: {"x": [1.0]}, "x: expected a tensor"),
    "dtype": (lambda d: {"x": torch.ones(4, 256, dtype=torch.float64, device=d)}, "x: expected dtype"),
    "one dimension": (lambda d: {"x": torch.ones(256, device=d)}, r"x: expected shape \[any, any\]"),
    "three dimensions without counts": (
        lambda d: {"x": torch.ones(2, 4, 256, device=d)},
        "x: expected shape",
    ),
    "columns": (lambda d: {"x": torch.ones(4, 200, device=d)}, "x: expected columns in multiples of 128"),
    "gate without up": (
        lambda d: {"x": torch.ones(4, 384, device=d), "fuse_silu_and_mul": True},
        "x: expected columns in multiples of 256 .*got 384",
    ),
    "group of 12": (lambda d: valid(d) | {"group_size": 12}, "group_size: expected one of 16, .* got 12"),
    "group of 512": (lambda d: valid(d) | {"group_size": 512}, "group_size: expected one of 16, .* got 512"),
    "quantized dtype": (lambda d: valid(d) | {"dtype": torch.float8_e5m2}, "dtype: expected one of"),
    "layout": (lambda d: valid(d) | {"scale_layout": "diagonal"}, "scale_layout: expected one of row_major"),
    "ue8m0 of 64": (
        lambda d: valid(d) | {"group_size": 64, "scale_layout": "ue8m0"},
        "group_size: expected 128 for ue8m0 scales, got 64",
    ),
    "eps of zero": (lambda d: valid(d) | {"eps": 0.0}, "eps: expected a finite number"),
    "eps not finite": (lambda d: valid(d) | {"eps": float("nan")}, "eps: expected a finite number"),
    "backend": (lambda d: valid(d) | {"backend": "opencl"}, "backend: expected one of cuda, triton"),
    "columns apart": (
        lambda d: {"x": torch.ones(256, 4, dtype=torch.bfloat16, device=d).t()},
        "x: expected contiguous rows",
    ),
    "rows off 16 bytes": (lambda d: {"x": rows_apart(260, d)[:, :256]}, "x: expected rows that start on 16"),
    "pointer off 16 bytes": (lambda d: {"x": rows_apart(264, d)[:, 4:260]}, "x: expected a pointer aligned"),
    "q's dtype": (
        lambda d: valid(d) | {"out_q": torch.empty(4, 256, dtype=INT8, device=d)},
        "out_q: expected dtype float8_e4m3fn, got int8",
    ),
    "q's shape": (
        lambda d: valid(d) | {"out_q": torch.empty(5, 256, device=d).to(E4M3)},
        r"out_q: expected shape \[4, 256\], got \[5, 256\]",
    ),
    "q not contiguous": (
        lambda d: valid(d) | {"out_q": torch.empty(4, 512, device=d).to(E4M3)[:, :256]},
        "out_q: expected a contiguous tensor",
    ),
    "scales' dtype": (
        lambda d: valid(d) | {"out_scales": torch.empty(4, 2, dtype=torch.float16, device=d)},
        "out_scales: expected dtype float32, got float16",
    ),
    "scales' shape": (
        lambda d: valid(d) | {"out_scales": torch.empty(4, 3, device=d)},
        r"out_scales: expected shape \[4, 2\], got \[4, 3\]",
    ),
    "scales' strides": (
        lambda d: valid(d) | {"out_scales": torch.empty(2, 4, device=d).t()},
        r"out_scales: expected strides \[2, 1\] for row_major scales, got \[1, 4\]",
    ),
    "scales of no expert": (
        lambda d: masked(d) | {"out_scales": torch.empty(4, 2, device=d)},
        "out_scales: expected 3 dimensions",
    ),
    "counts' dtype": (
        lambda d: masked(d, masked_m=torch.ones(2, dtype=torch.int64, device=d)),
        "masked_m: expected dtype int32, got int64",
    ),
    "counts' shape": (
        lambda d: masked(d, masked_m=torch.ones(3, dtype=torch.int32, device=d)),
        r"masked_m: expected shape \[2\], got \[3\]",
    ),
    "counts without experts": (
        lambda d: masked(d) | valid(d),
        r"x: expected shape \[any, any, any\], got \[4, 256\]",
    ),
    "experts apart": (
        lambda d: masked(d, x=torch.ones(2, 8, 256, device=d)[:, :4]),
        "x: expected experts that follow one another",
    ),
    "too many experts": (
        lambda d: {
            "x": torch.ones(1025, 1, 128, device=d),
            "masked_m": torch.ones(1025, dtype=torch.int32, device=d),
        },
        "x: expected at most 1024 experts, got 1025",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_nothing_is_written(case, backend, device):
    make, message = BAD[case]
    arguments = {"backend": backend} | make(device)
    with pytest.raises(ValueError, match=message):
        per_token_group_quant_8bit(**arguments)


def test_counts_out_of_range_are_refused_in_debug_mode(backend, device, monkeypatch):
    monkeypatch.setattr(contract, "DEBUG", True)
    counts = torch.tensor([1, 5], dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"masked_m: expected values in \[0, 5\), got \[1, 5\]"):
        per_token_group_quant_8bit(**masked(device, masked_m=counts), backend=backend)


def test_its_own_check_passes(backend, device):
    error, bound = check(device)
    assert error <= bound


def test_build_cases_have_names_of_their_own(backend):
    names = [case.name for case in build_cases()]
    assert len(set(names)) == len(names)
