"""What the benchmarks of collectives share: one race against JAX, also for a row of process counts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from _race import DEVICES, PROCESSES, Contestants, Row, race, table


def in_a_row(count: int, call: Callable[[], Any]) -> Callable[[], None]:
    """`count` calls in a row.

    When processes come out of the barrier before a round, they are apart by some milliseconds, and
    a call of the other contestant has left nothing in the caches.
    """

    def calls() -> None:
        for _ in range(count):
            call()

    return calls


def main(
    contestants: Callable[[], Contestants], work: str, bound: float, claim: str | None, rounds: int
) -> None:
    """Races "JAX" against "hostmesh"; the claim is for 4 processes, others show the curve.

    Any other contestant is a bound, what such a call cannot do without, and stands on a row below.
    """
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--processes", type=int, nargs="+", default=[PROCESSES])
    options = parser.parse_args()
    rows: list[Row] = []
    for processes in options.processes:
        times = race(contestants, options.rounds, processes=processes)
        claimed = bound if processes == PROCESSES else None
        title = f"{work}, {processes} x {DEVICES}"
        ours = times.pop("hostmesh")
        rows.append(Row(title, "JAX", times.pop("JAX"), ours, claimed))
        rows += [Row(title, bound, taken, ours) for bound, taken in times.items()]
    print(f"{(claim or '').splitlines()[0]} ({options.rounds} rounds, medians)")
    print(table(rows))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
