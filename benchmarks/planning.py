"""Planning on 8,192 devices of 1,024 processes: warm and cold at most 3x the time on 64 devices."""

from __future__ import annotations

import time

from _race import Row, main

CALLS = 100_000
SMALL, LARGE = 8, 1024  # processes, of 8 devices each
SPEC = (("x", "y"), None)
SHAPE = (64, 128)


def measure(rounds: int) -> list[Row]:
    import hostmesh

    def build(processes: int, name: str = "x") -> hostmesh.Topology:
        return hostmesh.Topology.build({name: processes, "y": 8}, processes)

    warm: dict[int, list[float]] = {SMALL: [], LARGE: []}
    cold: dict[int, list[float]] = {SMALL: [], LARGE: []}
    building: list[float] = []
    topologies = {processes: build(processes) for processes in warm}
    for number in range(-1, rounds):  # the first warms up
        for processes, topology in topologies.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                hostmesh.plan(topology, SPEC, local_shape=SHAPE, process=5)
            spent = time.perf_counter() - start
            if number >= 0:
                warm[processes].append(spent)
        for repeat in range(20):
            for processes in cold:
                name = f"x{number}_{repeat}"  # a topology unlike any that has been planned on
                start = time.perf_counter()
                topology = build(processes, name)
                built = time.perf_counter()
                plan = hostmesh.plan(topology, ((name, "y"), None), local_shape=SHAPE, process=5)
                assert len(plan.placements()) == 8
                ended = time.perf_counter()
                if number >= 0:
                    cold[processes].append(ended - built)
                    if processes == LARGE:
                        building.append(built - start)
    return [
        Row(f"{CALLS:,} calls, warm", "64 devices", warm[SMALL], warm[LARGE], 1 / 3),
        Row("one process, cold", "64 devices", cold[SMALL], cold[LARGE], 1 / 3, "us"),
        Row("the topology of 8,192 devices", "(its plan)", cold[LARGE], building, None, "us"),
    ]


if __name__ == "__main__":
    main(measure, __doc__, rounds=7)
