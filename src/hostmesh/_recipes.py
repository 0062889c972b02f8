"""Recipes: what a plan means on real devices, for leaves of one kind. Kept, so that converting a leaf of
a known kind is a look-up and one call that moves its bytes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _jax, _spec, _values
from ._errors import SpecError, build
from ._jax import Device
from ._plan import Chunk, Index, Plan, Shape, bounds, plan
from ._staging import POOLED_BYTES
from ._topology import Topology

# From here a copy into a kept buffer breaks even with the runtime's own; it wins from 4 to 16 MiB
# on, where malloc gives memory back and each conversion would pay its page faults anew.
_OURS_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Inward:
    """How leaves of one kind become global arrays. Devices, chunks and local indices go in step.

    `cut` gives a leaf's chunks in that order.
    `direct`: the runtime copies the leaf's chunks as they are; otherwise we do, into memory of ours.
    """

    plan: Plan
    aval: ShapedArray
    sharding: NamedSharding
    dtype: np.dtype[Any]
    devices: tuple[Device, ...]
    chunks: tuple[Chunk, ...]
    indices: tuple[Index, ...]
    cut: Callable[[Any], Sequence[Any]]
    direct: bool

    def local_sharding(self) -> NamedSharding | None:
        """A sharding that cuts a host-local value as its devices want it, where there is one."""
        if any(self.plan.whole):
            return None
        return outward(self.sharding, self.plan.global_shape, self.dtype).sharding


@dataclass(frozen=True, eq=False)
class Outward:
    """How global arrays of one kind become host-local values.

    `sources` has, for each distinct chunk, a device that holds it and the chunk's local index.
    `order` has the devices in the order of `sharding`, that of the host-local `jax.Array`, which
    `assemble` makes of the shards in that order; there is none where the process's chunks are no
    full product. `in_order`: the global array has its shards here in that order.
    """

    plan: Plan
    aval: ShapedArray
    sharding: NamedSharding | None
    order: tuple[Device, ...]
    in_order: bool
    assemble: Callable[[Sequence[jax.Array]], jax.Array] | None
    sources: tuple[tuple[Device, Index], ...]


@functools.lru_cache(maxsize=4096)
def sharding_for(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """The sharding of a spec, checked before JAX sees it."""
    _spec.normalize(Topology.from_mesh(mesh), spec, rank=len(spec))
    return NamedSharding(mesh, spec)


def mesh_of(sharding: NamedSharding) -> Mesh:
    """The mesh of devices of a sharding; `SpecError` where it has an abstract one."""
    if isinstance(sharding.mesh, Mesh):
        return sharding.mesh
    raise build(
        SpecError,
        where="leaf",
        given=f"a NamedSharding on the abstract mesh {sharding.mesh}",
        rule="values are placed on devices, and an abstract mesh has none",
        advice="use the jax.sharding.Mesh itself",
    )


@functools.lru_cache(maxsize=8192)
def inward(
    sharding: NamedSharding,
    local_shape: Shape | None,
    dtype: np.dtype[Any],
    global_shape: Shape | None,
    x64: bool,
) -> Inward:
    """The recipe for host-local values of a shape and dtype on this process."""
    mesh = mesh_of(sharding)
    layout = plan(
        mesh,
        sharding.spec,
        local_shape=local_shape,
        global_shape=global_shape,
        process=jax.process_index(),
    )
    placements = layout.placements()
    devices = _devices_at(mesh, [placement.position for placement in placements])
    native = _values.device_dtype(dtype, x64)
    return Inward(
        plan=layout,
        aval=ShapedArray(layout.global_shape, native),
        sharding=sharding,
        dtype=native,
        devices=devices,
        chunks=tuple(placement.chunk for placement in placements),
        indices=tuple(placement.local_index for placement in placements),
        cut=_cutter([_trimmed(place.local_index, local_shape) for place in placements]),
        direct=dtype == native and _runtime_copies(layout, native, devices),
    )


def _cutter(indices: list[Index]) -> Callable[[Any], Sequence[Any]]:
    """`lambda leaf: [leaf[index] for index in indices]`, twice as quick where it can be."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    return lambda leaf: [leaf[index] for index in indices]


def _trimmed(index: Index, shape: Shape | None) -> Index:
    """An index of an array of this shape, if it is known, without its last slices that take all."""
    if shape is None:
        return index
    taken = bounds(index, shape)
    while index and taken[len(index) - 1] == (0, shape[len(index) - 1]):
        index = index[:-1]
    return index


def _runtime_copies(layout: Plan, dtype: np.dtype[Any], devices: tuple[Device, ...]) -> bool:
    """Whether the runtime's own copy of a shard is the best one, or the only one needed.

    Accelerators have staging memory of their own. A CPU device takes our buffer as it is, which is
    quicker for large shards, whose memory we keep for reuse, and for those that devices share,
    which we copy once and the runtime once a device.
    """
    # JAX 0.10.2 and 0.12.0.1 fail ("bad_function_call") to copy shards, of whatever dtype and size,
    # that some devices of a process share, unless all devices of the mesh do. Empty shards lie at
    # one place, as if they were shared.
    shared = len(layout.chunks()) < len(devices) or 0 in layout.global_shape
    if shared and any(n > 1 for n in layout.chunk_counts):
        return False
    if not devices or devices[0].platform != "cpu":
        return True
    return layout.device_nbytes(dtype) < (POOLED_BYTES if shared else _OURS_BYTES)


@functools.lru_cache(maxsize=8192)
def outward(sharding: NamedSharding, global_shape: Shape, dtype: np.dtype[Any]) -> Outward:
    """The recipe for global arrays of a shape and dtype on this process."""
    mesh = mesh_of(sharding)
    layout = plan(mesh, sharding.spec, global_shape=global_shape, process=jax.process_index())
    placements = layout.placements()
    devices = _devices_at(mesh, [placement.position for placement in placements])
    holding: dict[Chunk, list[Device]] = {}
    for placement, device in zip(placements, devices, strict=True):
        holding.setdefault(placement.chunk, []).append(device)
    local_shape = layout.local_shape()
    aval = ShapedArray(local_shape or (), dtype)
    local_sharding, order = None, ()
    if local_shape is not None and layout.is_product():
        local_sharding = _local_sharding(layout, sharding, holding)
        order = tuple(mesh_of(local_sharding).devices.flat)
    return Outward(
        plan=layout,
        aval=aval,
        sharding=local_sharding,
        order=order,
        in_order=order == devices,
        assemble=None if local_sharding is None else _jax.assembler(aval, local_sharding),
        sources=tuple((on[0], layout.local_index(chunk)) for chunk, on in holding.items()),
    )


def check_rank(sharding: NamedSharding, rank: int) -> None:
    """Raises `SpecError` for a spec of more entries than a value of keys has dimensions.

    A key's data has more dimensions than the key, and no spec may cut those.
    """
    _spec.normalize(Topology.from_mesh(mesh_of(sharding)), sharding.spec, rank)


def _local_sharding(
    layout: Plan, sharding: NamedSharding, holding: dict[Chunk, list[Device]]
) -> NamedSharding:
    """A sharding over this process's devices under which each holds the chunk that it has."""
    if layout.is_subcube():
        return NamedSharding(mesh_of(sharding).local_mesh, sharding.spec)
    # No subcube of the mesh: a mesh of the process's chunks instead, each as often as all are held.
    numbers = [sorted({chunk[i] for chunk in holding}) for i in range(len(layout.global_shape))]
    replicas = min(map(len, holding.values()))
    grid = np.empty((*map(len, numbers), replicas), object)
    for place in itertools.product(*(range(len(held)) for held in numbers)):
        chunk = tuple(held[i] for held, i in zip(numbers, place, strict=True))
        grid[place] = holding[chunk][:replicas]
    names = tuple(f"chunks{i}" for i in range(len(numbers)))
    return NamedSharding(Mesh(grid, (*names, "replicas")), PartitionSpec(*names))


def _devices_at(mesh: Mesh, positions: list[int]) -> tuple[Device, ...]:
    flat = mesh.devices.reshape(-1)
    return tuple(flat[position] for position in positions)
