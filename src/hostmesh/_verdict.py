"""What a round of agreement comes to: posts, and the verdict on them. Pure: no store, no devices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgpack

from ._config import config


@dataclass(frozen=True)
class Call:
    """What a process is about to do: in words that are compared, from where, or why it cannot."""

    what: str
    site: str
    failure: str = ""


@dataclass
class Post:
    """What one or more processes post: who calls what, and each one's data.

    `met`: one of them waited at a barrier before, in vain.
    """

    calls: dict[Call, list[int]] = field(default_factory=dict[Call, list[int]])
    data: dict[int, bytes] = field(default_factory=dict[int, bytes])
    met: bool = False

    def add(self, other: Post) -> None:
        """Takes in the post of other ranks."""
        for call, ranks in other.calls.items():
            self.calls.setdefault(call, []).extend(ranks)
        self.data.update(other.data)
        self.met |= other.met

    def packed(self) -> bytes:
        calls = [(call.what, call.site, call.failure, ranks) for call, ranks in self.calls.items()]
        return _pack((calls, list(self.data.items()), self.met))

    @classmethod
    def unpacked(cls, message: bytes) -> Post:
        calls, data, met = msgpack.unpackb(message)
        return cls(
            {Call(what, site, no): ranks for what, site, no, ranks in calls}, dict(data), met
        )


@dataclass(frozen=True)
class Verdict:
    """What came of a round: the data of all, in order of rank, or the error that each raises.

    `ticket` numbers the rounds of some members that go on to move bytes, over all channels.
    """

    kind: str  # "agreed", "diverged", "late" or "failed"
    rule: str = ""
    data: tuple[bytes, ...] = ()
    ticket: int = -1
    met: bool = False  # as of the posts
    apart: str = ""  # what is not the same of calls that diverged: "order", "lines" or "values"

    def packed(self) -> bytes:
        return _pack((self.kind, self.rule, self.data, self.ticket, self.met, self.apart))

    @classmethod
    def unpacked(cls, message: bytes) -> Verdict:
        kind, rule, data, ticket, met, apart = msgpack.unpackb(message)
        return cls(kind, rule, tuple(data), ticket, met, apart)


def _pack(value: object) -> bytes:
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def decide(post: Post, members: Sequence[int]) -> Verdict:
    """The verdict on a round to which all came: pure, so that any process decides the same.

    >>> calls = {Call("allgather", "train.py:4"): [0, 1], Call("barrier", "eval.py:9"): [2]}
    >>> print(decide(Post(calls), members=[0, 1, 2]).rule)
    processes 0-1: allgather at train.py:4; process 2: barrier at eval.py:9
    """
    failures = {call: ranks for call, ranks in post.calls.items() if call.failure}
    if failures:
        return Verdict("failed", told(failures, members))
    compared = {(call.what, call.site if config.call_sites else "") for call in post.calls}
    if len(compared) > 1:
        return Verdict("diverged", told(post.calls, members), apart=_apart(post.calls))
    data = tuple(post.data.get(rank, b"") for rank in range(len(members)))
    return Verdict("agreed", data=data if any(data) else (), met=post.met)


def _apart(calls: Iterable[Call]) -> str:
    """How calls differ: in their lines alone, at one line in their values alone, or else in order."""
    if len({call.what for call in calls}) == 1:
        return "lines"
    operations = {(call.what.partition(" of ")[0], call.site) for call in calls}
    return "values" if len(operations) == 1 else "order"


def told(calls: Mapping[Call, Sequence[int]], members: Sequence[int]) -> str:
    """Who calls what, in words: ranks by call, and the process of each rank."""
    parts: list[str] = []
    for call, ranks in sorted(calls.items(), key=lambda item: min(item[1])):
        failed = f" failed: {call.failure}" if call.failure else ""
        parts.append(
            f"{name_processes(members[r] for r in ranks)}: {call.what} at {call.site}{failed}"
        )
    return "; ".join(parts)


V = TypeVar("V", bound=Hashable)


def groups(values: Mapping[int, V]) -> dict[V, list[int]]:
    """The processes that have each value: the largest group first, then that of the lowest process.

    >>> groups({0: "a", 1: "b", 2: "b"})
    {'b': [1, 2], 'a': [0]}
    """
    found: dict[V, list[int]] = {}
    for process in sorted(values):
        found.setdefault(values[process], []).append(process)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[1])))


def site_of(file: str, line: int) -> str:
    """A line of a program, such as `examples/train.py:41`.

    Hosts may have a program at different places: the last two parts of the path tell enough.

    >>> site_of("/home/me/examples/train.py", 41)
    'examples/train.py:41'
    """
    parts = file.replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{line}"


def name_processes(numbers: Iterable[int]) -> str:
    """Process numbers in words.

    >>> name_processes([0, 1, 2, 5, 7, 8]), name_processes([3])
    ('processes 0-2, 5, 7-8', 'process 3')
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    listed = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"process{'' if single else 'es'} {listed}"
