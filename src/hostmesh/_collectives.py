"""Values between processes: packed, bit for bit, agreed on before anything moves.

Each call packs all leaves of its tree into one stream of bytes. Small streams travel with the
agreement itself, through the coordination service; larger ones by XLA collectives over one device
a process, in parts of at most `config.part_bytes` (see `_transport`).

All calls take `processes=` (those that take part, all of which make the same call; by default all)
and `timeout=` (seconds to wait for them; by default `config.timeout`), and raise on every process
that takes part:

* `DivergenceError` where processes are about to do different things,
* `StragglerError` where some do not come in time, naming them,
* `ClusterError` where one failed on its way, naming it.

Leaves are NumPy arrays, `jax.Array`s on this process, numbers and PRNG keys; results are NumPy
arrays of the same dtype (also 64 bits wide, whatever JAX's x64 mode), keys for keys, and with
`as_jax=True` arrays on this process's default device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import msgpack
import numpy as np
import numpy.typing as npt

from . import _transport, _whole
from ._coordination import Agreement, agree, members_of, name_processes, rank_of, telling
from ._errors import DivergenceError, SpecError, build
from ._kinds import Kind, pack_kinds, unpack_kinds
from ._packing import (
    Parcel,
    describe,
    finished,
    is_inline,
    pack,
    parcel,
    plain_structure,
    rows_of,
    side_by_side,
    structure_of,
)
from ._stream import Landing, Stream, empty, joined
from ._trees import Tree

HostArray = npt.NDArray[Any]


def allgather(
    tree: Tree,
    *,
    tiled: bool = False,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree:
    """Gives every process the values of all, stacked or joined in process order.

    Args:
      tree: this process's values, equal in structure, dtypes and shapes on all. Global arrays, of
        which other processes hold parts, may be among them.
      tiled: joins values on their first axis, whose sizes may differ, instead of stacking them on
        a new first axis.

    Returns:
      The tree with leaves of shape `(number of processes, *shape)`, also for a single process; with
      `tiled`, of the sum of all first sizes. Global arrays come back whole, in their own shape;
      each of their shards travels once, and only where some process lacks it.

    Raises:
      DivergenceError, StragglerError, ClusterError: see the head of this module.
      ShapeError, SpecError: for a leaf that is no array, number or key.

    >>> import hostmesh, jax
    >>> hostmesh.allgather(jax.process_index()).shape == (jax.process_count(),)
    True
    """
    name = f"allgather{'(tiled)' if tiled else ''}"
    return _gathered(name, tree, None, tiled, as_jax, processes, timeout)


def gather(
    tree: Tree,
    *,
    to: int = 0,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree | None:
    """Gives process `to` the values of all, stacked in process order, and the others `None`.

    As `allgather`, but a process that does not keep the values holds one part of them at a time.
    Global arrays come back whole.

    >>> import hostmesh, jax
    >>> gathered = hostmesh.gather(jax.process_index())
    >>> gathered is None if jax.process_index() else len(gathered) == jax.process_count()
    True
    """
    return _gathered(f"gather(to={to})", tree, to, False, as_jax, processes, timeout)


def _gathered(
    name: str,
    tree: Tree,
    to: int | None,
    tiled: bool,
    as_jax: bool,
    processes: Sequence[int] | None,
    timeout: float | None,
) -> Tree | None:
    with telling(name, processes=processes):
        mine = parcel(tree, name, with_globals=True)
        if tiled:
            _require_axes(mine, name)
        members = members_of(processes, name)
        keepers = members if to is None else (members[rank_of(to, processes, name)],)
        globals_ = _whole.Gathering(mine.globals, members, keepers, name)
        arrays = [*mine.arrays, *globals_.outgoing()]
    compared = mine.kinds
    if tiled:
        compared = tuple(Kind(kind.dtype, kind.shape[1:], kind.key) for kind in mine.kinds)
    what = f"{name} of {describe(str(mine.structure), compared)}{globals_.described}"
    longest = mine.nbytes + globals_.longest  # equal on all, unless tiled
    inline = is_inline(longest, len(members)) and not tiled
    sizes = pack([kind.shape[0] for kind in mine.kinds]) if tiled else b""
    data = joined(arrays).ljust(longest, b"\0") if inline else sizes
    agreed = agree(what, data=data, moves=not inline, timeout=timeout, processes=processes)
    keeps = jax.process_index() in keepers
    results, take = list[HostArray](), _transport.ignore
    if tiled:
        results, pieces = _tiled_results(mine, agreed)
        longest = max(Stream(piece).nbytes for piece in pieces) + globals_.longest
        take = _taker(pieces, globals_)
    elif keeps and inline and not mine.globals:
        results = side_by_side(rows_of(agreed.data), mine.kinds)
    elif keeps and mine.globals:
        results = empty(mine.kinds, (len(members),))
        ranks = range(len(members))
        take = _taker([[r[rank : rank + 1] for r in results] for rank in ranks], globals_)
    elif keeps:  # one layout for all: all ranks at once
        landing = Landing(mine.kinds, rows=len(members))
        results, take = landing.arrays, landing.write
    if inline:
        take(rows_of(agreed.data), 0)
    else:
        with agreed.turn():
            _transport.allgather(longest, members, Stream(arrays).read, take)
    if not keeps:
        return None
    leaves = [finished(r, kind, as_jax) for r, kind in zip(results, mine.kinds, strict=True)]
    for (number, _, kind), result in zip(mine.globals, globals_.results, strict=True):
        leaves.insert(number, finished(result, kind, as_jax))
    return jax.tree.unflatten(mine.structure, leaves)


def _taker(pieces: list[list[HostArray]], globals_: _whole.Gathering) -> _transport.Take:
    """What writes each rank's bytes into its own pieces of the results."""
    streams = [Stream([*p, *g]) for p, g in zip(pieces, globals_.incoming(), strict=True)]
    return _transport.by_rank(lambda rank, piece, start: streams[rank].write(piece, start))


def broadcast(
    tree: Tree,
    *,
    source: int = 0,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree:
    """Gives every process the values of process `source`, bit for bit.

    Args:
      tree: the values on `source`. The others pass a tree of the same structure, dtypes and shapes
        (its values are not read), or `None`.
      source: the process whose values all get.

    Raises:
      DivergenceError, StragglerError, ClusterError: see the head of this module.
      SpecError: for a source that does not take part, or a tree of a registered type of the
        user's where another process passes `None`: that one cannot know the type.

    >>> import hostmesh, jax
    >>> hostmesh.broadcast(jax.process_index()).item()
    0
    """
    name = f"broadcast(source={source})"
    with telling(name, processes=processes):
        root = rank_of(source, processes, name)
        members = members_of(processes, name)
        is_source = members[root] == jax.process_index()
        if is_source and tree is None:
            raise build(
                SpecError,
                where=f"{name} on process {source}",
                given="None on the source itself",
                rule="the source passes the values that all get",
                advice="pass them, or name another source",
            )
        mine = parcel(tree, "broadcast")
        inline = is_inline(mine.nbytes, 1)
        message = b""
        if is_source:
            stream = joined(mine.arrays) if inline else b""
            kinds = pack_kinds(mine.kinds)
            message = pack((mine.described(), plain_structure(mine.structure), kinds, stream))
        elif tree is not None:
            message = pack((mine.described(),))
    agreed = agree(name, data=message, moves=True, timeout=timeout, processes=processes)
    heads = [msgpack.unpackb(data)[0] if data else None for data in agreed.data]
    sent = msgpack.unpackb(agreed.data[root])
    with agreed.turn():
        require_same_trees(name, agreed, root, heads)
        kinds = unpack_kinds(sent[2])
        # Where one process cannot know the source's types, it is an error on all.
        if None in heads and not sent[1]:
            raise unknown_types(name, agreed.members[heads.index(None)], sent[0])
        structure = structure_of(sent[1]) if tree is None else mine.structure
        landing = Landing(kinds)
        if is_inline(landing.nbytes, 1):
            landing.write(np.frombuffer(sent[3], np.uint8)[None], 0)
        else:
            fill = mine.stream().read if is_source else None
            _transport.broadcast(landing.nbytes, agreed.members, root, fill, landing.write)
    leaves = [finished(r, kind, as_jax) for r, kind in zip(landing.arrays, kinds, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def barrier(
    name: str, *, timeout: float | None = None, processes: Sequence[int] | None = None
) -> None:
    """Waits until all processes have come to the barrier of this name.

    Raises:
      DivergenceError: where some came to another one, or call something else.
      StragglerError: where some did not come within `timeout` seconds; it names them.

    >>> import hostmesh
    >>> hostmesh.barrier("loaded")
    """
    agree(f"barrier {name!r}", timeout=timeout, processes=processes)


def _tiled_results(
    mine: Parcel, agreed: Agreement
) -> tuple[list[HostArray], list[list[HostArray]]]:
    sizes = [msgpack.unpackb(data) for data in agreed.data]  # by process, then by leaf
    results: list[HostArray] = []
    pieces: list[list[HostArray]] = [[] for _ in sizes]
    for number, kind in enumerate(mine.kinds):
        firsts = [of[number] for of in sizes]
        result = np.empty((sum(firsts), *kind.shape[1:]), np.dtype(kind.dtype))
        results.append(result)
        start = 0
        for piece, first in zip(pieces, firsts, strict=True):
            piece.append(result[start : start + first])
            start += first
    return results, pieces


def require_same_trees(
    name: str, agreed: Agreement, root: int, heads: Sequence[str | None]
) -> None:
    """Raises on all members where trees that were passed are not like the one of rank `root`."""
    trees: dict[str, list[int]] = {}
    for process, head in zip(agreed.members, heads, strict=True):
        if head is not None:
            trees.setdefault(head, []).append(process)
    if len(trees) > 1:
        raise build(
            DivergenceError,
            where=f"{name} on process {jax.process_index()}",
            given="; ".join(f"{name_processes(who)}: {tree}" for tree, who in trees.items()),
            rule=f"all pass trees of the structure, dtypes and shapes of process"
            f" {agreed.members[root]}, or None",
            advice="pass None where the values are not known",
        )


def unknown_types(name: str, process: int, tree: str) -> SpecError:
    """The error for a process that passes `None` and cannot know the types of the source's tree."""
    return build(
        SpecError,
        where=f"{name} on process {jax.process_index()}",
        given=f"None on process {process} for {tree}",
        rule="a process that passes None learns of dicts, lists, tuples and None only, and this tree"
        " has other types",
        advice="pass a tree of the same structure on every process; its values are not read",
    )


def _require_axes(mine: Parcel, name: str) -> None:
    for number, kind in enumerate(mine.kinds):
        if not kind.shape:
            raise build(
                SpecError,
                where=f"{name} on process {jax.process_index()}",
                given=f"leaf {number} of shape ()",
                rule="tiled=True joins values on their first axis, and a scalar has none",
                advice="leave tiled=True out to stack scalars",
            )
