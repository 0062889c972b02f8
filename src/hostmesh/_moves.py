"""Pieces of arrays from process to process, each once to each that needs it."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy.typing as npt
import xxhash

from . import _transport
from ._coordination import Agreement, telling
from ._stream import Bytes, Stream

HostArray: TypeAlias = npt.NDArray[Any]
# What orders the pieces that go from one process to another: the same on both.
Key: TypeAlias = tuple[Any, ...]


class Moves:
    """The pieces that this process sends and receives: views of arrays, of any strides.

    Both ends of a piece name it by the same key.
    """

    def __init__(self) -> None:
        self._sent: defaultdict[int, list[tuple[Key, HostArray]]] = defaultdict(list)
        self._awaited: defaultdict[int, list[tuple[Key, HostArray]]] = defaultdict(list)

    def send(self, process: int, key: Key, piece: HostArray) -> None:
        """A piece goes to a process."""
        self._sent[process].append((key, piece))

    def receive(self, process: int, key: Key, place: HostArray) -> None:
        """What comes from a process is written to a place."""
        self._awaited[process].append((key, place))

    def needs(self) -> bytes:
        """What others must know of the pieces before they move: the data of an agreement."""
        return max((s.nbytes for s in _streams(self._sent).values()), default=0).to_bytes(8)

    def run(self, agreed: Agreement) -> None:
        """Moves the pieces, within the turn of an agreement in which all gave their `needs`.

        All pairs of processes exchange as much as the one with the most to say, in parts.
        """
        longest = max(int.from_bytes(data) for data in agreed.data)
        sent, awaited = _streams(self._sent), _streams(self._awaited)

        def fill(rank: int, out: Bytes, start: int) -> None:
            if stream := sent.get(agreed.members[rank]):
                stream.read(out, start)

        def take(rank: int, piece: Bytes, start: int) -> None:
            if stream := awaited.get(agreed.members[rank]):
                stream.write(piece, start)

        if longest:
            _transport.exchange(longest, agreed.members, fill, _transport.by_rank(take))


def _streams(pieces: defaultdict[int, list[tuple[Key, HostArray]]]) -> dict[int, Stream]:
    return {
        process: Stream([piece for _, piece in sorted(listed, key=lambda item: item[0])])
        for process, listed in pieces.items()
    }


def telling_members(name: str, members: tuple[int, ...]) -> contextlib.AbstractContextManager[None]:
    """`telling` where this process takes part; with no members known, all are told."""
    if members and jax.process_index() not in members:
        return contextlib.nullcontext()
    return telling(name, processes=members or None)


def in_words(name: str, layouts: Sequence[str]) -> str:
    """What is about to be moved, abridged: for an agreement."""
    text = f"{name} of {'; '.join(layouts)}"
    if len(text) <= 240:
        return text
    digest = xxhash.xxh3_64_hexdigest(text.encode())
    return f"{text[:200]}... ({len(layouts)} arrays, digest {digest})"


def sender(holders: Sequence[int], receiver: int, number: int) -> int:
    """Which holder of a chunk sends it to a process: by turns, so that none sends all."""
    return holders[(receiver + number) % len(holders)]
