"""Agreement between processes before they do anything together: `agree`.

Each process posts what it is about to do; one of them compares, and publishes a verdict that all
read. A stray, late or failed process is so an error with names on every process, not a hang.

A round of a channel lives under one folder of JAX's coordination service:

    hostmesh/agree/<channel>/<members>/<round>/in/<node>/<rank>   what rank posts to its parent node
    hostmesh/agree/<channel>/<members>/<round>/verdict            written once

Contributions reach the root by a tree, so that no process reads more than `FAN_IN` of them. The
verdict is written once, by whoever decides first: a process whose time is up decides by the same
key as the root, so that no two processes ever follow different verdicts, and one that comes late
reads what the others decided. All count the round, whatever came of it: no message of an old round
is taken for a new one. Who posts to a round has left those before, which the root then deletes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

import msgpack

from . import _jax, _transport
from ._config import config
from ._errors import (
    ClusterError,
    DivergenceError,
    HostmeshError,
    SpecError,
    StragglerError,
    build,
)

# Children of a node of the tree by which contributions reach the root.
FAN_IN = 32
_ROOT = "hostmesh/agree/"
# Waits are cut in slices of this many seconds: Ctrl-C gets through, and so does an early verdict.
_SLICE = 1.0
# After the first, shorter slice an inner node says that it has come.
_FIRST_SLICE = 0.2
_GRACE = 0.5


@dataclass(frozen=True)
class Call:
    """What a process is about to do: in words that are compared, from where, or why it cannot."""

    what: str
    site: str
    failure: str = ""


@dataclass
class Post:
    """What one or more processes post: who calls what, and each one's data."""

    calls: dict[Call, list[int]] = field(default_factory=dict[Call, list[int]])
    data: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def add(self, other: Post) -> None:
        """Takes in the post of other ranks."""
        for call, ranks in other.calls.items():
            self.calls.setdefault(call, []).extend(ranks)
        self.data.update(other.data)

    def packed(self) -> bytes:
        calls = [(call.what, call.site, call.failure, ranks) for call, ranks in self.calls.items()]
        return _pack((calls, list(self.data.items())))

    @classmethod
    def unpacked(cls, message: bytes) -> Post:
        calls, data = msgpack.unpackb(message)
        return cls({Call(what, site, no): ranks for what, site, no, ranks in calls}, dict(data))


@dataclass(frozen=True)
class Verdict:
    """What came of a round: the data of all, in order of rank, or the error that each raises.

    `ticket` numbers the rounds of some members that go on to move bytes, over all channels.
    """

    kind: str  # a key of _ERRORS, or "agreed"
    rule: str = ""
    data: tuple[bytes, ...] = ()
    ticket: int = -1

    def packed(self) -> bytes:
        return _pack((self.kind, self.rule, self.data, self.ticket))

    @classmethod
    def unpacked(cls, message: bytes) -> Verdict:
        kind, rule, data, ticket = msgpack.unpackb(message)
        return cls(kind, rule, tuple(data), ticket)


_ERRORS: dict[str, tuple[type[HostmeshError], str]] = {
    "diverged": (
        DivergenceError,
        "make every process make the same calls in the same order, also those that log or save;"
        " where one call is meant to stand on several lines, set hostmesh.config.call_sites=False",
    ),
    "late": (
        StragglerError,
        "look at what the missing processes do (py-spy, hostmesh's watchdog); raise timeout= if"
        " they are only slow",
    ),
    "failed": (ClusterError, "mend the failure that is named; here it is only passed on"),
}


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
        return Verdict("failed", _told(failures, members))
    compared = {(call.what, call.site if config.call_sites else "") for call in post.calls}
    if len(compared) > 1:
        return Verdict("diverged", _told(post.calls, members))
    data = tuple(post.data.get(rank, b"") for rank in range(len(members)))
    return Verdict("agreed", data=data if any(data) else ())


def _told(calls: dict[Call, list[int]], members: Sequence[int]) -> str:
    parts: list[str] = []
    for call, ranks in sorted(calls.items(), key=lambda item: min(item[1])):
        failed = f" failed: {call.failure}" if call.failure else ""
        parts.append(
            f"{name_processes(members[r] for r in ranks)}: {call.what} at {call.site}{failed}"
        )
    return "; ".join(parts)


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


@dataclass
class _Channel:
    """One sequence of rounds of one set of processes."""

    folder: str
    members: tuple[int, ...]
    rank: int
    round: int = 0
    kept: list[int] = field(default_factory=list[int])  # rounds that the root has not deleted yet
    lock: threading.Lock = field(default_factory=threading.Lock)
    broken: bool = False


_channels: dict[tuple[str, tuple[int, ...]], _Channel] = {}
_tickets: dict[tuple[int, ...], int] = {}  # the next one, on the root
_tickets_lock = threading.Lock()
_channels_lock = threading.Lock()
_local = threading.local()


@contextlib.contextmanager
def channel(name: str) -> Generator[None]:
    """Within the block, this thread's collectives are paired with those of channel `name`.

    Without it a thread's channel has the name of the thread, `"MainThread"` for the main one: for
    threads of the same names in every process nothing need be done.

    >>> import hostmesh
    >>> with hostmesh.channel("metrics"):
    ...     pass
    """
    before = getattr(_local, "name", None)
    _local.name = name
    try:
        yield
    finally:
        _local.name = before


def call_site() -> str:
    """File and line of the nearest caller outside hostmesh, such as `examples/train.py:41`."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_ours(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    # Hosts may have a program at different places: the last two parts of the path tell enough.
    path = frame.f_code.co_filename.replace("\\", "/").split("/")
    return f"{'/'.join(path[-2:])}:{frame.f_lineno}"


def _is_ours(module: str) -> bool:
    callers = ("hostmesh.testing", "hostmesh._demo")
    return module == "contextlib" or (
        module.startswith("hostmesh.") and not module.startswith(callers)
    )


def members_of(processes: Sequence[int] | None, where: str) -> tuple[int, ...]:
    """The processes that take part, ascending; all by default."""
    _, count, _ = _jax.place()
    if processes is None:
        return tuple(range(count))
    members = tuple(sorted(set(processes)))
    if not members or members[0] < 0 or members[-1] >= count:
        raise build(
            SpecError,
            where=where,
            given=f"processes={list(processes)}",
            rule=f"the program has processes 0 to {count - 1}",
            advice="name some of these",
        )
    me, _, _ = _jax.place()
    if me not in members:
        raise build(
            SpecError,
            where=where,
            given=f"processes={list(members)} on process {me}",
            rule="only the processes that are named may make the call",
            advice=f"name process {me} too, or do not call on it",
        )
    return members


@dataclass(frozen=True)
class Agreement:
    """What `agree` returns: the data of the `members`, in their order."""

    members: tuple[int, ...]
    data: tuple[bytes, ...]
    ticket: int = -1

    @property
    def rank(self) -> int:
        """This process's place among the members."""
        return self.members.index(_jax.place()[0])

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """This agreement's turn to move bytes: threads take them in one order on all members."""
        if self.ticket < 0:
            return contextlib.nullcontext()
        return _transport.turn(self.members, self.ticket)


def agree(
    what: str,
    *,
    data: bytes = b"",
    moves: bool = False,
    timeout: float | None = None,
    processes: Sequence[int] | None = None,
) -> Agreement:
    """Makes sure that all processes are about to do the same, and carries a little data along.

    Args:
      what: what this process is about to do, in words that are compared between processes: the
        operation with the structure, shapes and dtypes that must be equal.
      data: some bytes for all others, a few kilobytes at most.
      moves: whether bytes move between the devices of the processes next, within `turn()`.
      timeout: seconds to wait for the others; by default `config.timeout`.
      processes: those that take part; by default all.

    Returns:
      The data of all processes that take part, in their order.

    Raises:
      DivergenceError: where processes are about to do different things; it says who does what.
      StragglerError: where some did not come in time; it names them, and where the others wait.
      ClusterError: where one failed on its way; it names it and says how.
      All of them on every process that takes part, late ones included.

    Communicates: one message to and one from each process. Alone, a process needs no service.

    >>> import jax
    >>> agree("an example", data=b"x", processes=[jax.process_index()]).data
    (b'x',)
    """
    members = members_of(processes, what)
    if len(members) == 1:
        return Agreement(members, (data,))
    call = Call(what, call_site())
    wait = config.timeout if timeout is None else timeout
    shared = _channel_of(members)
    with shared.lock:
        verdict = _hold_round(shared, call, data, wait, moves)
    if verdict.kind == "agreed":
        return Agreement(members, verdict.data or (b"",) * len(members), verdict.ticket)
    kind, advice = _ERRORS[verdict.kind]
    raise build(
        kind,
        where=f"{what} on process {_jax.place()[0]}",
        given=f"called at {call.site}, by {name_processes(members)} together",
        rule=verdict.rule,
        advice=advice,
    )


@contextlib.contextmanager
def telling(what: str, *, processes: Sequence[int] | None = None) -> Generator[None]:
    """Within the block, an exception is told to the processes that wait for this one in `agree`.

    For what a collective does before it agrees: looking at its arguments, packing them.
    """
    try:
        yield
    except BaseException as error:
        members = members_of(processes, what)
        if len(members) > 1:
            summary = f"{type(error).__name__}: {str(error)[:2000]}"
            shared = _channel_of(members)
            with shared.lock, contextlib.suppress(Exception):  # its own error is what counts
                _post_failure(shared, Call(what, call_site(), summary))
        raise


def _channel_of(members: tuple[int, ...]) -> _Channel:
    name = getattr(_local, "name", None) or threading.current_thread().name
    with _channels_lock:
        found = _channels.get((name, members))
        if found is None:
            everyone = len(members) == _jax.place()[1]
            who = "all" if everyone else "-".join(map(str, members))
            folder = f"{_ROOT}{name.replace('/', '_')}/{who}/"
            found = _Channel(folder, members, members.index(_jax.place()[0]))
            _channels[name, members] = found
        return found


def _children(rank: int, count: int) -> range:
    first = rank * FAN_IN + 1
    return range(min(first, count), min(first + FAN_IN, count))


def _hold_round(channel: _Channel, call: Call, data: bytes, timeout: float, moves: bool) -> Verdict:
    post = Post({call: [channel.rank]}, {channel.rank: data} if data else {})
    store = _jax.store()
    if store is None:
        return _without_store(channel, post, timeout)
    here = _Round(store, channel, call, timeout)
    channel.round += 1
    if not here.collect(post):
        return here.await_verdict()
    if channel.rank:
        here.post_up(post)
        return here.await_verdict()
    verdict = decide(post, channel.members)
    verdict = here.settle_with_ticket(verdict) if moves else here.settle(verdict)
    # All have posted to this round, so they have left those before.
    left, channel.kept = channel.kept[:-1], channel.kept[-1:]
    for number in left:
        store.delete(f"{channel.folder}{number}/")
    return verdict


class _Round:
    """One process's part in one round, on the store."""

    def __init__(
        self, store: _jax.Store, channel: _Channel, call: Call, timeout: float = 0.0
    ) -> None:
        self._store = store
        self._channel = channel
        self._call = call
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._folder = f"{channel.folder}{channel.round}/"
        self._verdict = f"{self._folder}verdict"
        if channel.rank == 0:
            channel.kept.append(channel.round)

    def collect(self, post: Post) -> bool:
        """Takes in the posts of this node's children; `False` if time runs out or a verdict comes."""
        awaited = set(_children(self._channel.rank, len(self._channel.members)))
        mine = f"{self._folder}in/{self._channel.rank}/"
        slice_ = _FIRST_SLICE
        while awaited:
            if (remaining := self._deadline - time.monotonic()) <= 0:
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
                slice_ = _SLICE
                continue
            arrived = {first: message}
            if len(awaited) > 1:  # most of the others have come as well: one message for all
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
        deadline = self._deadline + (_GRACE if self._channel.rank else 0.0)
        while (remaining := deadline - time.monotonic()) > 0:
            message = self._store.get(self._verdict, min(remaining, _SLICE))
            if message is not None:
                return Verdict.unpacked(message)
        return self.settle(self._late())

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
        told = _told({call: sorted(ranks) for call, ranks in came.items()}, members)
        return Verdict(
            "late",
            f"{name_processes(absent)} did not come within {self._timeout:g} s"
            f"{_seen_elsewhere(self._store, set(absent))}; came: {told}",
        )


def _seen_elsewhere(store: _jax.Store, absent: set[int]) -> str:
    """Where absent processes wait on other channels, in words."""
    count = _jax.place()[1]
    found: list[str] = []
    posts = store.list(_ROOT)
    for key, message in posts.items():
        name, who, number, *_, rank = key.split("/")
        if f"{name}/{who}/{number}/verdict" in posts:
            continue
        members = range(count) if who == "all" else [int(p) for p in who.split("-")]
        for call, ranks in Post.unpacked(message).calls.items():
            if rank != "verdict" and (here := absent & {members[r] for r in ranks}):
                found.append(
                    f"{name_processes(here)} waits in {call.what} at {call.site}, channel {name!r}"
                    f" of {name_processes(members)}"
                )
    return f" ({'; '.join(sorted(set(found)))})" if found else ""


def _post_failure(channel: _Channel, call: Call) -> None:
    """Ends this round for all, without waiting for anybody."""
    store = _jax.store()
    post = Post({call: [channel.rank]})
    if store is None:
        _without_store(channel, post, config.timeout)
        return
    here = _Round(store, channel, call)
    channel.round += 1
    here.settle(decide(post, channel.members))
    if channel.rank:
        here.post_up(post)


def _without_store(channel: _Channel, post: Post, timeout: float) -> Verdict:
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
