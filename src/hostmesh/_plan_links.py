"""Who sends how many bytes to whom, as a table of pairs that fits a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ._draw._words import counted

# So many have a column of their own; of more the first ones and the last do.
_COLUMNS, _WIDTH = 6, 80


def shown(numbers: Sequence[int]) -> tuple[int, ...]:
    """Those of ascending numbers that have a row and a column.

    >>> shown(range(3)), shown(range(100))
    ((0, 1, 2), (0, 1, 2, 3, 99))
    """
    if len(numbers) <= _COLUMNS:
        return tuple(numbers)
    return (*numbers[: _COLUMNS - 2], numbers[-1])


def table(received: Mapping[int, Sequence[int]], count: int) -> list[str]:
    """A row for each sender and a column for each receiver, of `count` that there are.

    `received` has for each receiver that is `shown` the bytes it gets of each sender, by number.

    >>> print(*table({0: [0, 8], 1: [64, 0]}, count=2), sep="\\n")
              to 0  to 1
      from 0     0    64
      from 1     8     0
      in all     8    64
    """
    columns = list(received)
    body = [[f"from {p}", *(f"{received[to][p]:,}" for to in columns)] for p in columns]
    if len(columns) < count:
        others = [sum(received[to]) - sum(received[to][p] for p in columns) for to in columns]
        body.append(["from others", *(f"{size:,}" for size in others)])
    body.append(["in all", *(f"{sum(received[to]):,}" for to in columns)])
    rows = [["", *(f"to {p}" for p in columns)], *body]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    while len(widths) > 2 and sum(widths) > _WIDTH:
        widths.pop()
    drawn = [
        f"  {row[0]:<{widths[0] - 2}}"
        + "".join(
            f"{cell:>{width}}" for cell, width in zip(row[1 : len(widths)], widths[1:], strict=True)
        )
        for row in rows
    ]
    more = count - (len(widths) - 1)
    return [*drawn, *([f"  and {counted(more, 'more column', 'more columns')}"] if more else [])]
