"""moe_fp8 and moe_bf16: routing, grouping and the experts' products, against float64 with the same rounding points."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from kernels import contract, cuda, moe_fp8, moe_routing

ON_GPU = torch.cuda.is_available()
E4M3 = torch.float8_e4m3fn
# The interpreter adds up in float32, so that hardly any h is rounded elsewhere than in float64.
BOUND = moe_fp8.RELATIVE_ERROR if ON_GPU else 2.0**-7


@dataclass(frozen=True)
class Shape:
    tokens: int
    hidden: int = 256
    inter: int = 128
    experts: int = 8
    top_k: int = 2


SMALL = [Shape(1), Shape(5), Shape(9, experts=12, top_k=3), Shape(40, hidden=128, experts=3)]
QWEN3 = Shape(64, 2048, 768, 128, 8)
REAL = [replace(QWEN3, tokens=tokens) for tokens in (1, 3, 4, 9, 64, 100, 512)]
REAL += [Shape(2, 1024, 384, 12, 3), Shape(4, 768, 128, 256, 8), Shape(1, 4096, 1536, 16, 8)]
SHAPES = SMALL + (REAL if ON_GPU else [])


@dataclass
class Case:
    shape: Shape
    x: torch.Tensor
    logits: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    """w13, w13_scale, w2, w2_scale; or w13, w2 in bf16."""

    def run(self, **options: object) -> torch.Tensor:
        function = moe_fp8.moe_fp8 if len(self.weights) == 4 else moe_fp8.moe_bf16
        out = torch.full_like(self.x, torch.nan)
        return function(self.x, self.logits, *self.weights, top_k=self.shape.top_k, out=out, **options)

    def reference(self, **options: object) -> torch.Tensor:
        four = self.weights if len(self.weights) == 4 else (self.weights[0], None, self.weights[1], None)
        return moe_fp8.moe_reference(self.x, self.logits, *four, top_k=self.shape.top_k, **options)


def make(shape: Shape, generator: torch.Generator, dtype: torch.dtype = E4M3) -> Case:
    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=generator.device)

    def matrices(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        weights = torch.empty(shape.experts, rows, columns, dtype=dtype, device=generator.device)
        for expert in range(shape.experts):
            scale = columns**-0.5 if dtype is torch.bfloat16 else 1.0
            weights[expert] = (random(rows, columns) * scale).to(dtype)
        if dtype is torch.bfloat16:
            return (weights,)
        blocks = random(shape.experts, rows // 128, columns // 128).abs() + 0.5
        return weights, blocks * columns**-0.5

    x = random(shape.tokens, shape.hidden).bfloat16()
    logits = random(shape.tokens, shape.experts)
    weights = (*matrices(2 * shape.inter, shape.hidden), *matrices(shape.hidden, shape.inter))
    return Case(shape, x, logits, weights)


def relative_error(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    actual, wanted = actual.double(), wanted.double()
    return float((actual - wanted).norm() / wanted.norm())


@pytest.fixture(params=["tiles", "few"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The Triton kernels, or those of csrc/ up to the 4 tokens that they can take."""
    monkeypatch.setattr(moe_fp8, "FEW_TOKENS", 4 if request.param == "few" else 0)
    if request.param == "tiles":
        return "tiles"
    if not (ON_GPU and cuda.available()):
        pytest.skip("the CUDA C++ kernels need a GPU and nvcc")
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.usefixtures("path")
def test_fp8_equals_the_float64_reference(shape: Shape, normalize: bool, generator: torch.Generator) -> None:
    case = make(shape, generator)
    error = relative_error(case.run(normalize=normalize), case.reference(normalize=normalize))
    assert error < BOUND


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_equals_the_float64_reference(shape: Shape, generator: torch.Generator) -> None:
    case = make(shape, generator, torch.bfloat16)
    # Both round h, y and out to bf16, and float32 sums may round each to a neighbour: 3 times 2^-9, which is a rounding's
    # error in the root of the mean square (it is at most 2^-8 of a value).
    assert relative_error(case.run(), case.reference()) < 3 * 2.0**-9


@pytest.mark.parametrize(
    ("dtype", "roundoff"),
    [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11), (torch.float32, 2.0**-24)],
    ids=str,
)
def test_the_reference_is_the_plain_definition_and_rounds_to_the_type_of_x(
    dtype: torch.dtype, roundoff: float, generator: torch.Generator
) -> None:
    case = make(Shape(6, hidden=128), generator, torch.bfloat16)
    case.x = case.x.to(dtype)
    assert case.reference().dtype is dtype
    w13, w2 = (weight.double() for weight in case.weights)
    probabilities = case.logits.double().softmax(1)
    for token in range(6):
        chosen = probabilities[token].topk(2).indices
        total = torch.zeros(128, dtype=torch.float64, device=case.x.device)
        for expert in chosen.tolist():
            gate, up = (w13[expert] @ case.x[token].double()).chunk(2)
            y = w2[expert] @ (torch.nn.functional.silu(gate) * up).to(dtype).double()
            total += probabilities[token, expert] / probabilities[token, chosen].sum() * y.to(dtype).double()
        torch.testing.assert_close(case.reference()[token].double(), total, rtol=roundoff, atol=1e-6)


@pytest.mark.skipif(not (ON_GPU and cuda.available()), reason="the CUDA C++ kernels need a GPU and nvcc")
@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_few_equals_tiles(tokens: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(replace(QWEN3, tokens=tokens), generator)
    monkeypatch.setattr(moe_fp8, "FEW_TOKENS", 4)
    few = case.run()
    monkeypatch.setattr(moe_fp8, "FEW_TOKENS", 0)
    # Two float32 summation orders, then the same roundings: half of what either may be away from float64.
    assert relative_error(few, case.run()) < BOUND


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (8, 8), (12, 5), (128, 8)])
@pytest.mark.parametrize("normalize", [True, False])
def test_routing_equals_the_reference(
    dtype: torch.dtype, experts: int, top_k: int, normalize: bool, generator: torch.Generator
) -> None:
    logits = (torch.randn(7, experts, generator=generator, device=generator.device) * 4).to(dtype)
    ids, weights = moe_routing.route(logits, top_k, normalize=normalize)
    wanted_ids, wanted = moe_routing.route_reference(logits, top_k, normalize=normalize)
    assert torch.equal(ids, wanted_ids)
    # A quotient of float32 exponentials of differences up to 40: each a few ulp (2^-23), the sum of 128 likewise.
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=0)


def test_equal_logits_go_to_the_lower_index_first(device: torch.device) -> None:
    logits = torch.tensor(
        [[1.0, 2.0, 2.0, 2.0], [0.0, -0.0, -1.0, 0.0], [-torch.inf] * 3 + [1.0], [5.0] * 4], device=device
    )
    ids, weights = moe_routing.route(logits, 3)
    assert ids.tolist() == [[1, 2, 3], [0, 1, 3], [3, 0, 1], [0, 1, 2]]
    torch.testing.assert_close(weights[3], torch.full([3], 1 / 3, device=device))


def test_a_nan_logit_poisons_its_own_token_alone(device: torch.device) -> None:
    logits = torch.tensor([[0.0, torch.nan, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0], [torch.nan] * 4], device=device)
    ids, weights = moe_routing.route(logits, 2)
    assert ids.tolist() == [[3, 2], [3, 2], [0, 1]]
    assert weights[[0, 2]].isnan().all()
    assert weights[1].isfinite().all()


def test_padding_is_routed_nowhere(device: torch.device, generator: torch.Generator) -> None:
    logits = torch.randn(6, 8, generator=generator, device=device)
    logits[4:] = torch.nan
    valid = torch.tensor([4], dtype=torch.int32, device=device)
    ids, weights = moe_routing.route(logits, 2, valid=valid)
    wanted_ids, wanted = moe_routing.route_reference(logits, 2, valid=4)
    assert torch.equal(ids, wanted_ids)
    assert (ids[4:] == -1).all()
    assert (weights[4:] == 0).all()
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("block", moe_routing.BLOCKS)
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 4, 1), (5, 4, 2), (300, 5, 2)] + [(4096, 128, 8)] * ON_GPU
)
def test_blocks_hold_every_pair_once_in_order(
    block: int, tokens: int, experts: int, top_k: int, generator: torch.Generator
) -> None:
    scores = torch.rand(tokens, experts, generator=generator, device=generator.device)
    scores[:, 1] = 0  # an expert that nobody chooses where there are enough others
    ids = scores.topk(top_k, dim=1).indices.int()
    ids[tokens // 2] = -1
    block_experts, pairs = moe_routing.align(ids, experts, block)
    flat = ids.flatten().tolist()
    wanted_experts, wanted_pairs = [], []
    for expert in range(experts):
        own = [pair for pair, chosen in enumerate(flat) if chosen == expert]
        for start in range(0, len(own), block):
            wanted_experts.append(expert)
            wanted_pairs.extend((own[start : start + block] + [-1] * block)[:block])
    unused = moe_routing.maximum_blocks(len(flat), experts, block) - len(wanted_experts)
    assert unused >= 0
    assert block_experts.tolist() == wanted_experts + [-1] * unused
    assert pairs.tolist() == wanted_pairs + [-1] * block * unused


def test_maximum_blocks_is_what_the_worst_counts_need() -> None:
    for pairs, experts, block in [(2, 5, 16), (20, 3, 4), (17, 1, 16), (12, 4, 3), (9, 2, 4)]:
        counts = (c for c in itertools.product(range(pairs + 1), repeat=experts) if sum(c) == pairs)
        worst = max(sum(-(-count // block) for count in split) for split in counts)
        assert worst == moe_routing.maximum_blocks(pairs, experts, block)


@pytest.mark.parametrize("valid", [0, 1, 3])
@pytest.mark.parametrize("dtype", [E4M3, torch.bfloat16])
@pytest.mark.usefixtures("path")
def test_poisoned_padding_has_no_effect(
    valid: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    case = make(replace(QWEN3 if ON_GPU else Shape(0), tokens=4), generator, dtype)
    count = torch.tensor([valid], dtype=torch.int32, device=device)
    plain = case.run(valid=count)
    assert (plain[valid:] == 0).all()
    if valid:
        assert relative_error(plain[:valid], case.reference(valid=valid)[:valid]) < BOUND
    for poison in (torch.nan, torch.inf, 3e38):
        case.x[valid:] = poison
        case.logits[valid:] = poison
        assert torch.equal(case.run(valid=count), plain)


def test_a_token_does_not_depend_on_the_others(path: str, generator: torch.Generator) -> None:
    tokens = 4 if path == "few" else 20
    case = make(replace(QWEN3 if ON_GPU else Shape(0), tokens=tokens), generator)
    before = case.run()
    case.x[1:] = case.x[1:].flip(0)
    case.x[3] = torch.nan
    case.logits[1:] = case.logits[1:].roll(3, 0) * 2
    after = case.run()
    assert torch.equal(after[0], before[0])
    assert after[3].isnan().all()
    assert after[torch.arange(tokens, device=after.device) != 3].isfinite().all()


@pytest.mark.parametrize("hot", [0, -1])
def test_all_tokens_to_the_same_experts(hot: int, path: str, generator: torch.Generator) -> None:
    shape = replace(QWEN3 if ON_GPU else Shape(0), tokens=4 if path == "few" else 37)
    case = make(shape, generator)
    first = 0 if hot == 0 else shape.experts - shape.top_k
    case.logits[:, first : first + shape.top_k] += 20
    assert relative_error(case.run(), case.reference()) < BOUND


def test_no_tokens_returns_at_once(generator: torch.Generator) -> None:
    assert make(Shape(0), generator).run().shape == (0, 256)


def test_rows_of_x_may_be_apart(generator: torch.Generator) -> None:
    case = make(Shape(4), generator)
    wide = torch.full((4, 512), torch.nan, dtype=torch.bfloat16, device=case.x.device)
    wide[:, :256] = case.x
    assert torch.equal(replace(case, x=wide[:, :256]).run(), case.run())


@pytest.mark.skipif(not ON_GPU, reason="graphs need a GPU")
@pytest.mark.parametrize("tokens", [1, 4, 64, 256])
def test_a_replay_equals_eager_for_any_routing(tokens: int, path: str, generator: torch.Generator) -> None:
    if path == "few" and tokens > 4:
        pytest.skip("more tokens than the CUDA C++ kernels take")
    case = make(replace(QWEN3, tokens=tokens), generator)
    valid = torch.tensor([tokens], dtype=torch.int32, device=case.x.device)
    out = torch.full_like(case.x, torch.nan)

    def call() -> None:
        moe_fp8.moe_fp8(case.x, case.logits, *case.weights, top_k=8, valid=valid, out=out)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for live in (tokens, tokens // 2, 1, 0):
        case.logits.normal_(generator=generator)
        case.x.normal_(generator=generator)
        case.logits[:, :8] += 3.0 * (live % 2)
        valid.fill_(live)
        call()
        eager = out.clone()
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, eager)


@pytest.mark.skipif(not ON_GPU, reason="needs 5 GB of weights")
@pytest.mark.usefixtures("path")
def test_weights_past_2_31_elements(device: torch.device, generator: torch.Generator) -> None:
    hidden, inter, experts, top_k = 4096, 1536, 256, 2
    weights = []
    for rows, columns in ((2 * inter, hidden), (hidden, inter)):
        weight = torch.empty(experts, rows, columns, dtype=E4M3, device=device)
        weight[-top_k:] = torch.randn(top_k, rows, columns, generator=generator, device=device).to(E4M3)
        scale = torch.rand(experts, rows // 128, columns // 128, generator=generator, device=device)
        weights += [weight, scale * columns**-0.5]
    x = torch.randn(3, hidden, generator=generator, device=device).bfloat16()
    logits = torch.randn(3, experts, generator=generator, device=device)
    logits[:, -top_k:] += 50
    case = Case(Shape(3, hidden, inter, experts, top_k), x, logits, tuple(weights))
    assert relative_error(case.run(), case.reference()) < BOUND


@pytest.mark.parametrize(
    ("argument", "change", "message"),
    [
        ("x", lambda t: t.float(), "x: expected dtype bfloat16, got float32"),
        ("x", lambda t: t[0], "x: expected shape"),
        ("x", lambda t: t[:, :128], "w13: expected shape"),
        ("x", lambda t: t[:, :100].contiguous(), "w13: expected shape"),
        ("x", lambda t: t.T.contiguous().T, "x: expected contiguous rows"),
        ("x", lambda t: torch.cat([t, t[:, :4]], 1)[:, :256], "x: expected a row stride"),
        (
            "x",
            lambda t: torch.cat([t.flatten(), t[0]])[1 : 1 + t.numel()].view_as(t),
            "x: expected a pointer",
        ),
        ("router_logits", lambda t: t.double(), "router_logits: expected dtype"),
        ("router_logits", lambda t: t[:2], "router_logits: expected shape"),
        ("router_logits", lambda t: t.T.contiguous().T, "router_logits: expected contiguous rows"),
        ("router_logits", lambda t: t[:, :7], "w13: expected shape"),
        ("w13", lambda t: t.bfloat16(), "w13: expected dtype float8_e4m3fn, got bfloat16"),
        ("w13", lambda t: t[:, :200].contiguous(), "w13: expected a multiple of 256 rows"),
        ("w13", lambda t: t.transpose(1, 2), "w13: expected a contiguous tensor"),
        ("w2", lambda t: t[:, :, :64].contiguous(), "w2: expected shape"),
        ("w13_scale", lambda t: t.bfloat16(), "w13_scale: expected dtype float32"),
        ("w13_scale", lambda t: t[:, :1], "w13_scale: expected shape"),
        (
            "w2_scale",
            lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
            "w2_scale: expected a contiguous",
        ),
        ("top_k", lambda _: 9, "top_k: expected 1 to 8, got 9"),
        ("top_k", lambda _: 0, "top_k: expected 1 to 8, got 0"),
        ("valid", lambda _: torch.tensor([1.0]), "valid: expected dtype int32"),
        ("valid", lambda _: torch.ones(2, dtype=torch.int32), "valid: expected shape"),
        ("out", lambda _: torch.empty(5, 256), "out: expected dtype bfloat16"),
        ("out", lambda _: torch.empty(4, 256, dtype=torch.bfloat16), "out: expected shape"),
        ("out", lambda _: torch.empty(256, 5, dtype=torch.bfloat16).T, "out: expected a contiguous"),
    ],
)
def test_bad_input_is_refused(
    argument: str, change: Callable[..., object], message: str, generator: torch.Generator
) -> None:
    case = make(Shape(5), generator)
    names = ("w13", "w13_scale", "w2", "w2_scale")
    arguments = {"x": case.x, "router_logits": case.logits, **dict(zip(names, case.weights, strict=True))}
    changed = change(arguments.get(argument))
    arguments[argument] = changed.to(case.x.device) if isinstance(changed, torch.Tensor) else changed
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        moe_fp8.moe_fp8(**{"top_k": 2, **arguments})


@pytest.mark.skipif(contract.INTERPRETING, reason="the interpreter accepts tensors on a CPU")
def test_a_tensor_elsewhere_is_refused(generator: torch.Generator) -> None:
    case = make(Shape(5), generator)
    with pytest.raises(ValueError, match="router_logits: expected device"):
        replace(case, logits=case.logits.cpu()).run()
    with pytest.raises(ValueError, match="x: expected a CUDA device"):
        replace(case, x=case.x.cpu()).run()


def test_check_passes(device: torch.device) -> None:
    error, bound = moe_fp8.check(device)
    assert error < bound
