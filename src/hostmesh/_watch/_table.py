"""Who is slow, while all still move. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .._verdict import name_processes
from ._beat import Beat

# Slow is who takes so much more than the median process, by itself.
_SLOW = 1.2
_SHOWN = 16


@dataclass(frozen=True)
class Row:
    """One process: times in seconds. `own` is what a step took without waiting for others, in the
    last step, and `mean` on average over all; `queue` are batches that are ready, -1 without a
    feeder; `age` is the time since its last progress."""

    process: int
    step: int
    took: float
    waited: float
    own: float
    mean: float
    queue: int
    age: float
    host: str


@dataclass(frozen=True)
class Stragglers:
    """What `stragglers` finds.

    Attributes:
      rows: one for each process, in order.
      slowest: the process that took longest in its last step without waiting for others; `None`
        where no process has finished a step.
      chronic: whether it also did so on average over the run, and not only once.
      missing: the processes of which there is no row: no watchdog runs there now.
    """

    rows: tuple[Row, ...]
    slowest: int | None
    chronic: bool
    missing: tuple[int, ...] = ()

    def __str__(self) -> str:
        lines = ["process  step  step s  waited s  own s  mean own s  queue  host"]
        shown = sorted(self.rows, key=lambda row: -row.own)[:_SHOWN]
        for row in sorted(shown, key=lambda row: row.process):
            queue = "-" if row.queue < 0 else str(row.queue)
            step = "-" if row.step < 0 else str(row.step)
            lines.append(
                f"{row.process:7d} {step:>5s} {row.took:7.3f} {row.waited:9.3f} {row.own:6.3f}"
                f" {row.mean:11.3f} {queue:>6s}  {row.host}"
            )
        if len(self.rows) > _SHOWN:
            lines.append(f"(the {_SHOWN} slowest of {len(self.rows)})")
        return "\n".join([*lines, self.line()])

    def line(self) -> str:
        """All in one sentence."""
        absent = f"; no watchdog runs on {name_processes(self.missing)}" if self.missing else ""
        return self._verdict() + absent

    def _verdict(self) -> str:
        owns = [row.own for row in self.rows]
        if self.slowest is None:
            return "no process has finished a step"
        steps = [row.step for row in self.rows]
        spread = (
            f"min {min(owns):.3f} s, median {statistics.median(owns):.3f} s, max {max(owns):.3f} s"
        )
        worst = next(row for row in self.rows if row.process == self.slowest)
        if worst.own <= _SLOW * statistics.median(owns):
            verdict = "nobody is slow"
        else:
            how = "as on average" if self.chronic else "this once"
            verdict = f"process {self.slowest} on {worst.host} is slow, {how}"
        return f"steps {min(steps)} to {max(steps)}; own time in a step: {spread}; {verdict}"


def found(beats: Sequence[Beat], processes: int = 0) -> Stragglers:
    """What the last beats of all processes tell, of which there are so many. Pure.

    >>> beats = [
    ...     Beat(p, 9, "a", 1, step=5, took=2.0, waited=w, steps=4, busy=4 * (2.0 - w))
    ...     for p, w in enumerate((1.5, 1.5, 0.0))
    ... ]
    >>> found(beats).line()
    'steps 5 to 5; own time in a step: min 0.500 s, median 0.500 s, max 2.000 s; process 2 on a is slow, as on average'
    """
    rows = tuple(
        Row(
            beat.process,
            beat.step,
            beat.took,
            beat.waited,
            beat.took - beat.waited,
            beat.busy / beat.steps if beat.steps else 0.0,
            beat.queue,
            beat.age,
            beat.host,
        )
        for beat in beats
        if beat.phase != "left"
    )
    missing = tuple(sorted(set(range(processes)) - {row.process for row in rows}))
    stepped = [row for row in rows if row.took > 0]
    if not stepped:
        return Stragglers(rows, None, False, missing)
    worst = max(stepped, key=lambda row: row.own)
    chronic = worst.mean > _SLOW * statistics.median(row.mean for row in stepped)
    return Stragglers(rows, worst.process, chronic, missing)
