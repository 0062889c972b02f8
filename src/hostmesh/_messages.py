"""Messages of any content and length between processes that do not know yet what will come.

A message is a stream: a head, which tells what follows in plain values, then arrays. Whoever
receives one makes the arrays when the head is there, and the rest is written into them as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import jax
import msgpack
import numpy as np
import numpy.typing as npt

from . import _transport
from ._coordination import Agreement, agree, members_of
from ._errors import SpecError, build
from ._kinds import ALIGNMENT, Kind, malformed, pack_kinds, unpack_kinds
from ._packing import is_inline, pack
from ._staging import round_up
from ._stream import Bytes, Landing, Stream
from ._verdict import name_processes

_PREFIX = 8


def outgoing(body: object, kinds: Sequence[Kind], arrays: Sequence[npt.NDArray[Any]]) -> Stream:
    """A message of a body, which msgpack packs, and arrays of these kinds."""
    head = pack((pack_kinds(kinds), body))
    prefix = len(head).to_bytes(_PREFIX, "little") + head
    return Stream([np.frombuffer(prefix, np.uint8), *arrays])


class Incoming:
    """A message of at most `most` bytes that is arriving, piece by piece and in order.

    What it claims of itself is checked: `ClusterError` for what `outgoing` does not make.
    """

    body: Any
    kinds: tuple[Kind, ...]
    arrays: list[npt.NDArray[Any]]

    def __init__(self, most: int) -> None:
        self._most = most
        self._head = bytearray()
        self._rest: Landing | None = None
        self._first = 0  # where the arrays begin

    @property
    def has_come(self) -> bool:
        """Whether its head is there: body, kinds, and arrays for what follows."""
        return self._rest is not None

    def write(self, piece: Bytes, start: int) -> None:
        """Takes the piece that begins at `start`; what lies past the message's end is not read."""
        if self._rest is None:
            self._head += piece.tobytes()
            length = int.from_bytes(self._head[:_PREFIX], "little")
            if _PREFIX + length > self._most:
                raise malformed(f"a head of {length} bytes in {self._most}")
            if len(self._head) < _PREFIX + length:
                return
            try:
                kinds, self.body = msgpack.unpackb(self._head[_PREFIX : _PREFIX + length])
            except (TypeError, ValueError) as error:  # msgpack's own are of these
                raise malformed(f"a head that is none: {error}") from None
            self._first = round_up(_PREFIX + length, ALIGNMENT)
            self.kinds = unpack_kinds(kinds, max(0, self._most - self._first))
            self._rest = Landing(self.kinds)
            self.arrays = self._rest.arrays
            self._head = bytearray()
        self._rest.write(piece[None], start - self._first)


@dataclass(frozen=True)
class Posted:
    """What a process tells of its messages when all agree; the messages themselves if small."""

    longest: int
    total: int
    messages: list[bytes]
    about: Any


def trade(
    name: str,
    way: Literal["to all", "to each"],
    messages: Sequence[Stream],
    *,
    source: int | None = None,
    about: object = None,
    require: Callable[[Agreement, list[Any]], None] | None = None,
    processes: Sequence[int] | None,
    timeout: float | None,
) -> list[Incoming]:
    """Agrees, and moves messages of any lengths: those that this process gets, by sender's rank.

    Args:
      name: what is compared between processes.
      way: whether a process has one message for all, or one for each.
      messages: this process's; none where it sends nothing.
      source: the rank that alone sends; all by default.
      about: a plain value for all others.
      require: called with what all processes told, to raise the same error on each.
      processes, timeout: as in every collective.
    """
    total = sum(message.nbytes for message in messages)
    count = len(members_of(processes, name)) if source is None else 1
    small = [m.tobytes() for m in messages] if is_inline(total, count) else []
    longest = max((message.nbytes for message in messages), default=0)
    data = pack((longest, total, small, about))
    agreed = agree(name, data=data, moves=True, timeout=timeout, processes=processes)
    posts = [Posted(*msgpack.unpackb(posted)) for posted in agreed.data]
    senders = range(len(posts)) if source is None else [source]
    longest = max(post.longest for post in posts)
    incoming = {rank: Incoming(longest) for rank in senders}

    def take(rank: int, piece: Bytes, start: int) -> None:
        if rank in incoming:
            incoming[rank].write(piece, start)

    take_rows = _transport.by_rank(take)

    with agreed.turn():
        if require is not None:
            require(agreed, [post.about for post in posts])
        if all(is_inline(post.total, count) for post in posts):
            which = 0 if way == "to all" else agreed.rank
            for rank in senders:
                take(rank, np.frombuffer(posts[rank].messages[which], np.uint8), 0)
        elif way == "to each":

            def fill(rank: int, out: Bytes, start: int) -> None:
                if messages:
                    messages[rank].read(out, start)

            _transport.exchange(longest, agreed.members, fill, take_rows)
        elif source is None:
            _transport.allgather(longest, agreed.members, messages[0].read, take_rows)
        else:
            _transport.broadcast(
                longest,
                agreed.members,
                source,
                messages[0].read if messages else None,
                lambda rows, start: take(source, rows[0], start),
            )
    return [incoming[rank] for rank in senders]


def one_each(pieces: object, members: Sequence[int], name: str) -> Sequence[Any]:
    """What a process passes for each of those that take part: a list of as many."""
    listed = cast(Sequence[Any], pieces) if isinstance(pieces, list | tuple) else None
    if listed is not None and len(listed) == len(members):
        return listed
    raise build(
        SpecError,
        where=f"{name} on process {jax.process_index()}",
        given=f"{type(pieces).__name__}{'' if listed is None else f' of {len(listed)}'}",
        rule=f"it takes a list of {len(members)}, one for each of {name_processes(members)}",
        advice="pass one for each process, None where there is nothing to send",
    )
