"""The command `serve`: checks everything that it was told, then serves until it is told to end."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from runtime.attention import AttentionBackendError
from runtime.attention.select import KINDS
from runtime.config import ConfigError
from runtime.errors import RequestError
from runtime.parallel.connect import DevicesError
from runtime.parallel.group import GroupError
from runtime.parallel.processes import RankError
from runtime.parallel.shard import ShardError
from runtime.server import shapes
from runtime.server.config import CACHE_DTYPES, Role, ServerConfig
from runtime.server.frontends import FrontendError, serve_behind_frontends
from runtime.server.listen import AddressError
from runtime.server.serve import serve
from runtime.tokenizer import TokenizerError
from runtime.weights import WeightsError

DEFAULT = ServerConfig()


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve` to the program's commands."""
    serving = commands.add_parser("serve", help="serve a model over gRPC (runtime/proto/engine.proto)")
    add_arguments(serving)
    serving.set_defaults(command=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a server can be told."""
    add = parser.add_argument
    add("--model", type=Path, metavar="FOLDER", help="config.json, *.safetensors and maybe tokenizer.json")
    add("--random", metavar="SHAPE", help=f"random weights instead: {', '.join(shapes.NAMES)}")
    add(
        "--name",
        default=DEFAULT.name,
        help="that requests may name the model by; else the folder's or shape's",
    )
    add("--role", type=Role, choices=list(Role), default=DEFAULT.role, help="embed loads the embedding alone")
    add("--host", default=DEFAULT.host, help="address to listen at; there is no encryption")
    add("--port", type=int, default=DEFAULT.port, help="0 takes a free one")
    add("--device", default=DEFAULT.device, help="cpu or cuda; else a GPU where there is one")
    add("--attention", default=DEFAULT.attention, help=f"backend: {', '.join(KINDS)}")
    add(
        "--tensor-parallel",
        type=int,
        metavar="N",
        default=DEFAULT.tensor_parallel,
        help="processes that share the model, a GPU each",
    )
    add("--pages", type=int, default=DEFAULT.pages, help="of the cache")
    add("--page-size", type=int, default=DEFAULT.page_size, help="tokens of a page")
    add("--max-batch", type=int, default=DEFAULT.max_batch, help="most requests in a step")
    add("--max-step-tokens", type=int, default=DEFAULT.max_step_tokens, help="most prompt tokens in a step")
    add(
        "--cache-dtype",
        choices=list(CACHE_DTYPES),
        default=DEFAULT.cache_dtype,
        help="of keys and values; else the model's",
    )
    add("--no-prefix-reuse", action="store_true", help="compute every prompt from its start")
    add("--buckets", type=int, nargs="*", help="lanes of captured decode steps; none computes all eagerly")
    add("--no-overlap", action="store_true", help="prepare a step only once the one before it is done")
    add("--gather", type=int, default=DEFAULT.gather, help="requests that an idle engine waits for")
    add("--frontends", type=int, default=DEFAULT.frontends, help="processes that speak to clients")
    add("--max-message", type=int, default=DEFAULT.max_message, help="bytes of a request")
    add("--max-waiting", type=int, default=DEFAULT.max_waiting, help="requests that may wait for a place")
    add(
        "--max-queued", type=int, default=DEFAULT.max_queued, help="parts a request's client may leave unread"
    )
    add("--drain", type=float, default=DEFAULT.drain, help="seconds that requests may go on for at the end")


def read(words: Sequence[str]) -> ServerConfig:
    """The configuration that a command line asks for; a word that is none of the command's ends the program."""
    parser = argparse.ArgumentParser(prog="serve")
    add_arguments(parser)
    return config_of(parser.parse_args(words))


def config_of(arguments: argparse.Namespace) -> ServerConfig:
    """The configuration as it was asked for, problems and all."""
    return ServerConfig(
        model=arguments.model,
        random=arguments.random,
        name=arguments.name,
        role=arguments.role,
        host=arguments.host,
        port=arguments.port,
        device=arguments.device,
        attention=arguments.attention,
        tensor_parallel=arguments.tensor_parallel,
        pages=arguments.pages,
        page_size=arguments.page_size,
        max_batch=arguments.max_batch,
        max_step_tokens=arguments.max_step_tokens,
        cache_dtype=arguments.cache_dtype,
        reuse_prefixes=not arguments.no_prefix_reuse,
        buckets=None if arguments.buckets is None else tuple(arguments.buckets),
        overlap=not arguments.no_overlap,
        gather=arguments.gather,
        frontends=arguments.frontends,
        max_message=arguments.max_message,
        max_waiting=arguments.max_waiting,
        max_queued=arguments.max_queued,
        drain=arguments.drain,
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve; returns the exit status: 2 for what was wrong before the start, 1 for an engine that failed."""
    config = config_of(arguments)
    problems = config.problems()
    if problems:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    config, notes = config.normalised()
    for note in notes:
        print(note, flush=True)
    try:
        return asyncio.run(serve(config) if config.frontends == 1 else serve_behind_frontends(config))
    except (
        AddressError,
        FrontendError,
        ConfigError,
        WeightsError,
        TokenizerError,
        AttentionBackendError,
        ShardError,
        DevicesError,
        RankError,
        GroupError,
        RequestError,
        torch.OutOfMemoryError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
