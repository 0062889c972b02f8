"""How fast processes talk: with the coordinator, with all, with their neighbours, with their devices.

All processes make the same calls in the same order. Whoever does not come is named by the agreement
before each collective.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from .. import _transport
from .._collectives import barrier
from .._coordination import agree
from .._decisions import any_process
from .._stream import Stream
from ._meeting import Meeting

MIB = 2**20
# Bytes of the whole result, on each process.
SIZES = (64 * 1024, MIB, 16 * MIB)
_LINK = MIB  # bytes that each of two neighbours sends
_DEVICE = 16 * MIB
_PINGS = 30
_TICKS = 8
_LONG = 1.0  # seconds; what takes longer is not tried again, and 16 times as much not at all


@dataclass(frozen=True)
class Figures:
    """What one process measured: seconds, and GB/s (10^9 bytes); `None` for what it could not.

    `allgather` and `broadcast` are by the bytes of the result, `links` by the neighbour.
    """

    process: int
    round_trip: float | None = None
    round_trip_worst: float | None = None
    clock: float | None = None  # seconds that it is ahead of process 0's
    clock_error: float = 0.0
    barrier: float | None = None
    allgather: dict[str, float] = field(default_factory=dict[str, float])
    broadcast: dict[str, float] = field(default_factory=dict[str, float])
    links: dict[str, float] = field(default_factory=dict[str, float])
    to_device: float | None = None
    from_device: float | None = None

    def plain(self) -> dict[str, Any]:
        """Plain dicts and numbers, for JSON."""
        return asdict(self)


def measure(meeting: Meeting, step: Callable[[str], None]) -> Figures:
    """Measures, on all processes at once; `step` is told what begins."""
    taken: dict[str, Any] = {}
    step("host to device and back")
    meeting.wait("devices")
    taken["to_device"], taken["from_device"] = _device()
    if meeting.processes == 1:
        return Figures(meeting.me, **taken)
    step("round trips to the coordinator, and clocks")
    taken |= _round_trips(meeting)
    step("barrier")
    taken["barrier"] = _barrier(meeting)
    step("allgather")
    taken["allgather"] = _sizes(meeting, "allgather", _allgather)
    step("broadcast")
    taken["broadcast"] = _sizes(meeting, "broadcast", _broadcast)
    step("links between neighbours")
    taken["links"] = _links(meeting)
    return Figures(meeting.me, **taken)


def _device() -> tuple[float, float]:
    """GB/s of the best of three copies to this process's first device, and back."""
    device = jax.local_devices()[0]
    values = np.ones(_DEVICE, np.uint8)
    there: list[float] = []
    back: list[float] = []
    for _ in range(4):  # the first pays for memory that the others use again
        start = time.perf_counter()
        array = jax.block_until_ready(jax.device_put(values, device, may_alias=False))
        middle = time.perf_counter()
        np.array(array)
        there.append(middle - start)
        back.append(time.perf_counter() - middle)
    return _rate(_DEVICE, min(there[1:])), _rate(_DEVICE, min(back[1:]))


def _round_trips(meeting: Meeting) -> dict[str, float]:
    """Round trips to the coordinator, and how far this clock is ahead of process 0's.

    Process 0 writes its time into the store, while the others wait for it there. The way takes half
    a round trip of process 0 and half of this process's, and it is wrong by no more than that: as
    in NTP, by half the sum where the two directions differ most.
    """
    store = meeting.store
    if store is None:
        return {}
    meeting.wait("round trips")
    trips: list[float] = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        store.peek(f"{meeting.folder}nothing")
        trips.append(time.perf_counter() - start)
        if sum(trips) > _LONG and len(trips) >= 5:
            break
    shortest = min(trips)
    found = {"round_trip": statistics.median(trips), "round_trip_worst": max(trips)}
    everyone = meeting.gather(shortest)
    own = meeting.share(shortest)
    pause = 0.01 + 2 * max(everyone or [0.0])  # by then the others wait for the next
    differences: list[float] = []
    meeting.wait("clocks")
    for number in range(_TICKS):
        key = f"{meeting.folder}tick/{number}"
        if meeting.me == 0:
            time.sleep(min(pause, _LONG / 4))
            store.set_once(key, repr(time.time()).encode())
        elif message := store.get(key, meeting.seconds):
            differences.append(time.time() - float(message))
    way = (own + shortest) / 2
    ahead = min(differences) - way if differences else 0.0
    return found | {"clock": ahead, "clock_error": way if differences else 0.0}


def _barrier(meeting: Meeting) -> float:
    taken: list[float] = []
    for _ in range(6):  # the first call of a line costs more
        start = time.perf_counter()
        barrier("hostmesh.doctor: measured", timeout=meeting.seconds)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


# Moves so many bytes between some processes.
Move = Callable[[npt.NDArray[np.uint8], tuple[int, ...]], None]


def _sizes(meeting: Meeting, what: str, move: Move) -> dict[str, float]:
    """Seconds that a collective takes here, by the bytes of its result."""
    taken: dict[str, float] = {}
    everyone = tuple(range(meeting.processes))
    for size in SIZES:
        taken[str(size)] = _timed(meeting, what, move, size, everyone)
        if any_process(taken[str(size)] > _LONG / 8, timeout=meeting.seconds):
            break
    return taken


def _timed(meeting: Meeting, what: str, move: Move, size: int, members: tuple[int, ...]) -> float:
    """The best of three, of a compiled program; without the agreement before, which has its own row."""
    values = np.ones(size, np.uint8)

    def times(count: int) -> list[float]:
        found: list[float] = []
        agreed = agree(
            f"hostmesh.doctor: {what}", moves=True, timeout=meeting.seconds, processes=members
        )
        with agreed.turn():
            for _ in range(count):
                start = time.perf_counter()
                move(values, members)
                found.append(time.perf_counter() - start)
        return found

    first = times(1)
    if any_process(first[0] > _LONG, timeout=meeting.seconds, processes=members):
        return first[0]
    return min(times(3))


def _allgather(values: npt.NDArray[np.uint8], members: tuple[int, ...]) -> None:
    each = values[: len(values) // len(members)]
    _transport.allgather(each.nbytes, members, Stream([each]).read, _transport.ignore)


def _broadcast(values: npt.NDArray[np.uint8], members: tuple[int, ...]) -> None:
    fill = Stream([values]).read if jax.process_index() == 0 else None
    _transport.broadcast(values.nbytes, members, 0, fill, _transport.ignore)


def _links(meeting: Meeting) -> dict[str, float]:
    """GB/s of the bytes that come from each of two neighbours, of all processes in a ring."""
    rates: dict[str, float] = {}
    for pairs in rounds(meeting.processes):
        for pair in pairs:
            if meeting.me in pair:
                seconds = _timed(meeting, "link", _allgather, 2 * _LINK, pair)
                rates[str(sum(pair) - meeting.me)] = _rate(_LINK, seconds)
    return rates


def rounds(processes: int) -> list[list[tuple[int, int]]]:
    """Neighbours in a ring, in rounds in which each process has one at most.

    >>> rounds(2), rounds(4)
    ([[(0, 1)]], [[(0, 1), (2, 3)], [(1, 2), (0, 3)]])
    >>> rounds(3)
    [[(0, 1)], [(1, 2)], [(0, 2)]]
    """
    chain = list(itertools.pairwise(range(processes)))
    last = [(0, processes - 1)] if processes > 2 else []
    even, odd = chain[::2], chain[1::2]
    found = [even, odd, last] if processes % 2 else [even, odd + last]
    return [pairs for pairs in found if pairs]


def _rate(nbytes: int, seconds: float) -> float:
    return nbytes / max(seconds, 1e-9) / 1e9
