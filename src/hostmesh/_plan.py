"""Who holds what: everything that follows from a topology, a spec and a shape. No devices.

Dimension i of a global array is cut in n_i chunks. Process p holds the chunk numbers C_i along
dimension i, and its host-local value is those chunks side by side, so that
L_i = |C_i| * G_i / n_i. This holds on any mesh; where each process's devices form one
rectangle of the mesh it is JAX's rule.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _spec
from ._errors import ShapeError, SpecError, build
from ._layout import Chunk, Layout, Share, holders_of, is_replicated, layout_of, share_of
from ._topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from jax.sharding import Mesh

    from ._spec import Axes, Spec

Shape: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[slice, ...]
# Start and stop along each dimension: an index that hashes and sorts.
Bounds: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placement:
    """One device's part of an array.

    `position` is the device's place in the mesh (row-major), `chunk` the chunk numbers that it
    holds, `global_index` where they lie in the global array, and `local_index` where they lie in
    the host-local value of the device's process.
    """

    position: int
    chunk: Chunk
    global_index: Index
    local_index: Index


@dataclass(frozen=True)
class Plan:
    """Where every part of one global array lives. Made by `hostmesh.plan`; hashable; no devices.

    `axes` are the mesh axes that cut each dimension. `process` is the process that methods speak
    of unless told another. `whole` tells for each dimension whether that process gives all of it
    in its host-local value rather than its own chunks.
    """

    topology: Topology
    axes: Axes
    global_shape: Shape
    process: int | None
    whole: tuple[bool, ...]

    @functools.cached_property
    def _layout(self) -> Layout:
        return layout_of(self.topology, self.axes)

    @property
    def chunk_counts(self) -> Shape:
        """In how many chunks each dimension is cut: n_i."""
        return self._layout.counts

    @functools.cached_property
    def shard_shape(self) -> Shape:
        """The shape of the piece on one device."""
        return tuple(g // n for g, n in zip(self.global_shape, self.chunk_counts, strict=True))

    def local_shape(self, process: int | None = None) -> Shape | None:
        """The shape of a process's host-local value; `None` for one without devices."""
        share = self._share(process)
        if not share.positions:
            return None
        sizes = zip(self.global_shape, self.shard_shape, share.held, self.whole, strict=True)
        return tuple(g if whole else len(held) * s for g, s, held, whole in sizes)

    def placements(self, process: int | None = None) -> tuple[Placement, ...]:
        """The parts on a process's devices, by ascending position."""
        share = self._share(process)
        # Each dimension's slices once: indices are picked of them, and share them.
        sizes = zip(share.held, self.shard_shape, strict=True)
        there = [{c: slice(c * s, c * s + s) for c in held} for held, s in sizes]
        here = self._local_cuts(share)
        return tuple(
            Placement(
                position,
                chunk,
                tuple(map(operator.getitem, there, chunk)),
                tuple(map(operator.getitem, here, chunk)),
            )
            for position, chunk in zip(share.positions, share.chunks, strict=True)
        )

    def chunks(self, process: int | None = None) -> tuple[Chunk, ...]:
        """The distinct chunks that a process holds, ascending."""
        return self._share(process).distinct

    def missing(self, process: int | None = None) -> tuple[Chunk, ...]:
        """The chunks of a process's host-local value that none of its devices holds, ascending.

        Empty where the layout is a full product; on a diagonal, say, it is not.
        """
        share = self._share(process)
        if share.is_product:
            return ()
        return tuple(sorted(set(itertools.product(*share.held)) - set(share.distinct)))

    def is_product(self, process: int | None = None) -> bool:
        """Whether a process holds every chunk of its host-local value."""
        return self._share(process).is_product

    def is_subcube(self, process: int | None = None) -> bool:
        """Whether JAX's own functions take this process's devices: they form one rectangle of
        the mesh, in JAX's words a contiguous subcube."""
        return self.topology.is_subcube(self._process(process))

    def global_index(self, chunk: Chunk) -> Index:
        """Where a chunk lies in the global array."""
        self._known(chunk, map(range, self.chunk_counts))
        return tuple(slice(c * s, c * s + s) for c, s in zip(chunk, self.shard_shape, strict=True))

    def local_index(self, chunk: Chunk, process: int | None = None) -> Index:
        """Where a chunk lies in the host-local value of a process."""
        share = self._share(process)
        self._known(chunk, share.held)
        return tuple(map(operator.getitem, self._local_cuts(share), chunk))

    def holders(self, chunk: Chunk) -> tuple[int, ...]:
        """The processes that hold a chunk, ascending: its replica group."""
        self._known(chunk, map(range, self.chunk_counts))
        return holders_of(self._layout, chunk)

    @functools.cached_property
    def replica_groups(self) -> dict[Chunk, tuple[int, ...]]:
        """The replica group of every chunk of the array. Costs time in the whole mesh."""
        return {c: self.holders(c) for c in itertools.product(*map(range, self.chunk_counts))}

    @property
    def is_replicated(self) -> bool:
        """Whether any chunk is held by two processes or more."""
        return is_replicated(self._layout)

    @functools.cached_property
    def is_uniform(self) -> bool:
        """Whether all processes with devices have the same local shape."""
        return len({self.local_shape(process) for process in self.topology.processes}) == 1

    def device_nbytes(self, dtype: npt.DTypeLike) -> int:
        """Bytes on each device."""
        return math.prod(self.shard_shape) * np.dtype(dtype).itemsize

    def process_nbytes(self, dtype: npt.DTypeLike, process: int | None = None) -> int:
        """Bytes on all devices of a process together."""
        return self.device_nbytes(dtype) * len(self._share(process).positions)

    def _repr_svg_(self) -> str:
        from ._draw._svg import svg  # pictures are above planning

        return svg(self)

    def _repr_html_(self) -> str:
        from ._draw._html import fragment

        return fragment(self)

    def _known(self, chunk: Chunk, numbers: Iterable[Collection[int]]) -> None:
        choices = tuple(numbers)
        if len(chunk) != len(choices) or not all(map(operator.contains, choices, chunk)):
            raise build(
                ShapeError,
                where="plan",
                given=f"chunk {chunk}",
                rule=f"its numbers are, for each dimension, of {tuple(map(list, choices))}",
                advice="take it from plan.chunks() or plan.replica_groups",
            )

    def _process(self, process: int | None) -> int:
        chosen = self.process if process is None else process
        if chosen is None:
            raise build(
                SpecError,
                where="plan",
                given="no process",
                rule="a plan that was made without process= speaks of no process in particular",
                advice="name one: plan(..., process=0), or as an argument of this method",
            )
        return chosen

    def _share(self, process: int | None) -> Share:
        return share_of(self._layout, self._process(process))

    def _local_cuts(self, share: Share) -> list[dict[int, slice]]:
        """For each dimension, where the chunks of a number lie in the host-local value."""
        sizes = zip(share.ranks, self.shard_shape, self.whole, strict=True)
        return [
            {c: slice(a := (c if whole else rank) * s, a + s) for c, rank in ranks.items()}
            for ranks, s, whole in sizes
        ]


def plan(
    topology: Topology | Mesh,
    spec: Spec,
    *,
    local_shape: Sequence[int] | None = None,
    global_shape: Sequence[int] | None = None,
    process: int | None = None,
) -> Plan:
    """Plans who holds which part of a global array, without devices and without communication.

    Args:
      topology: a `Topology`, or a mesh to take it from.
      spec: the partition spec; a tuple of axis names, tuples of them and `None` serves as well.
      local_shape: the shape of the host-local value of `process`.
      global_shape: the shape of the whole array. With both, each dimension of `local_shape` is
        either the process's chunks or the whole dimension.
      process: the process that the plan speaks of.

    Returns:
      A frozen `Plan`, kept for the next call with equal arguments.

    Raises:
      SpecError: for a spec that is none of this mesh, or longer than the shape.
      ShapeError: for a size that the chunks do not divide; it names the nearest sizes that fit.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"data": 4, "model": 2}, processes=4)
    >>> p = hostmesh.plan(topology, ("data", "model"), local_shape=(16, 64), process=1)
    >>> p.global_shape, p.shard_shape
    ((64, 64), (16, 32))
    >>> p.placements()[1].global_index
    (slice(16, 32, None), slice(32, 64, None))
    """
    if not isinstance(topology, Topology):
        topology = Topology.from_mesh(topology)
    local = None if local_shape is None else _sizes(local_shape)
    whole = None if global_shape is None else _sizes(global_shape)
    return _plan(topology, _spec.hashable(spec), local, whole, process)


def _sizes(shape: Sequence[int]) -> Shape:
    try:
        sizes = tuple(map(operator.index, shape))
        if all(size >= 0 for size in sizes):
            return sizes
    except TypeError:
        pass
    raise build(
        ShapeError,
        where="plan",
        given=f"shape {shape!r}",
        rule="a shape is a sequence of whole numbers, none below 0",
        advice="pass a tuple of such sizes",
    )


@functools.lru_cache(maxsize=16384)
def _plan(
    topology: Topology, spec: Spec, local: Shape | None, whole: Shape | None, process: int | None
) -> Plan:
    shape = local if whole is None else whole
    if shape is None:
        raise build(
            ShapeError,
            where="plan",
            given="neither local_shape nor global_shape",
            rule="a plan is made for one of them",
            advice="pass the shape of the host-local value, or of the whole array",
        )
    axes = _spec.normalize(topology, spec, len(shape))
    layout = layout_of(topology, axes)
    if whole is None:
        return _from_local_shape(layout, shape, process)
    for i, (size, n) in enumerate(zip(whole, layout.counts, strict=True)):
        if size % n:
            raise _not_a_multiple(
                f"global shape {whole}, spec {_show(axes)}",
                f"dimension {i} is cut by {_cut(layout, i)} in {n} chunks: its size {size}",
                size,
                n,
            )
    if local is None or process is None or not topology.holds(process):
        return Plan(topology, axes, whole, process, (False,) * len(whole))
    return Plan(topology, axes, whole, process, _whole_dimensions(layout, local, whole, process))


def _from_local_shape(layout: Layout, local: Shape, process: int | None) -> Plan:
    held = _held_counts(layout, local, process)
    who = "every process" if process is None else f"process {process}"
    for i, (size, h) in enumerate(zip(local, held, strict=True)):
        if size % h:
            raise _not_a_multiple(
                f"local shape {local}, spec {_show(layout.axes)}",
                f"dimension {i} is cut by {_cut(layout, i)} in {layout.counts[i]} chunks, of which"
                f" {who} holds {h}: its local size {size}",
                size,
                h,
            )
    grown = tuple(size * n // h for size, n, h in zip(local, layout.counts, held, strict=True))
    return Plan(layout.topology, layout.axes, grown, process, (False,) * len(local))


def _held_counts(layout: Layout, local: Shape, process: int | None) -> tuple[int, ...]:
    """|C_i| of the process, or of all processes where they agree."""
    topology = layout.topology
    if process is not None and not topology.holds(process):
        raise build(
            ShapeError,
            where="plan",
            given=f"local shape {local} on process {process}",
            rule=f"process {process} has no device in the mesh, which is on {topology.who()}: its"
            " local shape says nothing of the global one",
            advice="give global_shape=, or pass a jax.ShapeDtypeStruct of the global shape",
        )
    speakers = topology.processes if process is None else (process,)
    counts = {tuple(map(len, share_of(layout, speaker).held)) for speaker in speakers}
    if len(counts) > 1:
        raise build(
            ShapeError,
            where="plan",
            given=f"local shape {local} of no process in particular",
            rule=f"processes hold different numbers of chunks here, such as {sorted(counts)[:3]}",
            advice="pass process= or global_shape=",
        )
    return counts.pop()


def _whole_dimensions(layout: Layout, local: Shape, whole: Shape, process: int) -> tuple[bool, ...]:
    """Which dimensions a local value gives whole, checked against both readings of its sizes."""
    share = share_of(layout, process)
    own = tuple(
        len(held) * g // n for held, g, n in zip(share.held, whole, layout.counts, strict=True)
    )
    if len(local) != len(whole) or any(
        size not in both for size, *both in zip(local, own, whole, strict=True)
    ):
        raise build(
            ShapeError,
            where="plan",
            given=f"local shape {local}, global shape {whole}, spec {_show(layout.axes)}",
            rule=f"each dimension is either the chunks of process {process}, together {own}, or"
            f" the whole dimension, together {whole}",
            advice=f"pass a value of shape {own}, or correct global_shape",
        )
    return tuple(size != o for size, o in zip(local, own, strict=True))


def _not_a_multiple(given: str, rule: str, size: int, divisor: int) -> ShapeError:
    below, above = size // divisor * divisor, (size // divisor + 1) * divisor
    nearest = f"{below} or {above}" if below else f"{above}"
    return build(
        ShapeError,
        where="plan",
        given=given,
        rule=f"{rule} must be a multiple of {divisor}",
        advice=f"pad or trim it to {nearest}, or cut it by fewer mesh axes",
    )


def _cut(layout: Layout, dimension: int) -> str:
    sizes = layout.topology.shape
    return " x ".join(f"{name}={sizes[name]}" for name in layout.axes[dimension])


def _show(axes: Axes) -> str:
    entries = (names[0] if len(names) == 1 else names or None for names in axes)
    return f"P({', '.join(map(repr, entries))})"


def bounds(index: Index, shape: Shape) -> Bounds:
    """An index of an array of this shape as start and stop along each dimension.

    >>> bounds((slice(None), slice(2, 4)), (3, 8))
    ((0, 3), (2, 4))
    """
    return tuple(cut.indices(size)[:2] for cut, size in zip(index, shape, strict=True))


def abridged(places: Sequence[Bounds]) -> str:
    """Places in words, the first few of them: for messages.

    >>> abridged([((0, 3), (2, 4))] * 6)
    '[0:3, 2:4], [0:3, 2:4], [0:3, 2:4], [0:3, 2:4] and 2 more'
    """
    shown = (f"[{', '.join(f'{a}:{b}' for a, b in place)}]" for place in places[:4])
    return ", ".join(shown) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
