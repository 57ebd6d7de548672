"""A profile as a table: overlap off beside overlap on."""

from collections.abc import Callable

from runtime.profile.session import Figures, Spread

_GAPS = {
    "idle": "nothing on the GPU",
    "to activity": "until the GPU does anything",
    "to replay": "until the next replay's first kernel",
}
_EVENTS = {"to copies": "until the next step's copies", "to replay": "until the next replay, copies done"}


def table(off: Figures, on: Figures) -> str:
    """A Markdown table of both; spreads are `median / p99`, times microseconds unless said otherwise."""
    rows = [
        ("tokens/s", _number(off.tokens_per_s, 0), f"{on.tokens_per_s:,.0f} ({_ratio(off, on)})"),
        ("step, mean", _number(off.step_us), _number(on.step_us)),
        ("step", _spread(off.step), _spread(on.step)),
        *_spreads(off, on, "between replays, by events: ", _EVENTS, lambda one: one.event_gaps),
        *_spreads(off, on, "between replays, by the profiler: ", _GAPS, lambda one: one.traced_gaps),
        ("step under the profiler", _spread(off.traced_step), _spread(on.traced_step)),
        *_spreads(off, on, "host: ", {part: part for part in _parts(off, on)}, lambda one: one.parts),
        ("launches a step", _number(off.launches), _number(on.launches)),
        ("CUDA calls a step", _number(off.calls), _number(on.calls)),
        ("kernels a step", _number(off.kernels), _number(on.kernels)),
        *(
            (f"{name}, all traced steps", str(off.violations[name]), str(on.violations[name]))
            for name in dict.fromkeys([*off.violations, *on.violations])
        ),
    ]
    head = [("", "overlap off", "overlap on"), ("---", "---:", "---:")]
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


def _spreads(
    off: Figures, on: Figures, title: str, names: dict[str, str], of: Callable[[Figures], dict[str, Spread]]
) -> list[tuple[str, str, str]]:
    return [
        (f"{title}{shown}", _spread(of(off).get(name)), _spread(of(on).get(name)))
        for name, shown in names.items()
    ]


def _parts(off: Figures, on: Figures) -> list[str]:
    return [*off.parts, *(part for part in on.parts if part not in off.parts)]


def _ratio(off: Figures, on: Figures) -> str:
    return f"{on.tokens_per_s / off.tokens_per_s:.2f}x"


def _spread(spread: Spread | None) -> str:
    return "not measured" if spread is None else f"{spread.median:,.1f} / {spread.p99:,.1f}"


def _number(value: float, digits: int = 1) -> str:
    return f"{value:,.{digits}f}"
