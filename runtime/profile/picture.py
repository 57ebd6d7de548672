"""A timeline as an SVG picture: host, copies and GPU in rows, overlap off above overlap on, in microseconds."""

from dataclasses import dataclass
from html import escape

from runtime.profile.session import ProfileError, Timeline
from runtime.profile.trace import Activity, Replay

WIDTH = 1200
STEPS = 3  # in the panels that show whole steps

_LEFT, _RIGHT = 92, 26
_ROW, _GAP = 26, 6
_TITLE, _AXIS = 26, 30
_ROWS = ("host", "copies", "GPU")
_PANEL = _TITLE + len(_ROWS) * (_ROW + _GAP) + _AXIS + 14
_COLOURS = {
    "schedule": "#7fb3d5",
    "lay out": "#5dade2",
    "copy": "#f5b041",
    "check": "#a9dfbf",
    "replay": "#48a36f",
    "read back": "#a3e4d7",
    "collect": "#d7dbdd",
    "deliver": "#c39bd3",
}
_OTHER_PART, _REPLAY, _KERNEL, _COPY = "#aeb6bf", "#2e6da4", "#e67e22", "#f5b041"
_TEXT, _FAINT = "#1b2631", "#d5d8dc"
_TICKS = 10
_CAPTION = (
    "As torch.profiler saw it. It lengthens kernels and launches; times without it are in the table beside."
)


@dataclass(frozen=True)
class _Scale:
    """Maps microseconds of a trace to x; `zero` is where the axis starts."""

    zero: float
    length: float

    def x(self, moment: float) -> float:
        inside = min(max(moment, self.zero), self.zero + self.length)
        return _LEFT + (inside - self.zero) / self.length * (WIDTH - _LEFT - _RIGHT)

    def holds(self, start: float, end: float) -> bool:
        return end > self.zero and start < self.zero + self.length


def timeline(off: Timeline, on: Timeline) -> str:
    """Four panels: some whole steps without overlap and with it, then both around the end of a replay.

    Raises:
        ProfileError: there are too few replays to show.
    """
    both = (off, on)
    if min(len(one.replays) for one in both) < STEPS + 2:
        raise ProfileError(
            f"a timeline shows {STEPS} replays with one before and one after, there are"
            f" {len(off.replays)} and {len(on.replays)}; profile more steps"
        )
    middles = [(len(one.replays) - STEPS) // 2 for one in both]
    shown = list(zip(both, middles, strict=True))
    whole = 1.04 * max(one.replays[at + STEPS].start - one.replays[at].start for one, at in shown)
    widest = max(one.replays[at + 1].start - one.replays[at].end for one, at in shown)
    near = max(120.0, 2.0 * widest)
    parts: list[str] = []
    top = 8
    for one, at in shown:
        first = one.replays[at]
        title = f"overlap {_state(one)}: {STEPS} steps"
        parts += _panel(one, title, _Scale(first.start - 0.01 * whole, whole), top)
        top += _PANEL
    for one, at in shown:
        earlier, later = one.replays[at], one.replays[at + 1]
        scale = _Scale((earlier.end + later.start - near) / 2, near)
        parts += _panel(one, f"overlap {_state(one)}: from one replay to the next", scale, top)
        parts += _between(earlier, later, scale, top)
        top += _PANEL
    parts += _legend(top + 4)
    parts.append(f'<text x="{_LEFT}" y="{top + 58}" font-size="11">{_CAPTION}</text>')
    height = top + 70
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{_TEXT}">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _state(one: Timeline) -> str:
    return "on" if one.overlap else "off"


def _panel(one: Timeline, title: str, scale: _Scale, top: int) -> list[str]:
    parts = [f'<text x="{_LEFT}" y="{top + 15}" font-weight="bold">{escape(title)}</text>']
    parts += _axis(scale, top)
    for row, name in enumerate(_ROWS):
        parts.append(f'<text x="{_LEFT - 10}" y="{_y(top, row) + 17}" text-anchor="end">{name}</text>')
    for part in one.host:
        if scale.holds(part.start, part.end):
            colour = _COLOURS.get(part.name, _OTHER_PART)
            parts.append(_block(scale, part.start, part.end, _y(top, 0), colour, part.name))
    inside = {id(activity) for replay in one.replays for activity in replay.activities}
    for activity in one.trace.activities:
        if scale.holds(activity.start, activity.end) and id(activity) not in inside:
            parts.append(_activity(activity, scale, top))
    for replay in one.replays:
        if scale.holds(replay.start, replay.end):
            name = f"replay, {len(replay.activities)} nodes"
            parts.append(_block(scale, replay.start, replay.end, _y(top, 2), _REPLAY, name, "#ffffff"))
    return parts


def _activity(activity: Activity, scale: _Scale, top: int) -> str:
    row, colour = (1, _COPY) if activity.kind == "copy" else (2, _KERNEL)
    return _block(scale, activity.start, activity.end, _y(top, row), colour, activity.name)


def _between(earlier: Replay, later: Replay, scale: _Scale, top: int) -> list[str]:
    """A bracket under the GPU's row with the time between the two replays."""
    y = _y(top, 2) + _ROW + 3
    left, right = scale.x(earlier.end), scale.x(later.start)
    text = f"{later.start - earlier.end:.1f} µs between replays"
    return [
        f'<path d="M{left:.2f} {y}v4H{right:.2f}v-4" fill="none" stroke="#c0392b" stroke-width="1.5"/>',
        f'<text x="{right + 6:.2f}" y="{y + 8}" fill="#c0392b" font-weight="bold">{text}</text>',
    ]


def _axis(scale: _Scale, top: int) -> list[str]:
    step = _tick(scale.length / _TICKS)
    bottom = top + _PANEL - 14
    low = bottom - 14
    parts = []
    for number in range(int(scale.length // step) + 1):
        x = scale.x(scale.zero + number * step)
        parts.append(
            f'<line x1="{x:.2f}" y1="{top + _TITLE - 4}" x2="{x:.2f}" y2="{low}" stroke="{_FAINT}"/>'
        )
        parts.append(
            f'<text x="{x:.2f}" y="{bottom}" text-anchor="middle" font-size="11">{number * step:g} µs</text>'
        )
    return parts


def _block(scale: _Scale, start: float, end: float, y: int, colour: str, name: str, ink: str = _TEXT) -> str:
    left = scale.x(start)
    width = max(scale.x(end) - left, 1.0)
    label = f"{name} {end - start:.1f} µs"
    inside = next((text for text in (label, name) if len(text) * 6.6 + 6 < width), None)
    text = (
        ""
        if inside is None
        else f'<text x="{left + width / 2:.2f}" y="{y + 17}" text-anchor="middle" fill="{ink}">{escape(inside)}</text>'
    )
    return (
        f'<g><title>{escape(label)}</title><rect x="{left:.2f}" y="{y}" width="{width:.2f}" height="{_ROW}"'
        f' fill="{colour}"/>{text}</g>'
    )


def _legend(y: int) -> list[str]:
    entries = [
        *((f"host: {name}", colour) for name, colour in _COLOURS.items()),
        ("GPU: replay", _REPLAY),
        ("GPU: other kernel", _KERNEL),
    ]
    parts, x = [], _LEFT
    for name, colour in entries:
        width = 26 + int(len(name) * 6.4)
        if x + width > WIDTH - _RIGHT:
            x, y = _LEFT, y + 20
        parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="{y + 11}">{escape(name)}</text>')
        x += width
    return parts


def _y(top: int, row: int) -> int:
    return top + _TITLE + row * (_ROW + _GAP)


def _tick(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least so long."""
    power = 1.0
    while power * 10 < least:
        power *= 10
    while power > least:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
