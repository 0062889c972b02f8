"""Pictures as SVG, without a plotting library: sections of panels of cells become boxes of text.

A cell is a stack of sheets, one for each device that holds an equal copy, so that every label is
seen. Colours help and numbers tell; dark and light follow the reader's `prefers-color-scheme`. The
styles are scoped by a class, since a page that has the SVG within it shares them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import cell_len

from .._plan import Plan
from ._palette import COLOURS, number_of
from ._picture import Cell, Limits, Panel, Section, sections_of
from ._words import counted, spec_in_words

# From the fullest to the narrowest: the first whose file is no larger than this is taken.
_LARGEST = 190_000
_LADDER = (
    Limits(16, 32, 32, 6, 4),
    Limits(8, 16, 16, 6, 4),
    Limits(4, 10, 10, 4, 3),
    Limits(2, 6, 6, 3, 2),
    Limits(1, 3, 3, 2, 1),
)
_CHARACTER, _WIDTHS = 7.3, {"n": 6.7, "t": 8.0, "h": 9.4}  # of labels; of prose, by its class
_STRIP, _SHEET, _GAP = 20, 24, 6  # what is seen of a sheet below others, a sheet, between cells
_WIDEST, _NARROWEST = 1120, 340  # sections side by side; the notes of one
_LEGEND, _SPOKEN = 16, 16  # processes in the legend, cells of a section in the alternative text

_LIGHT = (
    ".hm .bg{fill:#fff;stroke:none}.hm text{fill:#1b1f24}.hm .n{fill:#57606a}"
    ".hm rect,.hm .dash{stroke:#1b1f24}.hm .more rect{fill:#e4e7eb}.hm .hole text{stroke:#fff}"
)
_DARK = (
    ".hm .bg{fill:#0d1117}.hm text{fill:#e6edf3}.hm .n{fill:#9da7b3}"
    ".hm .hole rect,.hm .more rect,.hm .dash{stroke:#9da7b3}.hm .more rect{fill:#30363d}"
    ".hm .hole text{stroke:#0d1117}"
)
_STYLE = (
    ".hm{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}"
    ".hm .n,.hm .t,.hm .h{font-family:system-ui,'DejaVu Sans',Arial,sans-serif}"
    ".hm .t{font-weight:600;font-size:14px}.hm .h{font-weight:600;font-size:16px}"
    ".hm .r{text-anchor:end}.hm .c{text-anchor:middle}"
    ".hm .mine rect{stroke-width:3}.hm .mine text{font-weight:700}.hm .hole rect{stroke-dasharray:4 3}.hm .hole text{stroke-width:5px;paint-order:stroke}"
    f"{_LIGHT}@media screen and (prefers-color-scheme:dark){{{_DARK}}}"
    + "".join(
        f".hm .p{k} rect{{fill:{colour};stroke:#1b1f24}}.hm .p{k} text{{fill:{ink}}}"
        for k, (colour, ink) in enumerate(COLOURS)
    )
)


@dataclass(frozen=True)
class _Block:
    """A part of the picture, whose upper left corner is at 0, 0."""

    width: float
    height: float
    body: str


def svg(plan: Plan, *, name: str = "", limits: Limits | None = None) -> str:
    """A picture of the mesh, the global array and what the plan's process passes.

    What makes the file too large is abridged, unless `limits` say what is shown.
    """
    whole = ""
    for rung in _LADDER if limits is None else (limits,):
        whole = _drawn(plan, name, rung)
        if len(whole.encode()) <= _LARGEST:
            break
    return whole


def headline(plan: Plan, name: str = "") -> str:
    """One line that says what a picture shows."""
    topology = plan.topology
    axes = " x ".join(f"{axis}={size}" for axis, size in topology.axes) or "of no axis"
    who = counted(len(topology.processes), "process", "processes")
    what = f"{name} {plan.global_shape}".strip()
    return f"{what} cut by {spec_in_words(plan)} on mesh {axes} of {who}"


def _drawn(plan: Plan, name: str, limits: Limits) -> str:
    title = headline(plan, name)
    sections = [make(limits) for make in sections_of(plan, name)]
    mark = "hm" + hashlib.blake2s(repr((title, sections)).encode()).hexdigest()[:8]
    blocks = [_section(section, mark) for section in sections]
    below = _flow(blocks, _WIDEST, 48)
    width = max(below.width, 480)
    parts = [
        _lines(title, "h", width),
        _flow(list(_legend(plan, sections, mark)), width, 16),
        below,
    ]
    whole = _beneath(parts, 18)
    full_width, full_height = round(max(width, whole.width)) + 32, round(whole.height) + 32
    hatch = (
        f'<pattern id="{mark}h" width="7" height="7" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)"><path class="dash" d="M0 0V7" stroke-width="3"/></pattern>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hm" role="img"'
        f' aria-labelledby="{mark}t {mark}d" width="{full_width}" height="{full_height}"'
        f' viewBox="0 0 {full_width} {full_height}" style="max-width:100%;height:auto">'
        f'<title id="{mark}t">{xml(title)}</title>'
        f'<desc id="{mark}d">{xml(" ".join(_spoken(sections)))}</desc>'
        f"<style>{_STYLE}</style><defs>{hatch}</defs>"
        f'<rect class="bg" width="100%" height="100%"/>{_moved(whole, 16, 16)}</svg>\n'
    )


def _legend(plan: Plan, sections: Sequence[Section], mark: str) -> Iterator[_Block]:
    """The colours of processes, and the signs that the sections have."""
    processes = plan.topology.processes
    for process in processes[:_LEGEND]:
        sheet = _sheet(f"p{number_of(process)}", f"p{process}", 0, 0, 44, _SHEET)
        yield _signed(sheet, f"process {process}")
    if len(processes) > _LEGEND:
        more = f"and {counted(len(processes) - _LEGEND, 'more process', 'more processes')}"
        yield _signed("", f"{more}; colours repeat after {len(COLOURS)}: read the numbers", 0)
    if sections[0].marked is not None:
        own = _sheet("more mine", "", 1, 1, 42, _SHEET - 2)
        yield _signed(own, f"thick border: process {sections[0].marked}")
    cells = [cell for section in sections[1:] for p in section.panels for cell in p.cells.values()]
    if any(len(list(_labels(cell))) > 1 for cell in cells):
        stack = "".join(_sheet("more", "", 6 * k, 6 * k, 30, 11) for k in range(3))
        yield _signed(stack, "sheets in a stack: devices that hold equal copies")
    if any(cell.hole for cell in cells):
        hole = _sheet("hole", "", 0, 0, 44, _SHEET, mark)
        yield _signed(hole, "hatched: on none of the process's devices, not read")


def _signed(sign: str, words: str, left: int = 52) -> _Block:
    wide = left + _WIDTHS["n"] * cell_len(words)
    return _Block(wide, _SHEET, sign + _at(words, left, 16, "n"))


def _section(section: Section, mark: str) -> _Block:
    panels = [_panel(p, section, mark) for p in section.panels]
    grids = _flow(panels, _WIDEST, 28)
    width = max(grids.width, _NARROWEST)
    head = _beneath([_lines(section.title, "t", width), _lines(section.note, "n", width)], 1)
    after = f"and {counted(section.left_out, 'more panel')} like these"
    tail = [_lines(after, "n", width)] if section.left_out else []
    whole = _beneath([head, grids, *tail], 10)
    return _Block(whole.width, whole.height, f'<g class="section">{whole.body}</g>')


def _panel(panel: Panel, section: Section, mark: str) -> _Block:
    row_name, column_name = section.row_name, section.column_name
    labels = {at: list(_labels(cell, section.marked)) for at, cell in panel.cells.items()}
    sheet = _wide(max((w for each in labels.values() for _, w in each), key=cell_len)) + 14
    shift = 5 if max(map(len, labels.values())) <= 8 else 2
    margin = max(_wide(slot.label) for slot in panel.rows)
    down, across = f"{row_name} ↓" if row_name else "", f"{column_name} →" if column_name else ""
    margin = round(max(margin, _wide(down))) + (10 if margin or down else 0)

    top = 16 if panel.title else 0
    parts = [_at(panel.title, 0, 11, "n")] if panel.title else []
    if across:
        parts.append(_at(across, margin, top + 11, "n"))
        top += 18
    if down:
        parts.append(_at(down, 0, top + 11, "n"))
    if down or any(slot.label for slot in panel.columns):
        top += 18

    places: list[tuple[int, int]] = []  # the left side of a column, and the width of its sheets
    right = margin
    for c, column in enumerate(panel.columns):
        aside = shift * (max((len(labels[at]) for at in labels if at[1] == c), default=1) - 1)
        wide = round(
            max(sheet if column.number is not None else 0, _wide(column.label) + 8 - aside)
        )
        places.append((right, wide))
        if column.label:
            parts.append(_at(column.label, right + (wide + aside) // 2, top - 7, "c"))
        right += wide + aside + _GAP
    bottom = top
    for r, row in enumerate(panel.rows):
        most = max((len(labels[at]) for at in labels if at[0] == r), default=1)
        if row.label:
            parts.append(_at(row.label, margin - 10, bottom + 16, "r"))
        for c, (left, wide) in enumerate(places):
            if (r, c) in labels:
                stack = "".join(
                    _sheet(kind, words, shift * k, _STRIP * k, wide, _SHEET, mark)
                    for k, (kind, words) in enumerate(labels[r, c])
                )
                parts.append(f'<g class="cell" transform="translate({left} {bottom})">{stack}</g>')
            else:
                parts.append(_at("···", left + 8, bottom + 16, "n"))
        bottom += _STRIP * (most - 1) + _SHEET + _GAP
    width = max(right - _GAP, margin + _wide(across), _wide(panel.title))
    return _Block(width, bottom - _GAP, f'<g class="panel">{"".join(parts)}</g>')


def _labels(cell: Cell, marked: int | None = None) -> Iterator[tuple[str, str]]:
    """The class and the words of each sheet of a cell."""
    if cell.hole:
        yield "hole", "no device"
    for stack in cell.stacks:
        kind = f"p{number_of(stack.process)}{' mine' if stack.process == marked else ''}"
        for position in stack.positions:
            yield kind, f"p{stack.process} d{position}"
        if stack.more:
            yield kind, f"p{stack.process} +{counted(stack.more, 'device')}"
    if cell.more:
        yield "more", f"+{counted(cell.more, 'process', 'processes')}"


def _sheet(kind: str, words: str, x: int, y: int, width: int, height: int, mark: str = "") -> str:
    fill = f' fill="url(#{mark}h)"' if kind == "hole" else ""
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}"{fill}/>'
    label = f'<text x="{x + 7}" y="{y + 16}">{xml(words)}</text>' if words else ""
    return f'<g class="{kind}">{box}{label}</g>'


def _spoken(sections: Sequence[Section]) -> Iterator[str]:
    """The picture in words, for those who do not see it."""
    for section in sections:
        yield f"{section.title}: {section.note}."
        cells = [(panel, at) for panel in section.panels for at in panel.cells]
        for panel, (r, c) in cells[:_SPOKEN]:
            row = f"{section.row_name} {panel.rows[r].label}".strip()
            column = f"{section.column_name} {panel.columns[c].label}".strip()
            place = ", ".join(filter(None, (panel.title, row, column))) or "all"
            yield f"{place}: {', '.join(words for _, words in _labels(panel.cells[r, c]))}."
        if len(cells) > _SPOKEN:
            yield f"And {counted(len(cells) - _SPOKEN, 'more cell')}."


def _flow(blocks: Sequence[_Block], most: float, gap: int) -> _Block:
    """Blocks side by side, and in a next row where they would be wider than `most`."""
    parts: list[str] = []
    x = y = tallest = width = 0.0
    for block in blocks:
        if x and x + block.width > most:
            x, y, tallest = 0.0, y + tallest + min(gap, 28), 0.0
        parts.append(_moved(block, x, y))
        width, tallest = max(width, x + block.width), max(tallest, block.height)
        x += block.width + gap
    return _Block(width, y + tallest, "".join(parts))


def _beneath(blocks: Iterable[_Block], gap: int) -> _Block:
    parts: list[str] = []
    width = y = 0.0
    for block in blocks:
        parts.append(_moved(block, 0, y))
        width, y = max(width, block.width), y + block.height + gap
    return _Block(width, y - gap, "".join(parts))


def _moved(block: _Block, x: float, y: float) -> str:
    return f'<g transform="translate({round(x)} {round(y)})">{block.body}</g>'


def _at(words: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{round(x)}" y="{round(y)}">{xml(words)}</text>'


def _wide(words: str) -> float:
    return _CHARACTER * cell_len(words)


def _lines(words: str, kind: str, most: float) -> _Block:
    """Prose in lines of at most `most`, as wide as its characters are taken to be."""
    lines = [""]
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and _WIDTHS[kind] * cell_len(longer) > most:
            lines.append(word)
        else:
            lines[-1] = longer
    high = 18 if kind == "n" else 21
    wide = max(_WIDTHS[kind] * cell_len(line) for line in lines)
    body = "".join(_at(line, 0, high * k + 12, kind) for k, line in enumerate(lines))
    return _Block(wide, high * len(lines), body)


def xml(words: str) -> str:
    """Escaped, without the characters that XML has no way to write."""
    allowed = "\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff"
    return escape(re.sub(f"[^{allowed}]", "\ufffd", words), quote=False)
