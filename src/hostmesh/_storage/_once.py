"""Chunks that several processes hold: read by each, or by one and sent on. Decided by numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .._errors import SpecError, build
from .._plan import Bounds

Mode: TypeAlias = Literal["read", "once"]

# Below it a chunk is read by one of its holders, by turns: pieces cost requests.
_LEAST_SHARE = 64 * 1024
# Bytes a second where nothing has been measured: of a page cache, a remote store, and what
# processes send each other while all of them do.
_LOCAL_RATE, _REMOTE_RATE, _SEND_RATE = 2e9, 100e6, 300e6


@dataclass(frozen=True)
class Load:
    """What one process has to read: all of its chunks, and its share where each is read once.

    `rate` is in bytes a second: measured, or 0.
    """

    own: int
    share: int
    rate: float = 0.0


@functools.lru_cache(maxsize=4096)
def shares(
    box: Bounds, holders: Sequence[int], itemsize: int, turn: int
) -> tuple[tuple[int, Bounds], ...]:
    """Which of its holders reads which part of a chunk, whose place in the array is `box`.

    A small chunk is read by one, by `turn`. Of chunks side by side each reads the same part, so that
    its parts lie together in the file.

    >>> shares(((0, 4), (0, 2**16)), (1, 3), 1, turn=0)
    ((1, ((0, 2), (0, 65536))), (3, ((2, 4), (0, 65536))))
    >>> shares(((0, 4),), (1, 3), 1, turn=1)
    ((3, ((0, 4),)),)
    """
    count = len(holders)
    size = itemsize
    for a, b in box:
        size *= b - a
    extents = [b - a for a, b in box]
    if count == 1 or size < count * _LEAST_SHARE or max(extents, default=0) < count:
        return ((holders[turn % count], box),)
    dimension = next((i for i, n in enumerate(extents) if n >= count), 0)
    low, extent = box[dimension][0], extents[dimension]
    cuts = [low + extent * i // count for i in range(count + 1)]
    return tuple(
        (
            holders[i],
            (*box[:dimension], (cuts[i], cuts[i + 1]), *box[dimension + 1 :]),
        )
        for i in range(count)
    )


def choose(asked: str, loads: Sequence[Load], is_remote: bool, where: str) -> tuple[Mode, str]:
    """How replicas are read, and why: the same on all processes that have the same numbers.

    >>> choose("auto", [Load(100, 50), Load(100, 50)], False, "load")[0]
    'read'
    >>> choose("auto", [Load(100, 25, 1e6)] * 4, True, "load")[0]
    'once'
    """
    if asked == "read":
        return "read", "as asked for"
    if asked == "once":
        return "once", "as asked for"
    if asked != "auto":
        raise build(
            SpecError,
            where=where,
            given=f"replicas={asked!r}",
            rule="it is 'auto', 'read' or 'once'",
            advice="leave it out",
        )
    own, share = max(load.own for load in loads), max(load.share for load in loads)
    if own <= share:
        return "read", "no chunk is held by several processes"
    measured = [load.rate for load in loads if load.rate]
    rate = min(measured, default=_REMOTE_RATE if is_remote else _LOCAL_RATE)
    read, once = own / rate, share / rate + (own - share) / _SEND_RATE
    words = (
        f"{own} bytes at most a process, or {share} and {own - share} from others; at"
        f" {rate / 1e6:.0f} MB/s {'measured' if measured else 'assumed'} and"
        f" {_SEND_RATE / 1e6:.0f} MB/s between processes {read:.3g} s against {once:.3g} s"
    )
    return ("once" if once < read else "read"), words
