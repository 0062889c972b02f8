"""Who needs what of whom where an array goes from one layout to another on one mesh. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._layout import layout_of
from ._plan import Plan

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Needs:
    """The elements that all devices need for a new layout, by where the nearest copy of each lies.

    `own` is on the device already, `process` on another device of its process, `host` in another
    process of its host, `far` in none of these. What is not `own` is the least that any program
    can move, as long as each device gets its elements one by one.
    """

    own: int
    process: int
    host: int
    far: int

    @property
    def moved(self) -> int:
        """What devices do not have."""
        return self.process + self.host + self.far


def chunk_numbers(plan: Plan) -> Numbers:
    """The chunk numbers of each device: shape (devices, dimensions)."""
    topology, layout = plan.topology, layout_of(plan.topology, plan.axes)
    at = topology.coordinates(np.arange(topology.size)).astype(np.int64)
    found = np.zeros((topology.size, len(layout.strides)), np.int64)
    for dimension, cut in enumerate(layout.strides):
        for axis, step in cut:
            found[:, dimension] += at[:, axis] * step
    return found


def needs(old: Plan, new: Plan, host_of: Sequence[int] | None = None) -> Needs:
    """Counts elements; `host_of` gives the host of each process, where hosts are known.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"data": 4, "model": 2}, processes=4)
    >>> old = hostmesh.plan(topology, "data", global_shape=(8, 8))
    >>> needs(old, hostmesh.plan(topology, (None, "data"), global_shape=(8, 8)))
    Needs(own=32, process=0, host=0, far=96)
    """
    before, after = chunk_numbers(old), chunk_numbers(new)
    owners = old.topology.process_indices.ravel()
    total = old.topology.size * math.prod(new.shard_shape)
    own = int(_common(old, new, before, after).sum())
    away = far = _lacking(old, new, before, after, owners, False)
    if host_of is not None:
        far = _lacking(old, new, before, after, np.asarray(host_of)[owners], False)
    return Needs(own, total - own - away, away - far, far)


def crossing(old: Plan, new: Plan) -> int:
    """The elements that all processes together get of others, each piece once to each process."""
    owners = old.topology.process_indices.ravel()
    return _lacking(old, new, chunk_numbers(old), chunk_numbers(new), owners, True)


def received(old: Plan, new: Plan, process: int) -> Numbers:
    """The elements that one process gets of each, by number: each piece once to each process.

    It is what `hostmesh.reshard` sends, where processes do: holders of a piece take turns.
    """
    owners = old.topology.process_indices.ravel()
    distinct, count = holders_by_chunk(old)
    has = (distinct == process).any(1)
    found = np.zeros(int(owners.max(initial=0)) + 1, np.int64)
    if 0 in old.global_shape:
        return found
    for chunk in np.unique(chunk_numbers(new)[owners == process], axis=0):
        numbers, lengths = _overlaps(old, new, chunk)
        flat: Any = np.zeros((), np.int64)
        turn: Any = np.zeros((), np.int64)
        elements: Any = np.ones((), np.int64)
        for n, held, length in zip(old.chunk_counts, numbers, lengths, strict=True):
            flat = (flat[..., None] * n + held).ravel()
            turn = (turn[..., None] + held).ravel()
            elements = (elements[..., None] * length).ravel()
        flat, turn, elements = (np.atleast_1d(x) for x in (flat, turn, elements))
        away = ~has[flat]
        flat, turn, elements = flat[away], turn[away], elements[away]
        np.add.at(found, distinct[flat, (process + turn) % count[flat]], elements)
    return found


def _overlaps(old: Plan, new: Plan, chunk: Numbers) -> tuple[list[Numbers], list[Numbers]]:
    """Along each dimension, the old chunks that share elements with a new one, and how many."""
    numbers: list[Numbers] = []
    lengths: list[Numbers] = []
    for c, size, step in zip(chunk.tolist(), new.shard_shape, old.shard_shape, strict=True):
        low, high = c * size, c * size + size
        held = np.arange(low // step, -(-high // step))
        numbers.append(held)
        lengths.append(np.minimum(high, held * step + step) - np.maximum(low, held * step))
    return numbers, lengths


@functools.lru_cache(maxsize=16)
def holders_by_chunk(plan: Plan) -> tuple[Numbers, Numbers]:
    """For each chunk, row-major, the processes that hold it, ascending, and how many these are.

    Rows are as long for all: what comes after the holders repeats some of them.
    """
    owners = plan.topology.process_indices.ravel().astype(np.int64)
    flat: Any = np.zeros(plan.topology.size, np.int64)
    for n, column in zip(plan.chunk_counts, chunk_numbers(plan).T, strict=True):
        flat = flat * n + column
    tiles = np.argsort(flat, kind="stable").reshape(math.prod(plan.chunk_counts), -1)
    holders = np.sort(owners[tiles], axis=1)
    first = np.ones(holders.shape, bool)
    first[:, 1:] = holders[:, 1:] != holders[:, :-1]
    distinct = np.take_along_axis(holders, np.argsort(~first, axis=1, kind="stable"), 1)
    return distinct, first.sum(1)


def _lacking(old: Plan, new: Plan, before: Numbers, after: Numbers, group: Any, once: bool) -> int:
    """The elements that devices need and no device of their group has; `once` for each group."""
    total = 0
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order])) + 1
    for members in np.split(order, cuts):
        held = np.unique(before[members], axis=0)
        if len(held) == math.prod(old.chunk_counts):
            continue
        wanted, times = np.unique(after[members], axis=0, return_counts=True)
        common = _common(old, new, held[None, :, :], wanted[:, None, :]).sum(1)
        lacks = math.prod(new.shard_shape) - common
        total += int((lacks if once else lacks * times).sum())
    return total


def _common(old: Plan, new: Plan, before: Numbers, after: Numbers) -> Numbers:
    """How many elements old and new chunks share, by their numbers in the last dimension."""
    elements: Any = np.ones(np.broadcast_shapes(before.shape[:-1], after.shape[:-1]), np.int64)
    for i, (a, b) in enumerate(zip(old.shard_shape, new.shard_shape, strict=True)):
        low = np.maximum(before[..., i] * a, after[..., i] * b)
        high = np.minimum((before[..., i] + 1) * a, (after[..., i] + 1) * b)
        elements = elements * np.maximum(0, high - low)
    return elements
