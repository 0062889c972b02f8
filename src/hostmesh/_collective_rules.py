"""Which collectives XLA's partitioner takes from one layout to another, told by rule. No compiler.

A layout is to XLA an array of devices: one dimension for each of the value's, as long as the chunks
there, and a last one of replicas. These are the rules by which `ReshardNoCache` in XLA's
`spmd_partitioner.cc` goes from one such array to another, in its order; tests compare them with
compiled programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ._plan import Plan, Shape

Kind: TypeAlias = Literal["all-gather", "all-to-all", "collective-permute"]
Devices: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Step:
    """One collective: of groups of `group` devices, of which a permute has two.

    `moved` is the number of elements that come to a device from others, for all devices together.
    """

    kind: Kind
    group: int
    moved: int


@dataclass(frozen=True)
class Route:
    """The collectives from one layout to another; none where each device has what it needs.

    `is_whole` tells that XLA finds no way but to gather the whole array on every device, and
    `is_sure` whether the rules are known to hold: not where three dimensions or more change.
    """

    steps: tuple[Step, ...]
    is_whole: bool = False
    is_sure: bool = True

    @property
    def moved(self) -> int:
        """Elements that come to devices from others, in all."""
        return sum(step.moved for step in self.steps)


def route(old: Plan, new: Plan) -> Route:
    """The collectives of XLA between two layouts of one array on the same mesh.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"data": 4, "model": 2}, processes=4)
    >>> old = hostmesh.plan(topology, ("data", None), global_shape=(64, 128))
    >>> new = hostmesh.plan(topology, (None, "data"), global_shape=(64, 128))
    >>> route(old, new).steps
    (Step(kind='all-to-all', group=4, moved=12288),)
    """
    return _Router(old.global_shape, old.topology.size).to(_tiles(old), _tiles(new))


def _tiles(plan: Plan) -> Devices:
    topology = plan.topology
    number = {name: i for i, name in enumerate(topology.axis_names)}
    cutting = [number[name] for axes in plan.axes for name in axes]
    rest = [axis for axis in range(len(topology.axes)) if axis not in cutting]
    devices = np.arange(topology.size).reshape(topology.process_indices.shape)
    return devices.transpose(*cutting, *rest).reshape(*plan.chunk_counts, -1)


class _Router:
    def __init__(self, shape: Shape, devices: int) -> None:
        self._elements = math.prod(shape)
        self._count = devices

    def to(self, old: Devices, new: Devices) -> Route:
        """From one array of devices to another, by the first rule that fits."""
        if not self._elements or _refines(new, old):
            return Route(())
        if _chunks(new) == 1:
            return Route((self._gather(old, new),))
        for rule in (
            self._permuted,
            self._swapped,
            self._sliced,
            self._gathered,
            self._gathered_and_swapped,
            self._swapped_and_cut,
            self._cut_and_swapped,
            self._merged,
        ):
            found = rule(old, new)
            if found is not None:
                return Route(tuple(found))
        differ = sum(o != n for o, n in zip(old.shape[:-1], new.shape[:-1], strict=True))
        whole = self._gather(old, np.empty((1,) * old.ndim, np.intp))
        return Route((whole,), is_whole=True, is_sure=differ < 3)

    def _gather(self, old: Devices, new: Devices) -> Step:
        """All devices get what the others of their group have."""
        before, after = _chunks(old), _chunks(new)
        group = before // after
        return Step("all-gather", group, self._count * self._elements * (group - 1) // before)

    def _permuted(self, old: Devices, new: Devices) -> list[Step] | None:
        """As many chunks along each dimension, on other devices."""
        if old.shape != new.shape:
            return None
        if _same(old, new):
            return []
        senders = int(np.count_nonzero(old.ravel() != new.ravel()))
        return [Step("collective-permute", 2, senders * self._elements // _chunks(old))]

    def _swapped(self, old: Devices, new: Devices) -> list[Step] | None:
        """The chunks along dimensions change places: as many as before, along others."""
        if old.shape[-1] != new.shape[-1] or sorted(old.shape) != sorted(new.shape):
            return None
        steps: list[Step] = []
        while differ := [i for i in range(old.ndim - 1) if old.shape[i] != new.shape[i]]:
            least = min(old.shape[i] for i in differ)
            to = max(i for i in differ if old.shape[i] == least)
            source = next(i for i in differ if old.shape[i] == new.shape[to])
            group = old.shape[source] // least
            if old.shape[source] % least:
                return None
            old, step = self._all_to_all(old, source, to, group)
            steps.append(step)
        return [*steps, *self._ordered(old, new)]

    def _merged(self, old: Devices, new: Devices) -> list[Step] | None:
        """Some of the chunks along one dimension go to another."""
        differ = [i for i in range(old.ndim) if old.shape[i] != new.shape[i]]
        if len(differ) != 2 or old.ndim - 1 in differ:
            return None
        source, to = differ if old.shape[differ[0]] > new.shape[differ[0]] else differ[::-1]
        if old.shape[source] % new.shape[source]:
            return None
        old, step = self._all_to_all(old, source, to, old.shape[source] // new.shape[source])
        return [step, *self._ordered(old, new)]

    def _all_to_all(self, old: Devices, source: int, to: int, group: int) -> tuple[Devices, Step]:
        sizes = [part for size in old.shape for part in (size, 1)]
        sizes[2 * source : 2 * source + 2] = old.shape[source] // group, group
        order = list(range(len(sizes)))
        order[2 * source + 1], order[2 * to + 1] = 2 * to + 1, 2 * source + 1
        shape = list(old.shape)
        shape[source], shape[to] = shape[source] // group, shape[to] * group
        moved = self._count * self._elements // _chunks(old) * (group - 1) // group
        there = old.reshape(sizes).transpose(order).reshape(shape)
        return there, Step("all-to-all", group, moved)

    def _ordered(self, old: Devices, new: Devices) -> list[Step]:
        found = self._permuted(old, new)
        assert found is not None
        return found

    def _sliced(self, old: Devices, new: Devices) -> list[Step] | None:
        """Replicas each keep a part of what they hold."""
        there = _cut(old, new.shape)
        return None if there is None else self._ordered(there, new)

    def _gathered(self, old: Devices, new: Devices) -> list[Step] | None:
        """Parts are gathered to larger ones, from devices that lie as they will then."""
        if _refines(old, new):
            return [self._gather(old, new)]
        there = _cut(new, old.shape)
        return None if there is None else [*self._ordered(old, there), self._gather(old, new)]

    def _gathered_and_swapped(self, old: Devices, new: Devices) -> list[Step] | None:
        """One dimension is gathered, and the others are swapped between the replicas."""
        if old.shape[-1] > 1 or new.shape[-1] == 1:
            return None
        ways = [self._gathered_along(old, i) for i, n in enumerate(old.shape) if n == new.shape[-1]]
        for there, step in ways:
            if (rest := self._swapped(there, new)) is not None:
                return [step, *rest]
        for there, step in ways[:1]:
            if (rest := self._merged(there, new)) is not None:
                return [step, *rest]
        return None

    def _gathered_along(self, old: Devices, axis: int) -> tuple[Devices, Step]:
        there = np.expand_dims(np.moveaxis(old, axis, -1)[..., 0, :], axis)
        return there, self._gather(old, there)

    def _swapped_and_cut(self, old: Devices, new: Devices) -> list[Step] | None:
        """Replicas swap, and then each keeps a part: where that ends on the right devices."""
        if old.shape != (1, *new.shape[:-1]) or new.shape[-1] > 1:
            return None
        steps = self._swapped(old, np.moveaxis(new, -2, -1))
        return steps if steps is not None and len(steps) == 1 else None

    def _cut_and_swapped(self, old: Devices, new: Devices) -> list[Step] | None:
        """Replicas each keep a part, and then swap."""
        if old.shape[-1] == 1 or new.shape[-1] > 1:
            return None
        for axis in range(old.ndim - 1):
            if old.shape[axis] == 1 and new.shape[axis] % old.shape[-1] == 0:
                shape = (*old.shape[:axis], old.shape[-1], *old.shape[axis + 1 : -1], 1)
                there = _cut(old, shape)
                assert there is not None
                steps = self._swapped(there, new) or self._merged(there, new)
                if steps is not None:
                    return steps
        return None


def _refines(new: Devices, old: Devices) -> bool:
    """Whether each device keeps a part of what it has."""
    if any(n % o for n, o in zip(new.shape[:-1], old.shape[:-1], strict=True)):
        return False
    before, after = _numbers(old), _numbers(new)
    ratio = [n // o for n, o in zip(new.shape[:-1], old.shape[:-1], strict=True)]
    return bool(np.all(after // np.array(ratio, np.intp) == before))


def _numbers(devices: Devices) -> Devices:
    """The chunk numbers of each device: shape (devices, dimensions)."""
    found = np.empty((devices.size, devices.ndim - 1), np.intp)
    found[devices.ravel()] = np.stack(np.unravel_index(np.arange(devices.size), devices.shape), 1)[
        :, :-1
    ]
    return found


def _same(old: Devices, new: Devices) -> bool:
    return old.shape == new.shape and bool(np.all(np.sort(old, -1) == np.sort(new, -1)))


def _chunks(devices: Devices) -> int:
    return math.prod(devices.shape[:-1])


def _cut(old: Devices, shape: tuple[int, ...]) -> Devices | None:
    """The devices after each has cut its part, so that there are as many chunks as in `shape`."""
    if len(shape) != old.ndim or any(
        n % o for n, o in zip(shape[:-1], old.shape[:-1], strict=True)
    ):
        return None
    factors = [n // o for n, o in zip(shape[:-1], old.shape[:-1], strict=True)]
    if old.shape[-1] != math.prod(factors) * shape[-1]:
        return None
    split = old.reshape(*old.shape[:-1], *factors, shape[-1])
    rank = len(factors)
    order = [k for i in range(rank) for k in (i, rank + i)]
    return split.transpose(*order, 2 * rank).reshape(shape)
