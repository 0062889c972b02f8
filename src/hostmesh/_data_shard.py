"""Which part of a data set each process has to read: plain data from the plan, no devices."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from . import _spec
from ._errors import ShapeError, SpecError, at, build
from ._layout import Layout, layout_of, share_of
from ._topology import Topology

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from ._spec import Spec

Ranges: TypeAlias = tuple[tuple[int, int], ...]
_Numbers: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class DataShard:
    """What one process reads of a data set. Made by `hostmesh.data_shard`; hashable; no devices.

    `index` of `count` is its shard: processes that hold the same chunks of the batch axis read the
    same examples, and are one shard. Shards are numbered by their chunks, lowest first. A process
    without devices reads nothing: its `index` is `None`.

    `even` tells whether the shards are of one size and share no example. Only then may a loader be
    told index and count alone, to cut the data set into `count` equal parts. Otherwise (unequal
    numbers of devices, or processes of which each holds some of another's chunks) `chunks` say what
    is to be read; they are right on every mesh.

    `processes` read the same examples as this one, which is among them; `replicas` are those of
    them that read the same of each example too, and must pass equal values.

    `held` are the chunk numbers along each dimension, ascending, out of `counts` chunks; `axis` is
    the batch axis. The process reads the product of them. Where its devices hold only part of that
    product, `Plan.missing` tells what is read in vain.
    """

    process: int
    index: int | None
    count: int
    even: bool
    processes: tuple[int, ...]
    replicas: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    axis: int

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks of the batch axis that this process reads, ascending."""
        return self.held[self.axis]

    @property
    def of_chunks(self) -> int:
        """In how many chunks the batch axis is cut."""
        return self.counts[self.axis]

    def ranges(self, global_shape: Sequence[int]) -> tuple[Ranges, ...]:
        """What to read of an array of this shape: for each dimension its (start, stop), ascending.

        Adjacent chunks are one range. Dimensions after the spec's are read whole. Raises
        `ShapeError` for a shape that the chunks do not divide, or of too few dimensions.
        """
        shape = tuple(map(operator.index, global_shape))
        if len(shape) < len(self.counts):
            raise build(
                ShapeError,
                where=f"data shard of process {self.process}",
                given=f"global shape {shape}",
                rule=f"it is a shard of arrays of {len(self.counts)} dimensions or more",
                advice="give the size of each dimension",
            )
        whole = (0,) if self.chunks else ()  # of a dimension that the spec does not name
        held = itertools.chain(self.held, itertools.repeat(whole))
        counts = itertools.chain(self.counts, itertools.repeat(1))
        return tuple(
            _merged(own, self._size(i, size, n))
            for i, (size, own, n) in enumerate(zip(shape, held, counts, strict=False))
        )

    def rows(self, global_batch: int) -> npt.NDArray[np.int64]:
        """The rows of a global batch of this size that this process passes to `to_global`, in order.

        Raises `ShapeError` for a size that is no multiple of `of_chunks`.
        """
        size = self._size(self.axis, global_batch, self.of_chunks)
        starts = np.array(self.chunks, np.int64)[:, None] * size
        return (starts + np.arange(size)).reshape(-1)

    def _size(self, dimension: int, size: int, chunks: int) -> int:
        if size % chunks:
            below = size // chunks * chunks
            raise build(
                ShapeError,
                where=f"data shard of process {self.process}",
                given=f"size {size} of dimension {dimension}",
                rule=f"the mesh cuts it into {chunks} equal chunks: {size} % {chunks} ="
                f" {size % chunks}",
                advice=f"make it {below or ''}{' or ' if below else ''}{below + chunks}",
            )
        return size // chunks


def data_shard(
    mesh: Topology | Mesh, spec: Spec, *, process: int | None = None, axis: int = 0
) -> DataShard:
    """Tells which part of a data set a process has to read for global arrays of one layout.

    It is the part that the process passes to `to_global`, on any mesh. Nothing is communicated and
    no device is touched.

    Args:
      mesh: a mesh, or a `Topology` of a cluster that need not be there.
      spec: the partition spec of the arrays; dimensions after its last are read whole.
      process: whose shard; by default this process's. With a `Topology` it has to be given.
      axis: the batch axis: the dimension along which the examples lie.

    Returns:
      A frozen `DataShard`.

    Raises:
      SpecError: for a spec that is none of this mesh, a bad `axis`, or no process.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"data": 4, "model": 2}, 4, order="interleaved")
    >>> shard = hostmesh.data_shard(topology, ("data", "model"), process=1)
    >>> f"{shard.index} of {shard.count}", shard.processes, shard.replicas
    ('0 of 2', (0, 1), (1,))
    >>> f"chunks {shard.chunks} of {shard.of_chunks}", shard.ranges((64, 10))
    ('chunks (0, 2) of 4', (((0, 16), (32, 48)), ((5, 10),)))
    >>> shard.rows(8)
    array([0, 1, 4, 5])
    """
    if isinstance(mesh, Topology):
        if process is None:
            raise build(
                SpecError,
                where="data_shard",
                given="a topology, and no process",
                rule="a topology is not told which of its processes this is",
                advice="pass process=, such as jax.process_index()",
            )
        topology = mesh
    else:
        topology = Topology.from_mesh(mesh)
        if process is None:
            import jax

            process = jax.process_index()
    try:
        axis = operator.index(axis)
        spec = _spec.hashable(spec)
        named = 1 if isinstance(spec, str) else len(cast("tuple[object, ...]", spec or ()))
        axes = _spec.normalize(topology, spec, max(named, axis + 1))
    except SpecError as error:
        raise at(error, "data_shard") from None
    if axis < 0:
        raise build(
            SpecError,
            where="data_shard",
            given=f"axis={axis}",
            rule="the batch axis is counted from the first dimension, 0, on",
            advice="give its number from the front",
        )
    return _data_shard(layout_of(topology, axes), axis, process)


@functools.lru_cache(maxsize=4096)
def _data_shard(layout: Layout, axis: int, process: int) -> DataShard:
    shards = _shards(layout, axis)
    held = share_of(layout, process).held
    together = shards.get(held[axis], ())
    return DataShard(
        process=process,
        index=list(shards).index(held[axis]) if together else None,
        count=len(shards),
        even=_is_even(tuple(shards)),
        processes=together,
        replicas=tuple(p for p in together if share_of(layout, p).held == held),
        held=held,
        counts=layout.counts,
        axis=axis,
    )


@functools.lru_cache(maxsize=256)
def _shards(layout: Layout, axis: int) -> dict[_Numbers, tuple[int, ...]]:
    """The processes of each shard, by the chunks of the batch axis that they hold; in order."""
    found: defaultdict[_Numbers, list[int]] = defaultdict(list)
    for process in layout.topology.processes:
        found[share_of(layout, process).held[axis]].append(process)
    return {chunks: tuple(found[chunks]) for chunks in sorted(found)}


def _is_even(shards: tuple[_Numbers, ...]) -> bool:
    sizes = set(map(len, shards))
    return len(sizes) == 1 and len(set().union(*shards)) == sum(map(len, shards))


def _merged(chunks: _Numbers, size: int) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for chunk in chunks:
        start, stop = chunk * size, chunk * size + size
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return tuple(ranges)
