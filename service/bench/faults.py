"""What survives a kill: the service's flows, each killed once at each of its points."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from service.bench.faults_ci import CiFlow
from service.bench.faults_review import ReviewFlow
from service.bench.faults_wire import Flow, FlowResult, kill_everywhere

FLOWS: dict[str, type[Flow]] = {"review": ReviewFlow, "ci": CiFlow}


@dataclass(frozen=True, slots=True)
class FaultsResult:
    """All flows together; `lost` and `duplicated` are empty in a sound service."""

    flows: tuple[FlowResult, ...]

    @property
    def points(self) -> int:
        return sum(flow.points for flow in self.flows)

    @property
    def runs(self) -> int:
        return sum(flow.runs for flow in self.flows)

    @property
    def lost(self) -> tuple[str, ...]:
        return tuple(what for flow in self.flows for what in flow.lost)

    @property
    def duplicated(self) -> tuple[str, ...]:
        return tuple(what for flow in self.flows for what in flow.duplicated)


def run(
    sample: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    flows: tuple[str, ...] = tuple(FLOWS),
) -> FaultsResult:
    """Kills each flow at every point, or at `sample` of its points spread evenly."""
    results = []
    for name in flows:
        with tempfile.TemporaryDirectory(prefix="whitesmoke-faults-") as folder:
            results.append(kill_everywhere(FLOWS[name](), Path(folder), sample, progress))
    return FaultsResult(tuple(results))


def render(result: FaultsResult) -> str:
    """The table for people."""
    width = max((len(name) for flow in result.flows for name in flow.by_name), default=0)
    lines = []
    for flow in result.flows:
        lines += [f"{name:<{width}}  {count:>4} runs" for name, count in flow.by_name.items()]
        lines.append(_row(flow.flow, flow))
    lines.append(_row("all", result))
    lines += [f"LOST {one}" for one in result.lost]
    lines += [f"TWICE {one}" for one in result.duplicated]
    return "\n".join(lines)


def _row(name: str, counted: FlowResult | FaultsResult) -> str:
    figures = f"points {counted.points}, runs {counted.runs}"
    return f"{name}: {figures}, lost {len(counted.lost)}, duplicated {len(counted.duplicated)}"


def render_json(result: FaultsResult) -> str:
    return json.dumps({"flows": [_figures(flow) for flow in result.flows], **_totals(result)}, indent=2)


def _figures(flow: FlowResult) -> dict[str, object]:
    return asdict(flow) | {"lost": len(flow.lost), "duplicated": len(flow.duplicated)}


def _totals(result: FaultsResult) -> dict[str, object]:
    return {
        "points": result.points,
        "runs": result.runs,
        "lost": len(result.lost),
        "duplicated": len(result.duplicated),
        "wrong": [*result.lost, *result.duplicated],
    }
