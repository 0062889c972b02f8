"""What the benchmarks share: contestants raced round by round in one process group, and the table.

Each round calls every contestant once, after a barrier, in an order shuffled anew (the same in all
processes): who runs after whom decides what the caches hold. Results are waited for within the
timed region and freed after it, as in a training loop.
A round's time is the median over the processes. Ratios are of medians over rounds; beside them
stand the medians of the rounds' own ratios, which a load that comes and goes disturbs less.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PROCESSES, DEVICES = 4, 2

Contestants = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds (or bytes) of a peer and of hostmesh, round by round.

    `bound` is the smallest ratio, peer to hostmesh, that the claim allows; `None` claims nothing.
    """

    work: str
    peer: str
    theirs: Sequence[float]
    ours: Sequence[float]
    bound: float | None = None
    unit: str = "ms"


def race(
    contestants: Callable[[], Contestants],
    rounds: int,
    *,
    devices: int = DEVICES,
    processes: int = PROCESSES,
) -> Times:
    """Seconds of each contestant in each round, in a group of `processes` x `devices`.

    `contestants` is called once in every process; what it returns is raced there.
    """
    import hostmesh.testing

    every = hostmesh.testing.run(_race, processes, devices, (contestants, rounds), timeout=540)
    return {
        name: [
            statistics.median(times) for times in zip(*(own[name] for own in every), strict=True)
        ]
        for name in every[0]
    }


def _race(contestants: Callable[[], Contestants], rounds: int) -> Times:
    import jax
    from jax.experimental import multihost_utils

    runners = contestants()
    times: Times = {name: [] for name in runners}
    for number in range(-3, rounds):  # the first three warm up
        for name in random.Random(number).sample(list(runners), len(runners)):
            multihost_utils.sync_global_devices("round")
            start = time.perf_counter()
            result = jax.block_until_ready(runners[name]())
            spent = time.perf_counter() - start
            del result
            if number >= 0:
                times[name].append(spent)
    return times


def main(measure: Callable[[int], list[Row]], claim: str | None, rounds: int) -> None:
    """Runs a benchmark from the command line and prints its table."""
    parser = argparse.ArgumentParser(description=claim)
    parser.add_argument("--rounds", type=int, default=rounds)
    chosen = parser.parse_args().rounds
    print(f"{(claim or '').splitlines()[0]} ({chosen} rounds, medians)")
    print(table(measure(chosen)))
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def table(rows: list[Row]) -> str:
    """The rows as text, under a heading."""
    lines = [("", "peer", "peer takes", "hostmesh", "ratio", "by round", "bound", "")]
    for row in rows:
        ratio = _ratio(statistics.median(row.theirs), statistics.median(row.ours))
        by_round = statistics.median(map(_ratio, row.theirs, row.ours))
        lines.append(
            (
                row.work,
                row.peer,
                _show(row.theirs, row.unit),
                _show(row.ours, row.unit),
                f"{ratio:.2f}x",
                f"{by_round:.2f}x",
                "" if row.bound is None else f">= {row.bound:g}x",
                "" if row.bound is None else "holds" if ratio >= row.bound else "MISSED",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _ratio(theirs: float, ours: float) -> float:
    return theirs / ours if ours else math.inf


def _show(values: Sequence[float], unit: str) -> str:
    scale = {"ms": 1e3, "us": 1e6, "MiB": 1 / 2**20}[unit]
    return f"{statistics.median(values) * scale:.3g} {unit}"
