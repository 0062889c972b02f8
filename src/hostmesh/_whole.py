"""Global arrays whole on the host: which process sends which of its shards, without a message.

Who holds what follows from the shardings, which all processes know. So each plans the same: every
distinct shard that somebody lacks is sent once, by the one of its holders that has the least to
send so far.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy.typing as npt
import xxhash
from jax.sharding import Sharding

from . import _jax
from ._errors import SpecError, build
from ._kinds import Kind, length_of
from ._plan import Bounds, abridged, bounds
from ._stream import empty
from ._verdict import name_processes

HostArray = npt.NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """A distinct shard of one of several arrays."""

    array: int
    place: Bounds

    @property
    def index(self) -> tuple[slice, ...]:
        """Where it lies in its array."""
        return tuple(slice(start, stop) for start, stop in self.place)


@dataclass(frozen=True)
class Plan:
    """Which shards each member sends, by rank, and which all that want the arrays hold already."""

    sent: tuple[tuple[Shard, ...], ...]
    held: tuple[Shard, ...]
    longest: int  # the most bytes that a member sends
    described: str  # equal for equal kinds and shardings only; empty for no arrays


# (kind, sharding) of each array
Layouts = tuple[tuple[Kind, Sharding], ...]


def plan(layouts: Layouts, members: tuple[int, ...], wanting: tuple[int, ...], name: str) -> Plan:
    """Plans how the processes `wanting` get all shards of some arrays from the `members`.

    Raises `SpecError` where a shard lies on other processes only.
    """
    try:
        return _plan(layouts, members, wanting)
    except _Lost as lost:
        raise build(
            SpecError,
            where=f"{name} on process {jax.process_index()}",
            given=f"a global array of {lost.kind}",
            rule=f"{len(lost.places)} of its shards lie on none of {name_processes(members)}, which"
            f" take part: {abridged(lost.places)}",
            advice="let the processes that hold them take part",
        ) from None


class _Lost(Exception):
    def __init__(self, kind: Kind, places: Sequence[Bounds]) -> None:
        self.kind, self.places = kind, places


@functools.lru_cache(maxsize=64)
def _plan(layouts: Layouts, members: tuple[int, ...], wanting: tuple[int, ...]) -> Plan:
    loads = dict.fromkeys(members, 0)
    sent: dict[int, list[Shard]] = {process: [] for process in members}
    held: list[Shard] = []
    digest = xxhash.xxh3_64()
    for number, (kind, sharding) in enumerate(layouts):
        holders = _holders(sharding, kind.shape)
        digest.update(repr((str(kind), list(holders.items()))).encode())
        able = {place: who & loads.keys() for place, who in holders.items()}
        if lost := [place for place, who in able.items() if not who]:
            raise _Lost(kind, lost)
        # Those with the least choice first.
        for place, who in sorted(able.items(), key=lambda item: (len(item[1]), item[0])):
            shard = Shard(number, place)
            if who.issuperset(wanting):
                held.append(shard)
                continue
            sender = min(who, key=lambda process: (loads[process], process))
            sent[sender].append(shard)
            loads[sender] += _nbytes(kind, place)
    words = ", ".join(str(kind) for kind, _ in layouts[:6]) + (", ..." if layouts[6:] else "")
    return Plan(
        tuple(tuple(sent[process]) for process in members),
        tuple(held),
        max(loads.values()),
        f", global {words} (layouts {digest.hexdigest()})" if layouts else "",
    )


def _holders(sharding: Sharding, shape: tuple[int, ...]) -> dict[Bounds, frozenset[int]]:
    """The processes that hold each distinct shard."""
    found: defaultdict[Bounds, set[int]] = defaultdict(set)
    for device, index in sharding.devices_indices_map(shape).items():
        found[bounds(index, shape)].add(device.process_index)
    return {place: frozenset(found[place]) for place in sorted(found)}


def _nbytes(kind: Kind, place: Bounds) -> int:
    return length_of([Kind(kind.dtype, tuple(stop - start for start, stop in place))])


class Gathering:
    """Global arrays on their way to some processes whole: what this process sends, and gets.

    Args:
      leaves: the number of a leaf, its array (the data of PRNG keys) and its kind.
      members, wanting: the processes that take part, and those that get the arrays.
      name: the operation, for errors.
    """

    def __init__(
        self,
        leaves: Sequence[tuple[int, jax.Array, Kind]],
        members: tuple[int, ...],
        wanting: tuple[int, ...],
        name: str,
    ) -> None:
        layouts = tuple((kind, array.sharding) for _, array, kind in leaves)
        self._plan = plan(layouts, members, wanting, name)
        self._arrays = [array for _, array, _ in leaves]
        self._kinds = [kind for _, _, kind in leaves]
        self._rank = members.index(jax.process_index())
        self.longest = self._plan.longest
        self.described = self._plan.described
        self.results: list[HostArray] = []

    def outgoing(self) -> list[HostArray]:
        """The values of the shards that this process sends."""
        return [self._value(shard) for shard in self._plan.sent[self._rank]]

    def incoming(self) -> list[list[HostArray]]:
        """Where the shards that come go, by the rank that sends them: views of new `results`."""
        self.results = empty(self._kinds)
        for shard in self._plan.held:
            self._view(shard)[...] = self._value(shard)
        return [[self._view(shard) for shard in shards] for shards in self._plan.sent]

    def _view(self, shard: Shard) -> HostArray:
        # With an ellipsis, so that it is a view also where there are no dimensions.
        return self.results[shard.array][(*shard.index, ...)]

    def _value(self, shard: Shard) -> HostArray:
        array = self._arrays[shard.array]
        device = _devices(array.sharding, array.shape)[shard.place]
        return _jax.fetch(_jax.parts_by_device(array)[device])


@functools.lru_cache(maxsize=256)
def _devices(sharding: Sharding, shape: tuple[int, ...]) -> dict[Bounds, Any]:
    """A device of this process for each shard that it holds."""
    indices = sharding.addressable_devices_indices_map(shape)
    return {bounds(i, shape): device for device, i in indices.items() if i is not None}
