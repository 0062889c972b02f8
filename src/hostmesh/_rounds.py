"""Rounds of agreement on JAX's coordination service: how posts travel, and the verdict comes back.

A round of a channel lives under one folder of the service's key-value store:

    hostmesh/agree/<channel>/<members>/<block>/<round>/in/<node>/<rank>   rank's post to its parent
    hostmesh/agree/<channel>/<members>/<block>/<round>/verdict            written once

Posts reach the root by a tree, so that no process reads more than `FAN_IN` of them. The verdict is
written once, by whoever decides first: a process whose time is up decides by the same key as the
root, so that no two processes ever follow different verdicts, and one that comes late reads what
the others decided. All count the round, whatever came of it: no message of an old round is taken
for a new one. Who posts to a round has left those before: the root deletes them, a block at a time.

Where a call carries no data, the processes meet at a barrier of the service first, whose name is
made of the call. If all come soon that is all, at a fourth of the messages. If not, the service lets
none of them through, and all go on to post: the barrier fails for all or for none.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from . import _jax, _transport
from ._config import config
from ._verdict import Call, Post, Verdict, decide, name_processes, told
from ._watch import _marks

# Children of a node of the tree.
FAN_IN = 32
_ROOT = "hostmesh/agree/"
# Waits are cut in slices of this many seconds: Ctrl-C gets through, and so does an early verdict.
_SLICE = 1.0
# After the first, shorter slice an inner node says that it has come.
_FIRST_SLICE = 0.2
_GRACE = 0.5
# The root deletes that many rounds at a time.
_BLOCK = 16
# Up to as many posts that are still awaited are read one by one.
_FEW = 4
# How long the processes wait for each other at a barrier before they post. The service looks once
# a second whose time is up.
_MEETING = 0.2
# The service keeps a kilobyte for each name of a barrier: a channel takes that many at most.
_NAMES = 1000


@dataclass
class Channel:
    """One sequence of rounds of one set of processes."""

    folder: str
    members: tuple[int, ...]
    rank: int
    round: int = 0
    kept: list[int] = field(default_factory=list[int])  # blocks that the root has not deleted yet
    named: set[str] = field(default_factory=set[str])  # calls that have met
    failed: int = 0  # the last round that did not end well for all at its barrier, or at all
    lock: threading.Lock = field(default_factory=threading.Lock)
    broken: bool = False


@dataclass(frozen=True)
class Patience:
    """How long a round is waited for; it need not be known when the round begins.

    `left` tells the seconds that are left, of `limit` in all; `gone` why this process leaves the
    round, or "": the round has then failed, for the others too. Both are asked each `slice` seconds.
    """

    limit: float
    left: Callable[[], float]
    gone: Callable[[], str]
    slice: float = 0.1


def patience_of(seconds: float) -> Patience:
    """The patience of a time that is known."""
    deadline = time.monotonic() + seconds
    return Patience(seconds, lambda: deadline - time.monotonic(), lambda: "", _SLICE)


_channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
_tickets: dict[tuple[int, ...], int] = {}  # the next one, on the root
_tickets_lock = threading.Lock()
_channels_lock = threading.Lock()


def channel_of(name: str, members: tuple[int, ...]) -> Channel:
    """The channel of a name and some members, which counts its rounds from the first call on."""
    with _channels_lock:
        found = _channels.get((name, members))
        if found is None:
            everyone = len(members) == _jax.place()[1]
            who = "all" if everyone else "-".join(map(str, members))
            folder = f"{_ROOT}{name.replace('/', '_')}/{who}/"
            found = Channel(folder, members, members.index(_jax.place()[0]))
            _channels[name, members] = found
        return found


def forget(channel: Channel) -> None:
    """Drops a channel that this process is done with; see `erase` for what lies in the store."""
    with _channels_lock:
        for key, known in list(_channels.items()):
            if known is channel:
                del _channels[key]


def erase(folder: str) -> None:
    """Deletes what a channel left in the store: for the root, once all processes are done with it."""
    if (store := _jax.store()) is not None:
        store.delete(folder)


def _children(rank: int, count: int) -> range:
    first = rank * FAN_IN + 1
    return range(min(first, count), min(first + FAN_IN, count))


def hold_round(
    channel: Channel,
    call: Call,
    data: bytes | None,
    patience: Patience,
    moves: bool,
) -> Verdict:
    """Holds the next round of a channel; `data` is `None` where no process gives any."""
    post = Post({call: [channel.rank]}, {channel.rank: data} if data else {})
    store = _jax.store()
    if store is None:
        return _without_store(channel, post, patience.limit)
    here = _Round(store, channel, call, patience)
    channel.round += 1
    if data is None and not moves and (name := here.meeting()):
        if store.meet(name, _MEETING, channel.members):
            return Verdict("agreed")
        post.met = True
    verdict = _posted(here, channel, post, moves)
    if verdict.met or verdict.kind != "agreed":  # as all read it, also who came to no meeting
        channel.failed = channel.round
    return verdict


def _posted(here: _Round, channel: Channel, post: Post, moves: bool) -> Verdict:
    here.open()
    if not here.collect(post):
        return here.await_verdict()
    if channel.rank:
        here.post_up(post)
        return here.await_verdict()
    verdict = decide(post, channel.members)
    verdict = here.settle_with_ticket(verdict) if moves else here.settle(verdict)
    here.delete_left()
    return verdict


class _Round:
    """One process's part in one round, on the store."""

    def __init__(self, store: _jax.Store, channel: Channel, call: Call, patience: Patience) -> None:
        self._store = store
        self._channel = channel
        self._call = call
        self._patience = patience
        self._block = channel.round // _BLOCK
        self._folder = f"{channel.folder}{self._block}/{channel.round}/"
        self._verdict = f"{self._folder}verdict"

    def meeting(self) -> str | None:
        """The name of a barrier at which all meet that make this very call; `None` for no meeting."""
        words = f"{self._call.what}\n{self._call.site if config.call_sites else ''}"
        digest = xxhash.xxh3_128_hexdigest(words.encode())
        named = self._channel.named
        if self._patience.limit < 10 * _MEETING or (digest not in named and len(named) == _NAMES):
            return None
        named.add(digest)
        return f"{self._channel.folder}{self._channel.failed}/{digest}"

    def open(self) -> None:
        """Notes that the round has a folder, before anything is in it."""
        kept = self._channel.kept
        if self._channel.rank == 0 and self._block not in kept[-1:]:
            kept.append(self._block)

    def delete_left(self) -> None:
        """Deletes the blocks before this one, on the root when all have come to this round."""
        while self._channel.kept[0] < self._block:
            self._store.delete(f"{self._channel.folder}{self._channel.kept.pop(0)}/")

    def _left(self) -> float:
        return 0.0 if self._patience.gone() else self._patience.left()

    def collect(self, post: Post) -> bool:
        """Takes in the posts of this node's children; `False` if time runs out or a verdict comes."""
        awaited = set(_children(self._channel.rank, len(self._channel.members)))
        mine = f"{self._folder}in/{self._channel.rank}/"
        slice_ = _FIRST_SLICE
        while awaited:
            if (remaining := self._left()) <= 0:
                return False
            first = min(awaited)
            message = self._store.get(f"{mine}{first}", min(remaining, slice_))
            if message is None:
                if self._store.peek(self._verdict) is not None:
                    return False
                if slice_ == _FIRST_SLICE:  # for those whose time is up before this node's is
                    self._store.set_once(
                        f"{self._folder}in/-/{self._channel.rank}", self._presence()
                    )
                slice_ = self._patience.slice
                continue
            arrived = {first: message}
            if len(awaited) > _FEW:  # most of the others have come as well: one message for all
                arrived = {int(rank): m for rank, m in self._store.list(mine).items()}
            for rank in awaited & set(arrived):
                awaited.remove(rank)
                post.add(Post.unpacked(arrived[rank]))
        return True

    def post_up(self, post: Post) -> None:
        """Posts to the parent node."""
        rank = self._channel.rank
        self._store.set_once(f"{self._folder}in/{(rank - 1) // FAN_IN}/{rank}", post.packed())

    def settle(self, verdict: Verdict) -> Verdict:
        """Publishes a verdict, or returns the one that was there before."""
        if self._store.set_once(self._verdict, verdict.packed()):
            return verdict
        while (message := self._store.get(self._verdict, _SLICE)) is None:
            pass  # it is there: a slow answer is all that can keep it
        return Verdict.unpacked(message)

    def settle_with_ticket(self, verdict: Verdict) -> Verdict:
        """`settle`, numbering a verdict that stands: no number is left out, or taken twice."""
        members = self._channel.members
        with _tickets_lock:
            ticket = _tickets.get(members, 0)
            standing = self.settle(dataclasses.replace(verdict, ticket=ticket))
            if standing.kind == "agreed":
                _tickets[members] = ticket + 1
            return standing

    def await_verdict(self) -> Verdict:
        """Reads the verdict; decides that some are late when time is up."""
        # The root decides first where it can, though it may have begun its own time a little later.
        grace = _GRACE if self._channel.rank else 0.0
        while (remaining := self._left() + grace) > 0:
            if self._patience.gone():
                return self.settle(self._left_by_this())
            message = self._store.get(self._verdict, min(remaining, self._patience.slice))
            if message is not None:
                return Verdict.unpacked(message)
        return self.settle(self._left_by_this() if self._patience.gone() else self._late())

    def _left_by_this(self) -> Verdict:
        call = dataclasses.replace(self._call, failure=self._patience.gone())
        return Verdict("failed", told({call: [self._channel.rank]}, self._channel.members))

    def _presence(self) -> bytes:
        return Post({self._call: [self._channel.rank]}).packed()

    def _late(self) -> Verdict:
        members = self._channel.members
        came: dict[Call, set[int]] = {self._call: {self._channel.rank}}
        for message in self._store.list(f"{self._folder}in/").values():
            for call, ranks in Post.unpacked(message).calls.items():
                came.setdefault(call, set()).update(ranks)
        present = set[int]().union(*came.values())
        absent = [p for rank, p in enumerate(members) if rank not in present]
        where = told({call: sorted(ranks) for call, ranks in came.items()}, members)
        return Verdict(
            "late",
            f"{name_processes(absent)} did not come within {self._patience.limit:g} s"
            f"{_seen_elsewhere(self._store, set(absent))}{_marks.whereabouts(absent)}; came: {where}",
        )


def _seen_elsewhere(store: _jax.Store, absent: set[int]) -> str:
    """Where absent processes wait on other channels, in words."""
    count = _jax.place()[1]
    found: list[str] = []
    posts = store.list(_ROOT)
    for key, message in posts.items():
        name, who, block, number, *_, rank = key.split("/")
        if f"{name}/{who}/{block}/{number}/verdict" in posts:
            continue
        members = range(count) if who == "all" else [int(p) for p in who.split("-")]
        for call, ranks in Post.unpacked(message).calls.items():
            if rank != "verdict" and (here := absent & {members[r] for r in ranks}):
                found.append(
                    f"{name_processes(here)} waits in {call.what} at {call.site}, channel {name!r}"
                    f" of {name_processes(members)}"
                )
    return f" ({'; '.join(sorted(set(found)))})" if found else ""


def post_failure(channel: Channel, call: Call) -> None:
    """Ends this round for all, without waiting for anybody."""
    store = _jax.store()
    post = Post({call: [channel.rank]})
    if store is None:
        _without_store(channel, post, config.timeout)
        return
    here = _Round(store, channel, call, patience_of(0.0))  # it waits for nothing
    channel.round += 1
    channel.failed = channel.round
    here.open()
    here.settle(decide(post, channel.members))
    if channel.rank:
        here.post_up(post)


def _without_store(channel: Channel, post: Post, timeout: float) -> Verdict:
    """A round by a device collective, on public API.

    Who is late cannot be told there, and a channel whose time ran out is of no use any more.
    """
    if channel.broken:
        return Verdict("late", "a call on this channel ran out of time before: it is out of step")
    channel.round += 1
    posts = _transport.gather_messages(post.packed(), channel.members, timeout)
    if posts is None:
        channel.broken = True
        rule = f"not all of {name_processes(channel.members)} came within {timeout:g} s"
        return Verdict("late", rule)
    together = Post()
    for message in posts:
        together.add(Post.unpacked(message))
    return decide(together, channel.members)
