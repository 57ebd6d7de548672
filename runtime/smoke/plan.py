"""A suite's cases checked and sorted into servers: nothing starts while anything is wrong with any of them."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.request import SamplingParameters
from runtime.server import cli, shapes
from runtime.server.config import ServerConfig
from runtime.smoke.cases import Case
from runtime.smoke.errors import SmokeError


@dataclass(frozen=True)
class Planned:
    """A case, and how its server is started.

    Attributes:
        arguments: of `serve`, all of them.
        config: what they ask for, normalised.
        waves: prompts and sampling of the requests that are asked together.
    """

    case: Case
    arguments: tuple[str, ...]
    config: ServerConfig
    waves: tuple[tuple[tuple[str | Sequence[int], SamplingParameters], ...], ...]


def plan(cases: Sequence[Case], device: str) -> list[list[Planned]]:
    """The cases in order, those together that one server is asked.

    Args:
        device: "cpu" or "cuda".

    Raises:
        SmokeError: naming the case, and what is wrong with it.
    """
    groups: list[list[Planned]] = []
    names = set()
    for case in cases:
        if case.name in names:
            raise SmokeError(f"case {case.name}: there are two of this name")
        names.add(case.name)
        planned = _planned(case, device)
        if groups and case.shared and groups[-1][-1].arguments == planned.arguments:
            groups[-1].append(planned)
        else:
            groups.append([planned])
    return groups


def _planned(case: Case, device: str) -> Planned:
    if case.model not in shapes.NAMES:
        raise SmokeError(
            f"case {case.name}: model: expected one of {', '.join(shapes.NAMES)}, got {case.model}"
        )
    count = len(case.prompts)
    concurrency = count if case.concurrency is None else case.concurrency
    if not 1 <= concurrency <= count or count % concurrency:
        raise SmokeError(
            f"case {case.name}: concurrency: expected a divisor of {count} prompts, got {concurrency}"
        )
    sampling = [case.sampling] * count if isinstance(case.sampling, SamplingParameters) else case.sampling
    if len(sampling) != count:
        raise SmokeError(
            f"case {case.name}: sampling: expected one for each of {count} prompts, got {len(sampling)}"
        )
    asked = list(zip(case.prompts, sampling, strict=True))
    waves = tuple(tuple(asked[at : at + concurrency]) for at in range(0, count, concurrency))
    arguments = (
        *("--random", case.model, "--device", device, "--gather", str(concurrency)),
        *case.arguments,
    )
    config = _config(case, arguments)
    return Planned(case, arguments, config, waves)


def _config(case: Case, arguments: Sequence[str]) -> ServerConfig:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            config = cli.read(arguments)
    except SystemExit:
        raise SmokeError(f"case {case.name}: {said.getvalue().splitlines()[-1]}") from None
    problems = config.problems()
    if problems:
        raise SmokeError(f"case {case.name}: {problems[0]}")
    return config.normalised()[0]
