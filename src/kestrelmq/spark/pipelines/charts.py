"""Draw small SVG charts over time, as text; the page's style sheet gives the colours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 480, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 6, 8, 20
_GAP = 0.18
_HALF_LABEL = 36


@dataclass(frozen=True, slots=True)
class Series:
    """Values to draw, one for each time; `style` is a class of the style sheet."""

    name: str
    style: str
    values: Sequence[int]


def column_chart(title: str, times: Sequence[int], series: Sequence[Series]) -> str:
    """Return a chart with one column of each series, side by side, for each time (ms)."""
    top = nice_top(max(max(one.values, default=0) for one in series))
    y = _scale(top)
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(times), 1)
    width = slot * (1 - _GAP) / len(series)
    marks = []
    for number, one in enumerate(series):
        for place, value in enumerate(one.values):
            x = _LEFT + place * slot + slot * _GAP / 2 + number * width
            label = escape(f"{one.name}: {value:,} · {_label(times[place], full=True)}")
            marks.append(
                f'<rect class="{one.style}" x="{x:.2f}" y="{y(value):.2f}" width="{width:.2f}" '
                f'height="{y(0) - y(value):.2f}"><title>{label}</title></rect>'
            )
    return _frame(title, times, top, "".join(marks))


def area_chart(title: str, times: Sequence[int], series: Series) -> str:
    """Return a chart with one filled line over the times (ms)."""
    top = nice_top(max(series.values, default=0))
    y = _scale(top)
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(times), 1)
    # A value is that at the end of its hour; the line is level within the hour.
    points = []
    for place, value in enumerate(series.values):
        left = _LEFT + place * slot
        points += [f"{left:.2f},{y(value):.2f}", f"{left + slot:.2f},{y(value):.2f}"]
    line = " ".join(points)
    area = f"{_LEFT},{y(0):.2f} {line} {WIDTH - _RIGHT},{y(0):.2f}"
    marks = (
        f'<polygon class="{series.style}-area" points="{area}"/>'
        f'<polyline class="{series.style}-line" points="{line}"/>'
    )
    return _frame(title, times, top, marks)


def nice_top(value: int) -> int:
    """Return the least number >= `value` that is 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 3, 4, 5, 6, 8):
            if factor * power >= value:
                return factor * power
        power *= 10


def _scale(top: int) -> Callable[[float], float]:
    height = HEIGHT - _TOP - _BOTTOM
    # If the beginning of a journal is missing, the computed depth can be negative.
    return lambda value: _TOP + height * (1 - max(value, 0) / top)


def _frame(title: str, times: Sequence[int], top: int, marks: str) -> str:
    y = _scale(top)
    lines = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value):.1f}" '
        f'y2="{y(value):.1f}"/><text x="{_LEFT - 6}" y="{y(value) + 3.5:.1f}" '
        f'text-anchor="end">{_short(value)}</text>'
        for value in (0, top / 2, top)
    )
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(times), 1)
    step = max(1, -(-len(times) // 5))
    middles = [(place, _LEFT + (place + 0.5) * slot) for place in range(len(times))]
    labels = "".join(
        f'<text x="{x:.1f}" y="{HEIGHT - 5}" text-anchor="middle">'
        f"{_label(times[place], full=False)}</text>"
        for place, x in middles[step // 2 :: step]
        if x <= WIDTH - _HALF_LABEL
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{lines}{marks}{labels}</svg>"
    )


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _label(milliseconds: int, *, full: bool) -> str:
    try:
        time = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return time.strftime("%Y-%m-%d %H:%M" if full else "%d %b %H:%M")
