"""Results as a table that reads well in 80 columns, and what is to be said below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from ._result import Result, Spread


def table(results: Sequence[Result]) -> Table:
    """A row for each claim, and below it one for each bound: what no way can do without."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    drawn.add_column("claim", no_wrap=True)
    drawn.add_column("peer", overflow="fold")  # in two lines, where there is no room
    for heading in ("takes", "ours", "ratio", "10..90 %", "bar"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    drawn.add_column("", no_wrap=True)
    for of in results:
        claim = of.claim
        drawn.add_row(
            claim.name,
            claim.peer,
            "" if of.peer is None else duration(of.peer.median),
            duration(of.ours.median),
            "" if of.ratio is None else times(of.ratio.median),
            "" if of.ratio is None else _range(of.ratio),
            "" if claim.bar is None else times(claim.bar),
            verdict(of),
            style="yellow" if of.holds is False else None,
        )
        for name, seconds in of.bounds:
            ratio = times(seconds / of.ours.median)
            drawn.add_row("", name, duration(seconds), "", ratio, "", "", "bound", style="dim")
    return drawn


def notes(results: Sequence[Result]) -> list[str]:
    """A line for each claim of which the table does not say all: what was missed, and why."""
    return [f"{of.claim.name}: {_missed(of)}{of.why}" for of in results if of.why]


def verdict(of: Result) -> str:
    """Whether a claim holds, in a word."""
    if of.peer is None:
        return "no peer"
    return {None: "", True: "holds", False: "MISSED"}[of.holds]


def times(ratio: float) -> str:
    """A ratio in three figures.

    >>> times(0.8333), times(4.0), times(17.26), times(312.4)
    ('0.83', '4', '17.3', '312')
    """
    return f"{ratio:.2f}" if ratio < 1 else f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.3g}"


def duration(seconds: float) -> str:
    """Seconds in a unit that suits them.

    >>> duration(0.0000436), duration(0.0128), duration(1.62)
    ('43.6 us', '12.8 ms', '1.62 s')
    """
    scale, unit = (1e6, "us") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return (
        f"{seconds * scale:.3g} {unit}"
        if seconds * scale < 1000
        else f"{seconds * scale:.0f} {unit}"
    )


def _range(ratio: Spread) -> str:
    return f"{times(ratio.low)}..{times(ratio.high)}"


def _missed(of: Result) -> str:
    if of.ratio is None:
        return ""
    return f"MISSED, {times(of.ratio.median)} where {times(of.claim.bar or 0)} is claimed: "
