"""Logits processors: the logits are those of the definitions and of transformers, the history what was recorded."""

import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kernels.logits_processors import process_logits, record_tokens
from kernels.logits_processors_reference import process_logits_reference, record_tokens_reference
from kernels.token_history import ProcessorLanes, TokenHistory, load_row
from tests.kernels import processors_kit as kit

GPU = torch.cuda.is_available()
PEER = Path(__file__).with_name("processors_peer.py")
NONE = float("-inf")
# Histories of no token, of one, and of more than a program reads at once.
SHAPES = [(7, 61, (0, 1, 2, 30, 90)), (3, 3003, (2500, 5, 1024))] + (
    [(64, 151936, (1000, 0, 3000, 7)), (96, 151669, (500, 32000))] if GPU else []
)
PROCESS = pytest.mark.parametrize(
    "process", [process_logits, process_logits_reference], ids=["kernel", "torch"]
)
RECORD = pytest.mark.parametrize("record", [record_tokens, record_tokens_reference], ids=["kernel", "torch"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(("batch", "vocabulary", "lengths"), SHAPES)
def test_the_kernel_equals_the_reference_bit_for_bit(
    batch: int, vocabulary: int, lengths: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> None:
    device = generator.device
    history = kit.fill_history(generator, batch, vocabulary, lengths)
    logits = kit.draw_logits(generator, batch, vocabulary, dtype)

    def cycle(*values: float) -> list[float]:
        return [values[lane % len(values)] for lane in range(batch)]

    lanes = kit.make_lanes(
        device,
        torch.randperm(batch, generator=generator, device=device).tolist(),
        flags=cycle(1, 1, 1, 0, 1),
        repetition_penalty=cycle(1.3, 1.0, 0.7),
        presence_penalty=cycle(0.5, 0.0, 0.0, -1.5),
        frequency_penalty=cycle(0.0, 0.3, 0.0, 0.0),
        no_repeat_ngram=cycle(2, 0, 1, 3, 0, 5),
        min_tokens=cycle(0, 1000, 10),
    )
    expected = logits.clone()
    process_logits_reference(expected, lanes, history)
    before = kit.clone(history)
    process_logits(logits, lanes, history)
    assert torch.equal(logits, expected)
    kit.assert_same(history, before)


@PROCESS
def test_padding_and_neutral_lanes_and_what_lies_between_rows_are_untouched(
    process: kit.Process, generator: torch.Generator
) -> None:
    device = generator.device
    history = kit.fill_history(generator, 3, 61, (40,))
    whole = torch.full((4, 72), float("nan"), device=device)
    whole[:, :61] = kit.draw_logits(generator, 4, 61)
    before = whole.clone()
    process(
        whole[:, :61],
        kit.make_lanes(device, [-1, 2, 0, -1], flags=[1, 0, 1, 0], repetition_penalty=2.0),
        history,
    )
    for lane in (0, 1, 3):
        assert torch.equal(whole[lane, :61], before[lane, :61])
    assert not torch.equal(whole[2, :61], before[2, :61])
    assert whole[:, 61:].isnan().all()


@PROCESS
def test_penalties_are_those_of_the_formula_in_double_precision(
    process: kit.Process, generator: torch.Generator
) -> None:
    vocabulary = 200
    history = kit.fill_history(generator, 1, vocabulary, (150,))
    prompt = int(history.prompt_lengths[0])
    tokens = history.tokens(0).tolist()
    load_row(history, 0, tokens[:prompt], tokens[prompt:])
    logits = kit.draw_logits(generator, 1, vocabulary)
    expected = logits[0].double().tolist()
    for token in set(tokens):
        expected[token] = expected[token] * 1.25 if expected[token] < 0 else expected[token] / 1.25
    for token, times in Counter(tokens[prompt:]).items():
        expected[token] -= 0.75 + times * 0.375
    lanes = kit.make_lanes(
        generator.device, [0], repetition_penalty=1.25, presence_penalty=0.75, frequency_penalty=0.375
    )
    process(logits, lanes, history)
    # The penalty is exact, and three roundings to float32 are of values below 64: 3 * 64 * 2^-24.
    assert max(map(abs, expected)) < 32
    assert (logits[0].double() - torch.tensor(expected, device=logits.device).double()).abs().max() < 1.2e-5


@PROCESS
def test_presence_and_frequency_count_what_was_generated_alone(
    process: kit.Process, device: torch.device
) -> None:
    logits = [1.0] * 8
    after = kit.run_one(
        process, device, logits, [1, 1, 2], [2, 3, 3, 3], presence_penalty=0.5, frequency_penalty=0.25
    )
    assert after == [1.0, 1.0, 0.25, -0.25, 1.0, 1.0, 1.0, 1.0]
    after = kit.run_one(process, device, logits, [1, 1, 2], [2, 3, 3, 3], presence_penalty=-2.0)
    assert after == [1.0, 1.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    after = kit.run_one(process, device, logits, [1, 1, 2], [2, 3, 3, 3], frequency_penalty=0.5)
    assert after == [1.0, 1.0, 0.5, -0.5, 1.0, 1.0, 1.0, 1.0]


@PROCESS
def test_a_repeated_token_is_penalised_once(process: kit.Process, device: torch.device) -> None:
    after = kit.run_one(
        process, device, [4.0, 4.0, -4.0, 0.0], [1, 1, 1, 2], [2, 2, 3], repetition_penalty=2.0
    )
    assert after == [4.0, 2.0, -8.0, 0.0]


@PROCESS
def test_a_bias_comes_before_the_penalty(process: kit.Process, device: torch.device) -> None:
    bias = {0: 3.0, 1: -6.0, 3: NONE}
    after = kit.run_one(
        process, device, [1.0, 4.0, 8.0, 2.0, 5.0], [0, 1, 2], [], bias, repetition_penalty=2.0
    )
    assert after == [2.0, -4.0, 4.0, NONE, 5.0]
    assert kit.run_one(process, device, [1.0, 4.0, 8.0, 2.0], [0, 1], [1], bias) == [4.0, -2.0, 8.0, NONE]


@PROCESS
def test_a_token_s_logit_is_rounded_once(process: kit.Process, device: torch.device) -> None:
    """128 + 0.5 - 0.25 in bfloat16, whose step there is 1, rounds to 128 after each; 128 + 0.5 + 0.25 at the end to 129."""
    history = TokenHistory(1, 8, 8, device)
    load_row(history, 0, [], [3], {3: 0.5})
    logits = torch.full((1, 8), 128.0, dtype=torch.bfloat16, device=device)
    process(logits, kit.make_lanes(device, [0], presence_penalty=-0.25), history)
    assert logits[0].tolist() == [128.0] * 3 + [129.0] + [128.0] * 4


@PROCESS
@pytest.mark.parametrize(
    ("size", "banned"),
    [(1, {1, 2, 3, 4}), (2, {3, 4}), (3, {4}), (4, {4}), (5, set()), (8, set()), (9, set()), (50, set())],
)
def test_repeats_of_n_tokens_are_banned(
    process: kit.Process, size: int, banned: set[int], device: torch.device
) -> None:
    """Of 2 3 3 1 2 4 | 3 1 2: before, 2 was followed by 3 and 4, and 1 2 and 3 1 2 by 4."""
    after = kit.run_one(process, device, [1.0] * 6, [2, 3, 3, 1, 2, 4], [3, 1, 2], no_repeat_ngram=size)
    assert {token for token, score in enumerate(after) if score == NONE} == banned
    assert all(score in (1.0, NONE) for score in after)


@PROCESS
def test_an_overlapping_repeat_is_banned(process: kit.Process, device: torch.device) -> None:
    assert kit.run_one(process, device, [1.0] * 3, [1, 1, 1], [], no_repeat_ngram=3) == [1.0, NONE, 1.0]
    assert kit.run_one(process, device, [1.0] * 3, [1, 1], [], no_repeat_ngram=3) == [1.0] * 3


@PROCESS
def test_a_ban_outweighs_penalties_of_the_same_token(process: kit.Process, device: torch.device) -> None:
    after = kit.run_one(
        process, device, [1.0] * 4, [], [1, 2, 1], {2: 9.0}, [3, 1],
        no_repeat_ngram=2, min_tokens=4, repetition_penalty=0.5,
    )  # fmt: skip
    assert after == [1.0, NONE, NONE, NONE]


@PROCESS
def test_stop_ids_are_banned_until_min_tokens_are_generated(
    process: kit.Process, device: torch.device
) -> None:
    for generated, least, banned in (([], 1, True), ([2], 2, True), ([2], 1, False), ([], 0, False)):
        after = kit.run_one(process, device, [1.0] * 4, [1, 1], generated, None, [0, 3], min_tokens=least)
        assert after == ([NONE, 1.0, 1.0, NONE] if banned else [1.0] * 4)


@PROCESS
def test_nan_stays_where_a_penalty_meets_it(process: kit.Process, device: torch.device) -> None:
    after = kit.run_one(
        process, device, [float("nan"), float("inf"), NONE, 1.0], [0, 1, 2], repetition_penalty=2.0
    )
    assert after[0] != after[0]
    assert after[1:] == [float("inf"), NONE, 1.0]


@RECORD
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_recording_step_by_step_is_the_same_as_loading_the_whole(
    record: kit.Record, dtype: torch.dtype, generator: torch.Generator
) -> None:
    device, vocabulary, rows = generator.device, 40, 37
    stepwise, loaded = (TokenHistory(rows, vocabulary, 30, device) for _ in range(2))
    prompts = [kit.draw_ids(generator, row % 5, vocabulary) for row in range(rows)]
    order = torch.randperm(rows, generator=generator, device=device).tolist()
    steps = [kit.draw_ids(generator, rows, vocabulary) for _ in range(12)]
    lanes = kit.make_lanes(device, order)
    for row in range(rows):
        bias, stops = {row: 1.5, 0: NONE}, [row % 7]
        load_row(stepwise, row, prompts[row], (), bias, stops)
        load_row(loaded, row, prompts[row], [step[order.index(row)] for step in steps], bias, stops)
    for step in steps:
        record(torch.tensor(step, dtype=dtype, device=device), lanes.rows, lanes.flags, stepwise)
    kit.assert_same(stepwise, loaded)


@RECORD
def test_neutral_lanes_get_their_newest_id_and_padding_lanes_nothing(
    record: kit.Record, device: torch.device
) -> None:
    history = TokenHistory(4, 10, 8, device)
    for row in range(4):
        load_row(history, row, [9], [1])
    before = kit.clone(history)
    lanes = kit.make_lanes(device, [2, -1, 0, -1], flags=[0, 1, 1, 0])
    record(torch.tensor([5, 6, 7, 8], device=device), lanes.rows, lanes.flags, history)
    assert history.last_ids.tolist() == [7, 1, 5, 1]
    assert history.lengths.tolist() == [3, 2, 2, 2]
    assert history.tokens(0).tolist() == [9, 1, 7]
    assert torch.equal(history.record[1:], before.record[1:])
    assert torch.equal(history.counts[1:], before.counts[1:])


@RECORD
def test_a_full_history_and_an_id_outside_the_vocabulary_change_the_newest_id_alone(
    record: kit.Record, device: torch.device
) -> None:
    history = TokenHistory(3, 10, 4, device)
    load_row(history, 0, [1, 2], [3, 4])
    load_row(history, 1, [1])
    before = kit.clone(history)
    lanes = kit.make_lanes(device, [0, 1])
    record(torch.tensor([5, 10], device=device), lanes.rows, lanes.flags, history)
    assert history.last_ids.tolist() == [5, 10, 0]
    assert torch.equal(history.record, before.record)
    assert torch.equal(history.counts, before.counts)


def test_no_lanes(device: torch.device) -> None:
    history = TokenHistory(1, 8, 8, device)
    lanes = kit.make_lanes(device, [])
    process_logits(torch.empty(0, 8, device=device), lanes, history)
    record_tokens(torch.empty(0, dtype=torch.int64, device=device), lanes.rows, lanes.flags, history)
    assert not history.record.any()


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed here")
def test_the_logits_are_those_of_transformers(generator: torch.Generator, tmp_path: Path) -> None:
    vocabulary, cases = 97, []
    for number in range(24):
        ids = kit.draw_ids(generator, 5 + 4 * number, vocabulary)
        prompt = 1 + len(ids) // 2
        biased = set(kit.draw_ids(generator, 20, vocabulary)) if number % 2 else ()
        cases.append(
            {
                "logits": kit.draw_logits(generator, 1, vocabulary)[0].cpu().contiguous(),
                "prompt": ids[:prompt],
                "generated": ids[prompt:],
                "bias": {
                    token: NONE if token % 5 == 0 else token / 8 - 3 for token in biased if token
                },  # it has no bias of 0
                "repetition": (1.3, 1.0, 0.6, 2.5)[number % 4],
                "ngram": number % 5,
                "min_tokens": (0, 3, 200)[number % 3],
                "stop_ids": [number, 96],
            }
        )
    torch.save(cases, tmp_path / "cases")
    environment = os.environ | {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(PEER), str(tmp_path / "cases")], capture_output=True, text=True, env=environment, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = torch.stack(torch.load(tmp_path / "cases.expected"))

    device = generator.device
    history = TokenHistory(len(cases), vocabulary, 128, device)
    for row, case in enumerate(cases):
        load_row(history, row, case["prompt"], case["generated"], case["bias"], case["stop_ids"])
    lanes = kit.make_lanes(
        device,
        range(len(cases)),
        repetition_penalty=[case["repetition"] for case in cases],
        no_repeat_ngram=[case["ngram"] for case in cases],
        min_tokens=[case["min_tokens"] for case in cases],
    )
    for process in (process_logits, process_logits_reference):
        logits = torch.zeros(len(cases), 100, device=device)[:, :vocabulary]
        logits.copy_(torch.stack([case["logits"] for case in cases]))
        process(logits, lanes, history)
        assert torch.equal(logits.cpu(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 16, dtype=torch.float16)}, "logits: expected dtype bfloat16 or float32"),
        ({"logits": torch.zeros(2, 12)}, r"logits: expected shape \[any, 16\], got \[2, 12\]"),
        ({"logits": torch.zeros(16, 2).T}, "logits: expected contiguous rows"),
        ({"logits": torch.zeros(2, 18)[:, :16]}, "logits: expected rows that start on 16 bytes"),
        ({"logits": torch.zeros(36)[2:34].view(2, 16)}, "logits: expected a pointer aligned to 16 bytes"),
        ({"rows": torch.zeros(2, dtype=torch.int64)}, "rows: expected dtype int32, got int64"),
        ({"flags": torch.zeros(3, dtype=torch.int32)}, r"flags: expected shape \[2\], got \[3\]"),
        ({"repetition_penalty": torch.ones(2, dtype=torch.float64)}, "repetition_penalty: expected dtype float32"),
        ({"presence_penalty": torch.ones(4)[::2]}, "presence_penalty: expected a contiguous tensor"),
        ({"frequency_penalty": torch.ones(2, dtype=torch.bfloat16)}, "frequency_penalty: expected dtype float32"),
        ({"no_repeat_ngram": torch.ones(2)}, "no_repeat_ngram: expected dtype int32, got float32"),
        ({"min_tokens": [1, 2]}, "min_tokens: expected a tensor, got list"),
    ],
)  # fmt: skip
def test_bad_arguments_of_processing(change: dict[str, object], message: str, device: torch.device) -> None:
    values = vars(kit.make_lanes(device, [0, 1])) | {"logits": torch.zeros(2, 16, device=device)}
    values |= {
        name: move(value, device) if isinstance(value, torch.Tensor) else value
        for name, value in change.items()
    }
    logits = values.pop("logits")
    with pytest.raises(ValueError, match=f"^{message}"):
        process_logits(logits, ProcessorLanes(**values), TokenHistory(2, 16, 4, device))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.zeros(2)}, "ids: expected dtype int64 or int32, got float32"),
        ({"ids": torch.zeros(2, 1, dtype=torch.int64)}, r"ids: expected shape \[any\], got \[2, 1\]"),
        ({"ids": torch.zeros(4, dtype=torch.int64)[::2]}, "ids: expected a contiguous tensor"),
        ({"rows": torch.zeros(3, dtype=torch.int32)}, r"rows: expected shape \[2\], got \[3\]"),
        ({"flags": torch.zeros(2, dtype=torch.bool)}, "flags: expected dtype int32, got bool"),
    ],
)
def test_bad_arguments_of_recording(
    change: dict[str, torch.Tensor], message: str, device: torch.device
) -> None:
    values = {name: torch.zeros(2, dtype=torch.int32) for name in ("ids", "rows", "flags")} | change
    with pytest.raises(ValueError, match=f"^{message}"):
        record_tokens(
            **{n: move(v, device) for n, v in values.items()}, history=TokenHistory(2, 16, 4, device)
        )


def test_a_history_on_another_device_is_refused(device: torch.device) -> None:
    lanes = kit.make_lanes(device, [0])
    with pytest.raises(ValueError, match=r"^history\.record: expected device"):
        process_logits(torch.zeros(1, 16, device=device), lanes, TokenHistory(1, 16, 4, "meta"))


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """To the device with strides and offset as they are."""
    size = tensor.untyped_storage().size() // tensor.element_size()
    return torch.zeros(size, dtype=tensor.dtype, device=device).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )
