"""What the processes of a feeder have ready, and what follows for all of them.

Pure: each process decides by the same posts, so that all hand out the same batches and end alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgpack

from .._packing import pack
from .._verdict import Verdict, groups, name_processes
from ._rows import Rows

Ends = Literal["drop", "pad", "error"]
Then = Literal["more", "end", "failed", "late"]


@dataclass(frozen=True)
class Post:
    """What one process has from the first batch on that is not agreed on yet.

    Attributes:
      rows: of each batch that it has read.
      sizes: of each, how long its padded axes are.
      marks: of each, digests to compare, or nothing.
      then: what follows these batches.
      why: for a failure, in words.
      opening: with the first post, what its batches are made of; empty where it has none.
      left: with the first post, the numbers of feeders that it is done with.
    """

    rows: tuple[int, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    marks: tuple[bytes, ...] = ()
    then: Then = "more"
    why: str = ""
    opening: bytes = b""
    left: tuple[int, ...] = ()

    def packed(self) -> bytes:
        return pack(
            (self.rows, self.sizes, self.marks, self.then, self.why, self.opening, self.left)
        )

    @classmethod
    def unpacked(cls, message: bytes) -> Post:
        rows, sizes, marks, then, why, opening, left = msgpack.unpackb(message)
        sized = tuple(map(tuple, sizes))
        return cls(tuple(rows), sized, tuple(marks), then, why, opening, tuple(left))


@dataclass(frozen=True)
class Agreed:
    """One batch that all hand out: rows of each member and of each chunk, and padded sizes."""

    rows: tuple[int, ...]
    valid: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def examples(self) -> int:
        return sum(self.valid)


@dataclass(frozen=True)
class Outcome:
    """How it ends, after all that is agreed on. `who` are the processes that it is due to.

    `given` of an "end" tells which rows are dropped, where some are known to be.
    """

    kind: Literal["end", "failed", "late", "diverged"]
    batch: int = 0
    who: tuple[int, ...] = ()
    given: str = ""
    rule: str = ""
    advice: str = ""


def not_agreed(verdict: Verdict, batch: int) -> Outcome:
    """The end where a round of agreement failed, and there are no posts to decide by."""
    words = {
        "late": ("a process did not come", "look at what the missing process does"),
        "failed": ("all feed until all end", "close feeders at the same batch everywhere"),
        "diverged": (
            "all processes make the same feeders in the same order",
            "make the same calls on all processes",
        ),
    }
    kind = cast("Literal['late', 'failed', 'diverged']", verdict.kind)
    return Outcome(kind, batch, (), verdict.rule, *words[kind])


def decide(
    posts: Sequence[Post], rows: Rows, ends: Ends, first: int, examples: Sequence[int]
) -> tuple[list[Agreed], Outcome | None]:
    """The batches from number `first` on that all hand out, and how it ends if it does after them.

    `examples` are the rows that each member has fed before.

    >>> rows = Rows((0, 1), ((0,), (1,)), count=2, chunk_rows=4)
    >>> posts = [Post(rows=(4, 4)), Post(rows=(4,), then="end")]
    >>> [batch.rows for batch in decide(posts, rows, "pad", 0, [0, 0])[0]]
    [(4, 4), (4, 0)]
    >>> agreed, outcome = decide(posts, rows, "drop", 0, [0, 0])
    >>> len(agreed), outcome.kind, outcome.batch
    (1, 'end', 1)
    """
    fed = list(examples)
    agreed: list[Agreed] = []
    # A source that has ended has no rows for as long as others go on.
    known = [len(post.rows) for post in posts if post.then != "end"]
    length = min(known, default=max(len(post.rows) for post in posts))
    for at in range(length + 1):  # the last time round all that some have is used up
        number = first + at
        over = tuple(len(post.rows) <= at for post in posts)
        if at == length:
            return agreed, _outcome_after(posts, rows.members, over, ends, number)
        own = tuple(0 if o else post.rows[at] for o, post in zip(over, posts, strict=True))
        if outcome := _too_long(own, rows, number):
            return agreed, outcome
        try:
            valid = rows.valid(own)
        except ValueError as error:  # whatever `ends` says: no way to end makes that right
            return agreed, _unlike(rows.members, own, error.args, number)
        if outcome := _too_short(own, rows, ends, number, fed):
            return agreed, outcome
        sizes = [post.sizes[at] for post in posts if len(post.sizes) > at]
        agreed.append(Agreed(own, valid, tuple(map(max, zip(*sizes, strict=True)))))
        fed = [before + now for before, now in zip(fed, own, strict=True)]
    return agreed, None


def _outcome_after(
    posts: Sequence[Post],
    members: tuple[int, ...],
    over: Sequence[bool],
    ends: Ends,
    number: int,
) -> Outcome | None:
    """What comes of the posts that end here, after batches that all have."""
    for kind in ("failed", "late"):
        who = [
            (member, post.why)
            for member, post, o in zip(members, posts, over, strict=True)
            if o and post.then == kind
        ]
        if who:
            return _failure(kind, who, number)
    ended = [o and post.then == "end" for o, post in zip(over, posts, strict=True)]
    return Outcome("end", number) if all(ended) or (any(ended) and ends == "drop") else None


def _failure(kind: Literal["failed", "late"], who: list[tuple[int, str]], number: int) -> Outcome:
    words = "; ".join(f"process {member}: {why}" for member, why in who)
    processes = tuple(member for member, _ in who)
    named = name_processes(processes)
    if kind == "late":
        return Outcome(
            "late",
            number,
            processes,
            words,
            f"{named} did not have batch {number} in time",
            "look at what the source does there; raise timeout= if it is only slow",
        )
    return Outcome(
        "failed",
        number,
        processes,
        words,
        f"batch {number} is made of the rows of all processes, and {named} has none",
        "mend the failure that is named",
    )


def _too_long(own: Sequence[int], rows: Rows, number: int) -> Outcome | None:
    """What comes of more rows than a batch has."""
    capacities = rows.capacities
    long = [i for i, (n, most) in enumerate(zip(own, capacities, strict=True)) if n > most]
    if not long:
        return None
    who = tuple(rows.members[i] for i in long)
    return Outcome(
        "failed",
        number,
        who,
        "; ".join(f"process {rows.members[i]}: {own[i]} rows" for i in long),
        f"a global batch of {rows.total} rows has {capacities[long[0]]} of process {who[0]}",
        "give global_batch=, the rows of all processes together, or feed no more rows later"
        " than in the first batch",
    )


def _too_short(
    own: Sequence[int], rows: Rows, ends: Ends, number: int, fed: Sequence[int]
) -> Outcome | None:
    """What comes of fewer rows than a batch has, where it is not handed out."""
    short = [n < most for n, most in zip(own, rows.capacities, strict=True)]
    if ends == "pad" or not any(short):
        return None
    if ends == "drop":
        return Outcome("end", number, given=_dropped(rows, own))
    return _uneven(rows.members, short, number, [f + n for f, n in zip(fed, own, strict=True)])


def _dropped(rows: Rows, own: Sequence[int]) -> str:
    if not any(own):
        return ""
    shares = groups(dict(zip(rows.members, own, strict=True)))
    told = [f"{name_processes(who)}: {n} rows" for n, who in shares.items()]
    return f"{'; '.join(told)}; a whole batch has {rows.total} of all"


def _uneven(
    members: tuple[int, ...], ended: Sequence[bool], number: int, fed: Sequence[int]
) -> Outcome:
    after: dict[int, list[int]] = {}
    for member, e, examples in zip(members, ended, fed, strict=True):
        if e:
            after.setdefault(examples, []).append(member)
    told = [f"{name_processes(p)} ended after {n} examples" for n, p in sorted(after.items())]
    return Outcome(
        "failed",
        number,
        tuple(member for member, e in zip(members, ended, strict=True) if e),
        "; ".join(told),
        f"with ends='error' all processes feed batch {number} in full, or all have ended before",
        "give all processes as many examples, or choose ends='pad' or 'drop'",
    )


def _unlike(
    members: tuple[int, ...], own: Sequence[int], pair: Sequence[int], number: int
) -> Outcome:
    by_process = dict(zip(members, own, strict=True))
    a, b = pair
    return Outcome(
        "failed",
        number,
        (a, b),
        f"process {a}: {by_process[a]} rows; process {b}: {by_process[b]} rows",
        f"processes {a} and {b} hold the same chunk of the batch axis, and feed the same rows of it",
        "read the same part of the data there: hostmesh.data_shard(mesh, spec) tells which",
    )
