"""Whether processes feed the same rows where they hold the same chunks, and others elsewhere.

Each process posts digests of what it feeds; all compare them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import msgpack
import numpy as np
import numpy.typing as npt
import xxhash
from jax.sharding import NamedSharding

from .._packing import pack
from .._plan import plan
from .._recipes import mesh_of
from .._verdict import name_processes
from ._ends import Outcome
from ._rows import Rows

# So many rows of a batch tell whether two processes read the same part of a data set.
_ROWS = 4


def marks_of(
    arrays: Sequence[npt.NDArray[Any]],
    shardings: Sequence[NamedSharding],
    rows: int,
    held: int,
) -> bytes:
    """Digests of the chunks that others hold too, and of the first rows of this process.

    `held` is the number of chunks of the batch axis that this process holds.
    """
    each = -(-rows // held)
    shared: list[tuple[int, tuple[int, ...], bytes]] = []
    for number, (array, sharding) in enumerate(zip(arrays, shardings, strict=True)):
        shape = (each * held, *array.shape[1:])
        layout = plan(
            mesh_of(sharding), sharding.spec, local_shape=shape, process=jax.process_index()
        )
        if layout.is_replicated:
            for chunk in layout.chunks():
                if len(layout.holders(chunk)) > 1:
                    part = array[:rows][layout.local_index(chunk)]
                    shared.append((number, chunk, _digest([part])))
    first = [_digest([array[row] for array in arrays]) for row in range(min(rows, _ROWS))]
    return pack((each, shared, first))


def unlike(marks: Sequence[bytes], rows: Rows, names: Sequence[str], batch: int) -> Outcome | None:
    """How it ends where processes feed different values of one chunk."""
    found: dict[tuple[int, int, tuple[int, ...]], tuple[int, bytes]] = {}
    for process, mark in zip(rows.members, marks, strict=True):
        each, shared, _ = msgpack.unpackb(mark) if mark else (0, [], [])
        for leaf, chunk, digest in shared:
            key = (leaf, each, tuple(chunk))
            other, before = found.setdefault(key, (process, digest))
            if before != digest:
                name = f"leaf {names[leaf]}" if names[leaf] else "the value"
                return Outcome(
                    "failed",
                    batch,
                    (other, process),
                    f"{name}, chunk {tuple(chunk)}: digest {before.hex()} on process {other},"
                    f" {digest.hex()} on process {process}",
                    f"processes {other} and {process} hold the same chunk, and feed the same rows"
                    " of it, in the same order",
                    "read the same part of the data there, with the same seed:"
                    " hostmesh.data_shard(mesh, spec) tells which part",
                )
    return None


def suspicion(marks: Sequence[bytes], rows: Rows) -> str:
    """Words on processes that feed equal rows for different chunks; empty where none do."""
    by_rows: dict[tuple[bytes, ...], list[int]] = {}
    for rank, mark in enumerate(marks):
        first = tuple(msgpack.unpackb(mark)[2]) if mark else ()
        if len(set(first)) > 1 or (len(first) == 1):
            by_rows.setdefault(first, []).append(rank)
    for first, ranks in by_rows.items():
        apart = [r for r in ranks[1:] if not set(rows.held[r]) & set(rows.held[ranks[0]])]
        if apart:
            who = name_processes(rows.members[rank] for rank in (ranks[0], *apart))
            return (
                f"{who} feed equal rows in the first batch (digests"
                f" {', '.join(digest.hex() for digest in first)}) for different chunks of the batch"
                " axis: was the data set split between the processes? hostmesh.data_shard(mesh,"
                " spec) tells which part each of them reads"
            )
    return ""


def _digest(parts: Sequence[npt.NDArray[Any]]) -> bytes:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.digest()
