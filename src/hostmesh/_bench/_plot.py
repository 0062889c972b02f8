"""A curve of `hostmesh bench` as SVG, without a plotting library: time over size, both by decades.

Series differ by colour, by the shape of their marks and by how their lines are broken, so that
print and those who see some colours alike can read them. Dark and light follow the reader's
`prefers-color-scheme`. The description has every value in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from .._doctor._units import duration, size
from .._draw._palette import COLOURS
from .._draw._svg import xml
from .._draw._words import counted


class Point(TypedDict):
    """Median seconds at one size; `None` is what was not measured."""

    x: int
    ours: float | None
    peer: float | None
    bound: float | None


class Curve(TypedDict):
    """What is plotted: `x` says what grows, `peer` and `bound` what stands beside hostmesh."""

    name: str
    title: str
    x: str
    peer: str
    bound: str | None
    points: list[Point]


_WIDTH, _LEFT, _RIGHT = 720, 84, 24  # the whole picture, and what is left free beside the frame
_TOP, _HEIGHT, _BELOW = 84, 300, 52  # above the frame, the frame, and below it
_APART = 8  # least pixels between labels of the x axis
_CHARACTER = 6.7  # the width of one, about
_ONE = {"processes": "process", "leaves": "leaf", "devices": "device"}

# The marks are as large as each other, about 0, 0.
_MARKS = {
    "ours": '<circle r="4.5"/>',
    "peer": '<rect x="-4" y="-4" width="8" height="8"/>',
    "bound": '<path d="M0-5 5 4H-5Z"/>',
}
_SERIES = {"ours": COLOURS[5][0], "peer": COLOURS[6][0]}  # blue and vermilion: apart for all
_STYLE = (
    ".hmb{font:12px system-ui,'DejaVu Sans',Arial,sans-serif}"
    ".hmb .h{font-weight:600;font-size:16px}.hmb .r{text-anchor:end}.hmb .c{text-anchor:middle}"
    ".hmb .line{fill:none;stroke-width:2}.hmb .peer .line{stroke-dasharray:7 4}"
    ".hmb .bound .line{stroke-dasharray:2 4}.hmb .mark{stroke-width:1.5}"
    ".hmb .bg{fill:#fff}.hmb text{fill:#1b1f24}.hmb .n{fill:#57606a}.hmb .grid{stroke:#d0d7de}"
    ".hmb .frame{fill:none;stroke:#57606a}.hmb .bound .line,.hmb .bound .mark{stroke:#57606a}"
    ".hmb .mark{fill:#fff}"
    "@media screen and (prefers-color-scheme:dark){"
    ".hmb .bg{fill:#0d1117}.hmb text{fill:#e6edf3}.hmb .n{fill:#9da7b3}.hmb .grid{stroke:#30363d}"
    ".hmb .frame{stroke:#9da7b3}.hmb .bound .line,.hmb .bound .mark{stroke:#9da7b3}"
    ".hmb .mark{fill:#0d1117}}"
    + "".join(
        f".hmb .{series} .line,.hmb .{series} .mark{{stroke:{colour}}}"
        f".hmb .{series} .mark{{fill:{colour}}}"
        for series, colour in _SERIES.items()
    )
)


def write_plots(curves: Sequence[Curve], folder: Path) -> list[Path]:
    """Writes each curve as `NAME.svg` into a folder, which is made; returns where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{curve['name']}.svg" for curve in curves]
    for path, curve in zip(paths, curves, strict=True):
        path.write_text(plot(curve), "utf-8")
    return paths


def plot(curve: Curve) -> str:
    """The picture of one curve. What was not measured is left out, and said so if that is all."""
    names = {"ours": "hostmesh", "peer": curve["peer"], "bound": curve["bound"]}
    measured = {
        series: [(point["x"], value) for point in curve["points"] if (value := point[series])]
        for series in _MARKS
    }
    shown = {series: values for series, values in measured.items() if values}
    across = _across([x for values in shown.values() for x, _ in values])
    down = _down([value for values in shown.values() for _, value in values])

    parts = [f'<text class="h" x="16" y="28">{xml(curve["title"])}</text>']
    bottom, right = _TOP + _HEIGHT, _WIDTH - _RIGHT
    for value in down.ticks:
        y = down.at(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.2f}H{right}"/>')
        parts.append(_text(duration(value), _LEFT - 10, y + 4, "n y r"))
    parts += _x_axis(
        across, sorted({x for values in shown.values() for x, _ in values}), curve["x"]
    )
    parts.append(
        f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{_HEIGHT}"/>'
    )
    if not shown:
        parts.append(_text("not measured", (_LEFT + right) / 2, (_TOP + bottom) / 2, "n c"))
    left = 16.0
    for series in shown:
        name = names[series] or series
        parts.append(_entry(series, name, left))
        left += 60 + _CHARACTER * len(name)
    # hostmesh is drawn last, over what it is compared with.
    for series, values in reversed(shown.items()):
        places = [(across.at(x), down.at(value)) for x, value in values]
        line = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        told = [
            f"{names[series]}, {in_words(x, curve['x'])}: {duration(value)}" for x, value in values
        ]
        marks = "".join(
            f'<g class="mark" transform="translate({x:.2f} {y:.2f})">'
            f"<title>{xml(words)}</title>{_MARKS[series]}</g>"
            for (x, y), words in zip(places, told, strict=True)
        )
        parts.append(f'<g class="{series}"><polyline class="line" points="{line}"/>{marks}</g>')
    parts.append(_text("time of a call, less is better", right, 56, "n r"))
    height = bottom + _BELOW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hmb" role="img"'
        f' aria-labelledby="{curve["name"]}-t {curve["name"]}-d" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" style="max-width:100%;height:auto">'
        f'<title id="{curve["name"]}-t">{xml(curve["title"])}</title>'
        f'<desc id="{curve["name"]}-d">{xml(described(curve))}</desc><style>{_STYLE}</style>'
        f'<rect class="bg" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def described(curve: Curve) -> str:
    """The curve in words, for those who do not see it."""
    names = {"ours": "hostmesh", "peer": curve["peer"], "bound": curve["bound"]}
    sentences = [
        f"{in_words(point['x'], curve['x'])}: "
        + ", ".join(f"{names[s]} {duration(point[s])}" for s in names if point[s])
        for point in curve["points"]
        if any(point[series] for series in names)
    ]
    return ". ".join([*sentences, ""]).strip() or "Not measured."


def in_words(x: int, what: str) -> str:
    """One size with what it counts.

    >>> in_words(2**20, "bytes"), in_words(1, "leaves"), in_words(8192, "devices")
    ('1 MiB', '1 leaf', '8,192 devices')
    """
    return size(x) if what == "bytes" else counted(x, _ONE.get(what, what), what)


class _Scale:
    """Where a value stands between two ends, by its logarithm."""

    def __init__(self, low: float, high: float, start: float, end: float, ticks: Sequence[float]):
        self.ticks = ticks
        self._low, self._span = math.log(low), math.log(high) - math.log(low)
        self._start, self._length = start, end - start

    def at(self, value: float) -> float:
        return self._start + self._length * (math.log(value) - self._low) / self._span


def _across(values: Sequence[float]) -> _Scale:
    low, high = min(values, default=1), max(values, default=1)
    low, high = (low, high) if low < high else (low / 2, high * 2)
    return _Scale(low, high, _LEFT + 24, _WIDTH - _RIGHT - 24, ())


def _down(values: Sequence[float]) -> _Scale:
    """From a round number below all values to one above them: 1, 2 or 5 of a decade."""
    low, high = min(values, default=1e-3), max(values, default=1e-1)
    aside = max(1.1, (high / low) ** 0.03)  # no mark stands on the frame
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    steps = [float(f"{m}e{e}") for e in range(first, last + 1) for m in (1, 2, 5)]
    start = max(step for step in steps if step < low / aside)
    end = min(step for step in steps if step > high * aside)
    ticks = [step for step in steps if start <= step <= end]
    if len(ticks) > 8:
        ticks = [step for step in ticks if f"{step:e}".startswith("1")]
    return _Scale(start, end, _TOP + _HEIGHT, _TOP, ticks if values else ())


def _x_axis(across: _Scale, values: Sequence[int], what: str) -> Iterator[str]:
    """The sizes that were measured, as many as there is room for, the largest always."""
    bottom = _TOP + _HEIGHT
    free = math.inf
    for x in reversed(values):
        label, at = _size(x, what), across.at(x)
        half = _CHARACTER * len(label) / 2
        yield f'<path class="frame" d="M{at:.2f} {bottom}v5"/>'
        if at + half + _APART <= free:
            yield _text(label, at, bottom + 20, "n x c")
            free = at - half
    yield _text(what, (_LEFT + _WIDTH - _RIGHT) / 2, bottom + 40, "c")


def _entry(series: str, name: str, left: float) -> str:
    line = '<path class="line" d="M-16 0H16"/>'
    mark = f'<g class="mark">{_MARKS[series]}</g>'
    return (
        f'<g class="{series}" transform="translate({left + 16:.0f} 52)">{line}{mark}'
        f'<text class="name" x="24" y="4">{xml(name)}</text></g>'
    )


def _text(words: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.2f}" y="{y:.2f}">{xml(words)}</text>'


def _size(x: int, what: str) -> str:
    return size(x) if what == "bytes" else f"{x:,}"
