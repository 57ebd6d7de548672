"""The server over loopback: what clients get is what the engine gives, and what it cannot give is refused with a reason."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from runtime.aux_info import COLUMNS, AuxInfo, unstack
from runtime.beam import BeamParameters
from runtime.processors import ProcessorParameters
from runtime.proto import engine_pb2 as pb
from runtime.request import FinishReason, Request, SamplingParameters
from runtime.server.config import Role
from runtime.server.service import REQUEST_ID
from tests.runtime.server_kit import (
    CONFIG,
    WAIT,
    WEIGHTS,
    Answer,
    Running,
    ask,
    collect,
    free_pages,
    make_engine,
    metric,
    refusal,
    until,
)

CODE = grpc.StatusCode
REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_ABORT: FinishReason.ABORT,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """For tests that leave a server as they found it."""
    with Running() as running:
        yield running


def own(*submits: Callable[[Any], Request]) -> list[list[Request]]:
    """What the engine itself gives to all of them together."""
    engine = make_engine()
    requests = [submit(engine) for submit in submits]
    while engine.has_work():
        engine.step()
    return [list(request.siblings) for request in requests]


def require_equal(answers: dict[int, Answer], expected: list[Request]) -> None:
    assert sorted(answers) == list(range(len(expected)))
    for place, request in enumerate(expected):
        answer = answers[place]
        assert answer.ids == [token.id for token in request.tokens]
        assert answer.logprobs == pytest.approx([token.logprob for token in request.tokens], abs=1e-4)
        assert answer.text == request.text
        assert answer.finish is not None
        assert REASONS[answer.finish.reason] is request.finish_reason


def test_answers_are_the_engines_own_token_by_token(shared: Running) -> None:
    sampling = SamplingParameters(temperature=0.9, top_k=40, seed=7, max_tokens=12, logprobs=2)
    ((expected,),) = own(lambda engine: engine.submit("white smoke", sampling))
    request = ask(
        "white smoke", temperature=0.9, top_k=40, seed=7, max_tokens=12, logprobs=2, request_id="one"
    )
    call = shared.stub.Generate(request, timeout=WAIT)
    assert dict(call.initial_metadata())[REQUEST_ID] == "one"
    messages = list(call)
    assert {message.request_id for message in messages} == {"one"}
    assert len(messages) > 1
    require_equal(collect(iter(messages)), [expected])
    tokens = [token for message in messages for part in message.parts for token in part.tokens]
    for token, made in zip(tokens, expected.tokens, strict=True):
        assert [(one.id, one.logprob) for one in token.alternatives] == [
            (alternative, pytest.approx(logprob, abs=1e-4)) for alternative, logprob in made.alternatives
        ]


def test_twenty_streams_at_once_get_what_the_engine_gives_each(shared: Running) -> None:
    """Drawn, searched, several to a prompt, changed by processors, stopped by strings."""
    processors = ProcessorParameters(
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        no_repeat_ngram_size=3,
        min_tokens=2,
        logit_bias={7: 2.0},
    )
    asked: list[pb.GenerateRequest] = []
    submits: list[Callable[[Any], Request]] = []

    def add(request: pb.GenerateRequest, prompt: Any, sampling: SamplingParameters, **more: Any) -> None:
        asked.append(request)
        submits.append(lambda engine: engine.submit(prompt, sampling, **more))

    for number in range(8):
        prompt = list(range(number, 3 * number + 1))
        drawn = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "seed": number, "max_tokens": 10 + number}
        add(ask(prompt, **drawn, logprobs=0), prompt, SamplingParameters(**drawn, logprobs=0))
    for number in range(4):
        drawn = {"temperature": 1.0, "seed": number, "max_tokens": 9}
        add(ask("für 12 €", **drawn, n=3), "für 12 €", SamplingParameters(**drawn), n=3)
    for number in range(4):
        prompt, beams = [number, 5], BeamParameters(3, 0.5, "never", 2)
        wire = pb.Beams(
            beams=3, length_penalty=0.5, early_stopping=pb.EARLY_STOPPING_NEVER, return_sequences=2
        )
        add(ask(prompt, max_tokens=8, beams=wire), prompt, SamplingParameters(max_tokens=8), beams=beams)
    for number in range(4):
        drawn = {"temperature": 1.5, "seed": number, "max_tokens": 60}
        changed = {name: processors.__dict__[name] for name in processors.__dataclass_fields__}
        sampling = SamplingParameters(
            **drawn, stop=("z", "C"), stop_ids=frozenset({9}), processors=processors
        )
        add(ask("a", **drawn, stop=["z", "C"], stop_ids=[9], **changed), "a", sampling)
    expected = own(*submits)
    with ThreadPoolExecutor(20) as pool:
        streams = [
            pool.submit(lambda request=request: collect(shared.stub.Generate(request, timeout=WAIT)))
            for request in asked
        ]
        for stream, requests in zip(streams, expected, strict=True):
            require_equal(stream.result(), requests)
    assert {request.finish_reason for requests in expected for request in requests} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }
    until(lambda: free_pages(shared), "all pages back")


def test_what_an_output_took_comes_with_it_and_stacked_says_the_same(shared: Running) -> None:
    request = ask([1, 2, 3], max_tokens=5, temperature=1.0, seed=3, logprobs=0, n=3, stacked_aux=True)
    messages = list(shared.stub.Generate(request, timeout=WAIT))
    assert [message.HasField("stacked_aux") for message in messages[:-1]] == [False] * (len(messages) - 1)
    rows = messages[-1].stacked_aux.rows
    assert (rows.dtype, tuple(messages[-1].stacked_aux.columns)) == (pb.DTYPE_FLOAT64, COLUMNS)
    stacked = unstack(np.frombuffer(rows.data, np.float64).reshape(rows.shape))
    answers = collect(iter(messages))
    one_by_one = []
    for answer in (answers[place] for place in range(3)):
        assert answer.finish is not None
        assert sum(answer.logprobs) == pytest.approx(answer.finish.aux.cumulative_logprob)  # type: ignore[arg-type]
        aux = [value for _, value in answer.finish.aux.ListFields()]
        fields = {field.name: value for field, value in answer.finish.aux.ListFields()}
        assert len(aux) >= 6
        counts = ("prompt_tokens", "output_tokens", "reused_prefix_tokens", "steps", "preemptions")
        one_by_one.append(
            AuxInfo(
                *(fields.get(name, 0) for name in counts),
                fields["cumulative_logprob"],
                fields["time_to_first_token"],
                fields["total_time"],
                REASONS[answer.finish.reason],
            )
        )
    assert one_by_one == stacked
    assert [info.output_tokens for info in stacked] == [5, 5, 5]


@pytest.mark.parametrize("positions", [None, (1, 4, 2)], ids=["whole", "at positions"])
def test_embeddings_that_the_server_gave_stand_for_their_tokens(
    shared: Running, positions: tuple[int, ...] | None
) -> None:
    prompt = [30, 31, 32, 33, 34, 35]
    given = shared.stub.Embed(pb.EmbedRequest(ids=pb.TokenIds(ids=prompt)), timeout=WAIT)
    assert list(given.ids) == prompt
    assert list(given.rows.shape) == [6, CONFIG.hidden_size]
    rows = np.frombuffer(given.rows.data, np.float32).reshape(given.rows.shape)
    assert (rows == WEIGHTS.embedding[prompt].numpy()).all()
    expected = collect(shared.stub.Generate(ask(prompt, max_tokens=9), timeout=WAIT))
    sampling = pb.Sampling(max_tokens=9)
    if positions is None:
        request = pb.GenerateRequest(embeddings=given.rows, sampling=sampling)
    else:
        chosen = rows[list(positions)]
        at = pb.EmbeddingsAt(
            rows=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=chosen.shape, data=chosen.tobytes()),
            positions=positions,
        )
        blank = [0 if place in positions else token for place, token in enumerate(prompt)]
        request = pb.GenerateRequest(ids=pb.TokenIds(ids=blank), embeddings_at=at, sampling=sampling)
    assert collect(shared.stub.Generate(request, timeout=WAIT))[0].ids == expected[0].ids


def test_a_text_is_embedded_by_its_tokens(shared: Running) -> None:
    text = shared.stub.Embed(pb.EmbedRequest(text="white smoke"), timeout=WAIT)
    ids = shared.stub.Embed(pb.EmbedRequest(ids=pb.TokenIds(ids=text.ids)), timeout=WAIT)
    assert len(text.ids) > 1
    assert text.rows == ids.rows


ROWS = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[2, 3], data=b"x" * 24)
BAD = {
    "no prompt": (pb.GenerateRequest(), "prompt: expected one of text, ids, embeddings, got none"),
    "an empty one": (ask([]), "prompt: expected at least one token"),
    "a token too high": (ask([304]), "prompt: expected token ids from 0 to 303, got 304 at 0"),
    "too long": (ask([1], max_tokens=5000), "prompt: expected at most -904 tokens"),
    "too many pages": (ask([1], max_tokens=3000), "need 751 pages of cache, there are 299"),
    "temperature": (ask([1], temperature=float("nan")), "temperature: expected a finite number"),
    "top_p": (ask([1], top_p=0.0), "top_p: expected above 0"),
    "seed": (ask([1], seed=-1), "seed: expected from 0"),
    "logprobs": (ask([1], logprobs=21), "logprobs: expected from 0 to 20"),
    "penalty": (ask([1], presence_penalty=3), "presence_penalty: expected a number from -2 to 2"),
    "bias": (ask([1], logit_bias={304: 1.0}), "logit_bias: expected token ids from 0 to 303"),
    "n": (ask([1], n=0), "n: expected a whole number of at least 1"),
    "many": (ask([1], n=25), "sequences: expected at most 24 at once, got 25"),
    "beams": (ask([1], beams=pb.Beams(beams=1)), "beams: expected a whole number from 2 to 16"),
    "stopping": (
        ask([1], beams=pb.Beams(beams=2, early_stopping=7)),  # type: ignore[arg-type]
        "beams.early_stopping: expected 0 to 2, got 7",
    ),
    "both": (ask([1], beams=pb.Beams(beams=2), n=2), "n: a search by beams"),
    "width": (pb.GenerateRequest(embeddings=ROWS), "embeddings.rows: expected at least one row of 32"),
    "no dtype": (
        pb.GenerateRequest(embeddings=pb.Tensor(shape=[2, 3], data=b"x" * 24)),
        "embeddings.dtype: expected one of float32, bfloat16",
    ),
    "bytes": (
        pb.GenerateRequest(embeddings=pb.Tensor(dtype=pb.DTYPE_FLOAT16, shape=[2, 3], data=b"x" * 24)),
        "embeddings.data: expected 12 bytes, as float16 [2, 3] has, got 24",
    ),
    "huge": (
        pb.GenerateRequest(embeddings=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[1 << 63, 1 << 63])),
        "embeddings.data: expected",
    ),
    "one dimension": (
        pb.GenerateRequest(embeddings=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[6], data=b"x" * 24)),
        "embeddings.shape: expected two dimensions, got [6]",
    ),
    "no rows": (
        pb.GenerateRequest(embeddings=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[0, 32])),
        "prompt: expected at least one token",
    ),
    "other dtype": (
        pb.GenerateRequest(embeddings=pb.Tensor(dtype=pb.DTYPE_FLOAT16, shape=[1, 32], data=bytes(64))),
        "embeddings.rows: expected torch.float32",
    ),
    "given twice": (
        pb.GenerateRequest(embeddings=ROWS, embeddings_at=pb.EmbeddingsAt(rows=ROWS)),
        "embeddings_at: the prompt's embeddings are given already",
    ),
    "position": (
        ask(
            [1],
            embeddings_at=pb.EmbeddingsAt(
                rows=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[1, 32], data=bytes(128)), positions=[1]
            ),
        ),
        "embeddings.positions: expected whole numbers from 0 to 0, got 1",
    ),
}


@pytest.mark.parametrize(("request_", "text"), BAD.values(), ids=BAD)
def test_what_cannot_be_served_is_an_invalid_argument_that_says_why(
    shared: Running, request_: pb.GenerateRequest, text: str
) -> None:
    code, details = refusal(lambda: list(shared.stub.Generate(request_, timeout=WAIT)))
    assert code is CODE.INVALID_ARGUMENT
    assert text in details
    assert len(collect(shared.stub.Generate(ask([1], max_tokens=2), timeout=WAIT))[0].ids) == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xff\xff\xff", "4 bytes that are no GenerateRequest"),
        (b"\x1a\x02\xff\xfe", "4 bytes that are no GenerateRequest"),  # a text that is no UTF-8
        (ask([1]).SerializeToString() + b"\xa8\x06\x01", "request: this server knows no field 101"),
        (b"\x22\x03\x0a\x01\x01\x3a\x03\xa0\x06\x01", "sampling: this server knows no field 100"),
        (b"", "prompt: expected one of"),
    ],
)
def test_bytes_that_are_no_request_are_an_invalid_argument(
    shared: Running, content: bytes, text: str
) -> None:
    call = shared.channel.unary_stream("/whitesmoke.engine.v1.Engine/Generate")
    code, details = refusal(lambda: list(call(content, timeout=WAIT)))
    assert code is CODE.INVALID_ARGUMENT
    assert text in details


@pytest.mark.parametrize("method", ["Embed", "Abort", "Health", "Metrics"])
def test_bytes_that_are_no_request_of_another_method_are_an_invalid_argument(
    shared: Running, method: str
) -> None:
    call = shared.channel.unary_unary(f"/whitesmoke.engine.v1.Engine/{method}")
    code, details = refusal(lambda: call(b"\xff\xff\xff\xff", timeout=WAIT))
    assert code is CODE.INVALID_ARGUMENT
    assert f"4 bytes that are no {method}Request" in details


def test_an_unknown_model_or_request_is_not_found(shared: Running) -> None:
    code, text = refusal(lambda: list(shared.stub.Generate(ask([1], model="big"), timeout=WAIT)))
    assert (code, text) == (CODE.NOT_FOUND, "model: big is not served here; small is")
    code, text = refusal(lambda: shared.stub.Embed(pb.EmbedRequest(model="big", text="a"), timeout=WAIT))
    assert code is CODE.NOT_FOUND
    code, text = refusal(lambda: shared.stub.Abort(pb.AbortRequest(request_id="none"), timeout=WAIT))
    assert (code, text) == (CODE.NOT_FOUND, "request_id: none is not being served")
    assert collect(shared.stub.Generate(ask([1], model="small", max_tokens=1), timeout=WAIT))[0].ids


def test_metrics_are_those_of_the_engine_and_the_server(shared: Running) -> None:
    before = metric(shared, "engine_tokens_total")
    collect(shared.stub.Generate(ask([1], max_tokens=5, ignore_stop_ids=True), timeout=WAIT))
    assert metric(shared, "engine_tokens_total") == before + 5
    assert metric(shared, "server_open_requests") == 0
    assert shared.stub.Metrics(pb.MetricsRequest()).content_type.startswith("text/plain; version=0.0.4")


def test_a_server_of_embeddings_gives_them_and_generates_nothing() -> None:
    with Running(role=Role.EMBED) as running:
        given = running.stub.Embed(pb.EmbedRequest(text="white"), timeout=WAIT)
        assert len(given.rows.data) == 4 * len(given.ids) * CONFIG.hidden_size
        code, _ = refusal(lambda: list(running.stub.Generate(ask([1]), timeout=WAIT)))
        assert code is CODE.UNIMPLEMENTED
        code, text = refusal(
            lambda: running.stub.Embed(pb.EmbedRequest(ids=pb.TokenIds(ids=[304])), timeout=WAIT)
        )
        assert code is CODE.INVALID_ARGUMENT
        assert "got 304 at 0" in text
        assert running.stub.Health(pb.HealthRequest(), timeout=WAIT).state == pb.HEALTH_STATE_SERVING
        assert "server_open_requests 0" in running.stub.Metrics(pb.MetricsRequest(), timeout=WAIT).text
