"""Values from each process to each: of any structure, dtypes, shapes and sizes, bit for bit.

The pieces need not be alike: each is a message that says what it holds. All processes post how much
they send; where that is little it travels with the agreement, else all pairs exchange parts of
their messages at a time (see `_transport`). See `_collectives` for what all collectives share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ._coordination import Agreement, members_of, rank_of, telling
from ._errors import SpecError, build
from ._messages import Incoming, one_each, outgoing, trade
from ._packing import Parcel, finished, parcel, plain_structure, structure_of
from ._stream import Stream
from ._trees import Tree


def scatter(
    pieces: Sequence[Tree] | None,
    *,
    source: int = 0,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree:
    """Gives each process its piece of what process `source` passes: the i-th to the i-th process.

    Args:
      pieces: on `source` a tree for each process that takes part, in their order. The trees may
        differ in structure, dtypes and shapes. The others pass `None`, or such a list, of which
        only the types of the trees are used.
      source: the process whose pieces are given.

    Returns:
      The piece of this process, with NumPy leaves, keys for keys, or arrays with `as_jax`.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      SpecError: for another number of pieces than of processes, or for trees of types of the
        user's where another process passes `None`: that one cannot know them.
      ShapeError: for a leaf that is no array, number or key.

    >>> import hostmesh, jax
    >>> mine = hostmesh.scatter([10 * p for p in range(jax.process_count())])
    >>> mine.item() == 10 * jax.process_index()
    True
    """
    name = f"scatter(source={source})"
    with telling(name, processes=processes):
        root = rank_of(source, processes, name)
        members = members_of(processes, name)
        is_source = members[root] == jax.process_index()
        if pieces is None and not is_source:
            parcels: list[Parcel] = []
        else:
            parcels = _parcels(pieces, members, name)
        types = _types(parcels)
    (incoming,) = trade(
        name,
        "to each",
        [_message(piece) for piece in parcels] if is_source else [],
        source=root,
        about=list(types),
        require=lambda agreed, known: _require_types(name, agreed, known[root], known),
        processes=processes,
        timeout=timeout,
    )
    return _tree(incoming, types, as_jax)


def exchange(
    pieces: Sequence[Tree],
    *,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> list[Tree]:
    """Sends the i-th piece to the i-th process, and gives the pieces that come from each.

    Args:
      pieces: a tree for each process that takes part, in their order. The trees may differ in
        structure, dtypes and shapes; `None` is an empty tree.

    Returns:
      The tree from each process, in their order, with NumPy leaves, keys for keys, or arrays with
      `as_jax`. The work is that of the longest piece between any two processes for all pairs.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      SpecError: for another number of pieces than of processes, or for trees of types of the
        user's that are not among the pieces of every process.
      ShapeError: for a leaf that is no array, number or key.

    >>> import hostmesh, jax
    >>> me, count = jax.process_index(), jax.process_count()
    >>> received = hostmesh.exchange([(me, p) for p in range(count)])
    >>> [(int(source), int(target)) for source, target in received] == [
    ...     (p, me) for p in range(count)
    ... ]
    True
    """
    name = "exchange"
    with telling(name, processes=processes):
        parcels = _parcels(pieces, members_of(processes, name), name)
        types = _types(parcels)
    received = trade(
        name,
        "to each",
        [_message(piece) for piece in parcels],
        about=list(types),
        require=lambda agreed, known: _require_types(
            name, agreed, [words for each in known for words in each], known
        ),
        processes=processes,
        timeout=timeout,
    )
    return [_tree(incoming, types, as_jax) for incoming in received]


def _parcels(pieces: object, members: Sequence[int], name: str) -> list[Parcel]:
    listed = one_each(pieces, members, name)
    return [parcel(piece, f"piece {i} of {name}") for i, piece in enumerate(listed)]


def _message(piece: Parcel) -> Stream:
    body = (plain_structure(piece.structure), str(piece.structure))
    return outgoing(body, piece.kinds, piece.arrays)


def _tree(incoming: Incoming, types: dict[str, Any], as_jax: bool) -> Tree:
    plain, words = incoming.body
    structure = structure_of(plain) if plain else types[words]
    arrays = zip(incoming.arrays, incoming.kinds, strict=True)
    return jax.tree.unflatten(structure, [finished(a, kind, as_jax) for a, kind in arrays])


def _types(parcels: Sequence[Parcel]) -> dict[str, Any]:
    """Structures with other types than plain ones, by their words: they do not travel."""
    structures = (piece.structure for piece in parcels)
    return {str(each): each for each in structures if not plain_structure(each)}


def _require_types(
    name: str, agreed: Agreement, sent: Sequence[str], known: Sequence[Sequence[str]]
) -> None:
    for process, theirs in zip(agreed.members, known, strict=True):
        if unknown := sorted(set(sent).difference(theirs)):
            raise build(
                SpecError,
                where=f"{name} on process {jax.process_index()}",
                given=f"a piece of {unknown[0][:300]}, which process {process} passes no tree of",
                rule="dicts, lists, tuples and None travel as they are; of other types a process"
                " knows those among its own pieces",
                advice="send dicts, lists and tuples, or pass a tree of these types on every process",
            )
