"""Makes what a server serves: a model and its engine, or its embeddings alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import torch

from runtime.attention.select import make_attention
from runtime.bench.engines import QWEN3_06B
from runtime.config import ModelConfig, read_config
from runtime.engine import Engine, EngineOptions
from runtime.kernel_ops import KernelOps
from runtime.model import Model
from runtime.ops import Ops, ReferenceOps
from runtime.request import SamplingParameters
from runtime.server.config import Role, ServerConfig
from runtime.smoke import cases, run
from runtime.tokenizer import Tokenizer
from runtime.weights import Weights, load_embedding, load_weights, random_weights

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class ModelInfo:
    """What whoever speaks to clients knows of the model.

    Attributes:
        tokenizer: its file; None where prompts are token ids or embeddings.
    """

    name: str
    role: Role
    tokenizer: Path | None

    def read_tokenizer(self) -> Tokenizer | None:
        if self.tokenizer is None:
            return None
        if self.tokenizer.name == TOKENIZER:
            return Tokenizer.read(self.tokenizer.parent)
        return Tokenizer(tokenizers.Tokenizer.from_file(str(self.tokenizer)))


def _nothing() -> None:
    """Nothing is to be done, or nothing is wrong."""


@dataclass(frozen=True)
class Served:
    """A model that is ready to serve, in the hands of the engine's thread.

    Attributes:
        engine: None where the role has no use for one.
        embed: token ids [n] on the model's device -> [n, hidden size].
        close: gives everything back; called once, at the end.
        failure: what has broken the engine, step or no step; None while it is well. Asked when the engine is idle.
    """

    info: ModelInfo
    config: ModelConfig
    device: torch.device
    engine: Engine | None
    embed: Callable[[torch.Tensor], torch.Tensor]
    close: Callable[[], None] = _nothing
    failure: Callable[[], Exception | None] = _nothing


def build(config: ServerConfig) -> Served:
    """Load or draw the weights, capture the steps, and run one request so that kernels are compiled.

    Args:
        config: without problems, normalised.

    Raises:
        ConfigError, WeightsError, TokenizerError: the folder is not what this engine serves.
        AttentionBackendError: the backend does not take this model.
    """
    device = torch.device(config.device)
    shape = read_config(config.model) if config.model is not None else _shape(config)
    info = ModelInfo(config.name, config.role, _tokenizer_file(config))
    tokenizer = info.read_tokenizer()
    if config.role is Role.EMBED:
        rows = (
            load_embedding(config.model, shape, device)
            if config.model is not None
            else random_weights(shape, cases.SEED, device).embedding
        )
        return Served(info, shape, device, None, lambda ids: torch.nn.functional.embedding(ids, rows))
    weights = (
        load_weights(config.model, shape, device)
        if config.model is not None
        else random_weights(shape, cases.SEED, device)
    )
    model = _model(config, shape, weights, device)
    options = EngineOptions(
        pages=config.pages,
        page_size=config.page_size,
        max_batch=config.max_batch,
        max_step_tokens=config.max_step_tokens,
        buckets=config.buckets or None,
        overlap=config.overlap,
    )
    engine = Engine(model, options, tokenizer)
    warm_up(engine)
    return Served(info, shape, device, engine, model.embed)


def warm_up(engine: Engine) -> None:
    """Compile and capture before the first client waits for it."""
    if engine.graphs is not None:
        engine.graphs.capture()
    sampling = SamplingParameters(temperature=1.0, top_k=2, max_tokens=2, ignore_stop_ids=True)
    engine.generate([[0]], sampling)
    while engine.has_work():
        engine.step()


def _model(config: ServerConfig, shape: ModelConfig, weights: Weights, device: torch.device) -> Model:
    ops: Ops = KernelOps(device) if device.type == "cuda" else ReferenceOps()
    attention = make_attention(config.attention, shape, config.max_batch, config.page_size, device)
    return Model(shape, weights, ops, attention)


def _shape(config: ServerConfig) -> ModelConfig:
    on_gpu = config.device == "cuda"
    if config.random == "tiny":
        return cases.GPU_DENSE if on_gpu else cases.CPU_DENSE
    return QWEN3_06B if on_gpu else replace(QWEN3_06B, dtype=torch.float32)


def _tokenizer_file(config: ServerConfig) -> Path | None:
    """The tiny shape has the smoke test's vocabulary; the other random one could only give noise."""
    if config.model is None:
        return run.FOLDER / TOKENIZER if config.random == "tiny" else None
    path = config.model / TOKENIZER
    return path if path.exists() else None
