"""The estimate of tokens from bytes, against counts of the o200k vocabulary taken once."""

from __future__ import annotations

import pytest

from reviewer.tokens import estimate

# text, tokens in o200k
COUNTED = [
    ("def write(page, slot, value):\n    page[slot + 1] = value\n    return slot\n", 23),
    ("The kernel read the input twice; cache the loaded vector in registers and reuse it.", 17),
    ("状态不变量：创建、更新、失败、重试、回滚路径有效", 17),
    ("if (threadIdx.x < n) { out[blockIdx.x * 128 + threadIdx.x] = __expf(in[i]); }\n", 30),
]


@pytest.mark.parametrize(("text", "counted"), COUNTED)
def test_the_estimate_is_near_the_count_and_seldom_below(text: str, counted: int) -> None:
    assert 0.84 * counted <= estimate(text.encode()) <= 1.7 * counted


def test_empty_text_has_a_token_and_indentation_is_cheap() -> None:
    assert estimate(b"") == 1
    assert estimate(b" " * 80) <= 11
