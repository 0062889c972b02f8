"""Which chunk numbers each device and process holds: a spec on a topology, before any shape.

Layouts and shares are kept: programs convert many arrays of few layouts. A share costs time in its
process's own devices and the mesh's axes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ._spec import Axes
from ._topology import Topology

Chunk: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The mesh axes that cut each dimension, and in how many chunks (n_i in DESIGN's words).

    `strides` says, for each dimension, by how much a step along a mesh axis changes the chunk
    number: pairs of mesh axis number and stride.
    """

    topology: Topology
    axes: Axes
    counts: tuple[int, ...]
    strides: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, eq=False)
class Share:
    """What one process holds of a layout, its devices by ascending position.

    `distinct` are its chunks, each once, ascending. `held` are the chunk numbers along each
    dimension, ascending (C_i); `ranks` gives the place of each in it. The host-local value is the
    product of `held`; `is_product` tells whether the devices hold all of that product.
    """

    positions: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    distinct: tuple[Chunk, ...]
    held: tuple[tuple[int, ...], ...]
    ranks: tuple[dict[int, int], ...]
    is_product: bool


@functools.lru_cache(maxsize=4096)
def layout_of(topology: Topology, axes: Axes) -> Layout:
    """The layout of normalized axes, one entry a dimension."""
    number = {name: i for i, name in enumerate(topology.axis_names)}
    counts: list[int] = []
    strides: list[tuple[tuple[int, int], ...]] = []
    for cut in axes:
        sizes = [topology.shape[name] for name in cut]
        # Row-major: the first axis of a tuple is the major one, as in JAX.
        steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        counts.append(math.prod(sizes))
        strides.append(tuple((number[name], step) for name, step in zip(cut, steps, strict=True)))
    return Layout(topology, axes, tuple(counts), tuple(strides))


@functools.lru_cache(maxsize=16384)
def share_of(layout: Layout, process: int) -> Share:
    """What `process` holds; empty for one without devices."""
    positions = layout.topology.positions(process)
    at = layout.topology.coordinates(positions)
    columns: list[list[int]] = [
        sum((at[:, axis] * step for axis, step in cut), np.zeros(len(at), np.intp)).tolist()
        for cut in layout.strides
    ]
    chunks = tuple(tuple(column[k] for column in columns) for k in range(len(at)))
    distinct = tuple(sorted(set(chunks)))
    held = tuple(tuple(sorted(set(column))) for column in columns)
    return Share(
        positions=tuple(positions.tolist()),
        chunks=chunks,
        distinct=distinct,
        held=held,
        ranks=tuple({number: rank for rank, number in enumerate(numbers)} for numbers in held),
        is_product=len(distinct) == math.prod(map(len, held)) or not chunks,
    )


@functools.lru_cache(maxsize=16384)
def holders_of(layout: Layout, chunk: Chunk) -> tuple[int, ...]:
    """The processes that hold a chunk, ascending."""
    index: list[int | slice] = [slice(None)] * len(layout.topology.axes)
    for number, cut in zip(chunk, layout.strides, strict=True):
        for axis, step in cut:
            index[axis] = number // step % layout.topology.axes[axis][1]
    return tuple(np.unique(layout.topology.process_indices[tuple(index)]).tolist())


@functools.lru_cache(maxsize=4096)
def is_replicated(layout: Layout) -> bool:
    """Whether any chunk is held by two processes or more."""
    # The replicas of a chunk lie along the axes that cut nothing: it has one holder where the
    # process number does not vary along them.
    cutting = {axis for cut in layout.strides for axis, _ in cut}
    along = tuple(axis for axis in range(len(layout.topology.axes)) if axis not in cutting)
    owners = layout.topology.process_indices
    return bool(np.any(owners.min(axis=along) != owners.max(axis=along)))
