"""Pictures as text, in the colours of a terminal or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.text import Text

from .._plan import Plan
from ._palette import COLOURS, number_of
from ._picture import UNLIMITED, Cell, Limits, Panel, Section, Slot, sections_of
from ._words import counted

# From the fullest to the narrowest: the first that fits a width is taken.
_LADDER = [
    *(Limits(2, 10, columns, 4, 4) for columns in range(16, 5, -1)),
    *(
        Limits(2, 10, columns, processes, devices)
        for columns in (8, 6, 5, 4, 3)
        for processes, devices in ((3, 2), (2, 1))
    ),
]
_ASCII = str.maketrans("│─┌┬┐├┼┤└┴┘░→↓", "|-+++++++++/>v")
_HOLE = "░"
_EQUAL = "="  # between equal copies, which are as wide with it as with a space
_MARK = "*"  # takes the place of the space before, so that marked pictures are no wider


def text(
    plan: Plan, width: int = 80, *, name: str = "", ascii_only: bool = False, ladder: bool = True
) -> Text:
    """The mesh, the global array and what the plan's process passes, in lines of at most `width`.

    Labels that are longer than that make longer lines. Without `ladder` nothing is left out.
    """
    rungs = _LADDER if ladder else [UNLIMITED]
    parts = [_fitted(make, rungs, width) for make in sections_of(plan, name)]
    whole = Text("\n\n").join(parts)
    return _in_ascii(whole) if ascii_only else whole


def _fitted(make: Callable[[Limits], Section], rungs: list[Limits], width: int) -> Text:
    section = make(rungs[0])
    lines = list(_body(section))
    for limits in rungs[1:]:
        if all(len(line.plain) <= width for line in lines):
            break
        section = make(limits)
        lines = list(_body(section))
    note = section.note
    if any(_EQUAL in words for line in lines for words in line.plain.split("│")[1:]):
        note += f"; {_EQUAL} joins equal copies"
    if section.marked is not None:
        note += f"; {_MARK} marks process {section.marked}"
    head = [Text(section.title, "bold"), *_wrapped(note, width)]
    return Text("\n").join([*head, *lines])


def _body(section: Section) -> Iterator[Text]:
    for panel in section.panels:
        if panel.title:
            yield Text(f"{panel.title}:")
        yield from _panel(panel, section)
    if section.left_out:
        yield Text(f"and {counted(section.left_out, 'more panel')} like these")


def _panel(panel: Panel, section: Section) -> Iterator[Text]:
    row_name, column_name = section.row_name, section.column_name
    contents = {at: _cell_lines(cell, section.marked) for at, cell in panel.cells.items()}
    inner = max(len(line.strip(_MARK + _EQUAL)) for lines in contents.values() for line, _ in lines)
    widths = [
        max(len(slot.label), 0 if slot.number is None else inner) + 2 for slot in panel.columns
    ]
    down = f"{row_name} ↓" if row_name else ""
    margin = max(len(down), *(len(slot.label) for slot in panel.rows)) + 1
    if column_name:
        yield Text(" " * margin + f" {column_name} →", "dim")
    labels = " ".join(slot.label.center(w) for slot, w in zip(panel.columns, widths, strict=True))
    if labels.strip() or down:
        yield Text(f"{down:<{margin}} {labels}".rstrip())
    for r, row in enumerate(panel.rows):
        yield Text(" " * margin + _rule(widths, "├┼┤" if r else "┌┬┐"))
        yield from _row(r, row, panel, contents, widths, margin)
    yield Text(" " * margin + _rule(widths, "└┴┘"))


def _row(
    r: int,
    row: Slot,
    panel: Panel,
    contents: dict[tuple[int, int], list[tuple[str, str]]],
    widths: list[int],
    margin: int,
) -> Iterator[Text]:
    cells = [contents.get((r, c)) for c in range(len(panel.columns))]
    for k in range(max(1, *(len(lines or ()) for lines in cells))):
        line = Text(f"{row.label if k == 0 else '':>{margin - 1}} ")
        for lines, width in zip(cells, widths, strict=True):
            line.append("│")
            words, style = lines[k] if lines and k < len(lines) else ("", "")
            if lines is None:
                words = "..." if k == 0 else ""
            if words.startswith(_HOLE):
                words = _HOLE * (width - 2)
            inner = words if words.startswith(_MARK) else f" {words}"
            line.append(f"{inner:<{width}}", style)
        line.append("│")
        yield line


def _cell_lines(cell: Cell, marked: int | None) -> list[tuple[str, str]]:
    """Each line of a cell with its style: a line for every process, which `=` joins to the next."""
    if cell.hole:
        return [(_HOLE, "dim")]
    lines: list[tuple[str, str]] = []
    for k, stack in enumerate(cell.stacks, 1):
        colour, ink = COLOURS[number_of(stack.process)]
        places = _EQUAL.join(f"d{position}" for position in stack.positions)
        more = f" +{stack.more}" if stack.more else ""
        mark = _MARK if stack.process == marked else ""
        joined = _EQUAL if cell.more or k < len(cell.stacks) else ""
        lines.append((f"{mark}p{stack.process} {places}{more}{joined}", f"{ink} on {colour}"))
    if cell.more:
        lines.append((f"+{counted(cell.more, 'process', 'processes')}", "dim"))
    return lines


def _rule(widths: list[int], corners: str) -> str:
    left, middle, right = corners
    return left + middle.join("─" * width for width in widths) + right


def _wrapped(words: str, width: int) -> Iterator[Text]:
    line = ""
    for word in words.split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield Text(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield Text(line)


def _in_ascii(whole: Text) -> Text:
    # One character for one, so that the styles keep their places.
    return Text(whole.plain.translate(_ASCII), spans=whole.spans)
