"""Makes what a server serves: a model and its engine, on one device or on several, or its embeddings alone."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tokenizers
import torch

from runtime.checkpoint import require_divisible
from runtime.config import ModelConfig, read_config
from runtime.engine import Engine, EngineOptions
from runtime.parallel.engine import ParallelEngine, Ranks
from runtime.parallel.group import GroupError, Solo
from runtime.parallel.processes import RankError
from runtime.parallel.shard import WHOLE
from runtime.parallel.source import EngineSource, WeightsSource
from runtime.request import SamplingParameters
from runtime.server import shapes
from runtime.server.config import CACHE_DTYPES, Role, ServerConfig
from runtime.tokenizer import Tokenizer
from runtime.weights import load_embedding, load_weights

TOKENIZER = "tokenizer.json"
TINY_TOKENIZER = Path(__file__).parents[1] / "smoke" / TOKENIZER
"""The vocabulary of the shapes that have one."""


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
        ShardError: so many ranks cannot share the model; no rank was started.
        RankError: a rank died, or could not build its part.
        RequestError: the cache is too small for any request.
    """
    device = torch.device(config.device)
    model_config, weights, tokenizer_file = _model(config)
    info = ModelInfo(config.name, config.role, tokenizer_file)
    tokenizer = info.read_tokenizer()
    if config.role is Role.EMBED:
        rows = (
            load_embedding(config.model, model_config, device)
            if config.model is not None
            else weights(config=model_config, device=device, shard=WHOLE).embedding
        )
        return Served(info, model_config, device, None, lambda ids: torch.nn.functional.embedding(ids, rows))
    options = EngineOptions(
        pages=config.pages,
        page_size=config.page_size,
        max_batch=config.max_batch,
        max_step_tokens=config.max_step_tokens,
        cache_dtype=CACHE_DTYPES[config.cache_dtype] if config.cache_dtype else None,
        reuse_prefixes=config.reuse_prefixes,
        buckets=config.buckets or None,
        overlap=config.overlap,
    )
    source = EngineSource(model_config, options, weights, config.attention)
    if config.tensor_parallel > 1:
        return _on_ranks(config, source, info, tokenizer)
    model, _ = source.model(device, Solo())
    engine = Engine(model, options, tokenizer)
    if engine.graphs is not None:
        engine.graphs.capture()
    warm_up(engine)
    return Served(info, model_config, device, engine, model.embed)


def warm_up(engine: Engine) -> None:
    """Have kernels compiled before the first client waits for it."""
    sampling = SamplingParameters(temperature=1.0, top_k=2, max_tokens=2, ignore_stop_ids=True)
    engine.generate([[0]], sampling)
    while engine.has_work():
        engine.step()


def _on_ranks(
    config: ServerConfig, source: EngineSource, info: ModelInfo, tokenizer: Tokenizer | None
) -> Served:
    require_divisible(source.config, config.tensor_parallel)
    ranks = Ranks(config.tensor_parallel, config.device)
    try:
        engine: ParallelEngine = ranks.build(source, tokenizer)
        engine.capture()
        warm_up(engine)
    except BaseException:
        with contextlib.suppress(RankError, GroupError):  # the first error says more than what it led to
            ranks.close()
        raise
    device = engine._model.device
    # The embedding is whole on every rank.
    return Served(
        info, source.config, device, engine, engine._model.embed, ranks.close, lambda: ranks.failure
    )


def _model(config: ServerConfig) -> tuple[ModelConfig, WeightsSource, Path | None]:
    """The model's configuration, where its weights come from, and its tokenizer's file if it has one."""
    if config.model is not None:
        path = config.model / TOKENIZER
        return (
            read_config(config.model),
            partial(load_weights, config.model),
            path if path.exists() else None,
        )
    assert config.random is not None
    shape = shapes.shape(config.random, config.device)
    return shape.config, shape.weights, TINY_TOKENIZER if shape.has_text else None
