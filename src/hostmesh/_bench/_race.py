"""Runs races in groups of processes: seconds of each contestant in each round.

Each round calls every contestant once, after a barrier, in an order shuffled anew (the same in all
processes): who runs after whom decides what the caches hold. Results are waited for within the
timed region and freed after it, as in a training loop. A round's time is the median over the
processes. Races of one layout share a group of processes, which `hostmesh.testing` keeps warm.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ._claim import Contestants, Race

Times = dict[str, list[float]]

_TIMEOUT = 300.0  # seconds, for a race that hangs


@dataclass(frozen=True)
class Settings:
    """How long to race: `rounds` after `warm` ones, but no round begins after `seconds`.

    At least `least` rounds are run, however long they take. Where that is none, warm rounds that took
    longer are all there are, and count.
    """

    processes: int = 4
    devices: int = 2
    rounds: int = 15
    warm: int = 2
    least: int = 5
    seconds: float = 8.0

    def layout(self, race: Race) -> tuple[int, int]:
        """Processes and devices of each, for a race."""
        return race.layout or (self.processes, self.devices)


def race(of: Race, names: Collection[str], settings: Settings) -> Times:
    """Seconds of one call of each contestant in `names`, round by round."""
    import hostmesh.testing

    with tempfile.TemporaryDirectory(prefix="hostmesh-bench-") as folder:
        every = hostmesh.testing.run(
            run_here,
            *settings.layout(of),
            (of.contestants, tuple(names), of.calls, settings, Path(folder)),
            timeout=_TIMEOUT,
        )
    return {
        name: [
            statistics.median(times) for times in zip(*(own[name] for own in every), strict=True)
        ]
        for name in every[0]
    }


def run_here(
    contestants: Callable[[Path], Contestants],
    names: Collection[str],
    calls: int,
    settings: Settings,
    folder: Path,
) -> Times:
    """A race, in every process."""
    import jax
    from jax.experimental import multihost_utils

    import hostmesh

    runners = {name: run for name, run in contestants(folder).items() if name in names}
    times: Times = {name: [] for name in runners}
    began = time.perf_counter()
    for number in range(-settings.warm, settings.rounds):
        late = time.perf_counter() - began > settings.seconds
        if number >= settings.least and hostmesh.same_choice(late):
            break
        if number == 0:
            began = time.perf_counter()
        for name in random.Random(number).sample(list(runners), len(runners)):
            multihost_utils.sync_global_devices("round")
            start = time.perf_counter()
            for _ in range(calls):
                result = jax.block_until_ready(runners[name]())
            spent = time.perf_counter() - start
            del result  # pyright: ignore[reportPossiblyUnboundVariable]
            times[name].append(spent / calls)
    runners.clear()
    gc.collect()  # arrays of this race are not for the next one to carry
    return {name: own[settings.warm :] or own for name, own in times.items()}
