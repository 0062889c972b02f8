"""Planning of one process on many devices: a cost that does not grow with the whole mesh."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from .._claim import Claim, Contestants, Race

SMALL, LARGE = 8, 1024  # processes, of 8 devices each
_PREPARED = 1000  # topologies, more than are kept planned on


def contestants(folder: Path) -> Contestants:
    from ... import Topology, plan

    def warm(processes: int) -> Callable[[], None]:
        topology = Topology.build({"x": processes, "y": 8}, processes)

        def calls() -> None:
            for _ in range(1000):
                plan(topology, (("x", "y"), None), local_shape=(64, 128), process=5)

        return calls

    def cold(processes: int) -> Callable[[], None]:
        # A topology unlike any that has been planned on, as far as they last.
        prepared = itertools.cycle(
            (f"x{n}", Topology.build({f"x{n}": processes, "y": 8}, processes))
            for n in range(_PREPARED)
        )

        def call() -> None:
            name, topology = next(prepared)
            planned = plan(topology, ((name, "y"), None), local_shape=(64, 128), process=5)
            assert len(planned.placements()) == 8

        return call

    return {
        "64 devices": warm(SMALL),
        "8,192 devices": warm(LARGE),
        "64, cold": cold(SMALL),
        "8,192 devices, cold": cold(LARGE),
    }


_RACE = Race(contestants, calls=20, layout=(1, 1))
CLAIMS = (
    Claim(
        "planning",
        "1,000 plans again on 8,192 devices of 1,024 processes, at most 3 times that on 64",
        _RACE,
        peer="64 devices",
        bar=1 / 3,
        ours="8,192 devices",
    ),
    Claim(
        "planning_cold",
        "a first plan on 8,192 devices of 1,024 processes, at most 3 times that on 64",
        _RACE,
        peer="64, cold",
        bar=1 / 3,
        ours="8,192 devices, cold",
    ),
)
