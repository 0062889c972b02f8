"""Bytes between processes by XLA collectives: over one device a process, in parts of a few sizes.

One device a process, so that nothing is sent twice; 32-bit words, which no collective changes; part
sizes that are powers of two, so that the number of compiled programs is bounded whatever is sent.
Callers agree first (`_coordination`), and move in the order of their agreements (`turn`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.core import ShapedArray
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from . import _jax, _progress, _staging
from ._config import config
from ._errors import SpecError, build

Members = tuple[int, ...]
Bytes = npt.NDArray[np.uint8]

_WORD = 4
_SMALLEST = 1024
# Where not all parts that arrive are of use, or XLA holds more of them, they are smaller by this.
_SMALLER = 4
# Parts under way at a time: one is read while the next one travels.
_DEPTH = 2


def parts(nbytes: int, largest: int) -> Iterator[tuple[int, int]]:
    """Cuts a length in parts: how many bytes of each are data, and how many it is padded to.

    Sizes are 4, 5, 6 or 7 times a power of two: few programs, and at most a fourth is padding. The
    last part is up to half as long again, rather than one more that is short.

    >>> list(parts(9_000_000, largest=1 << 22)), list(parts(5_000_000, largest=1 << 22))
    ([(4194304, 4194304), (4805696, 5242880)], [(5000000, 5242880)])
    """
    while nbytes > 0:
        length = nbytes if nbytes <= largest * 3 // 2 else largest
        step = max(_SMALLEST, 1 << (length - 1).bit_length()) // 8
        yield length, max(_SMALLEST, _staging.round_up(length, step))
        nbytes -= length


# Fills a view with the bytes to send that begin at a place.
Fill = Callable[[Bytes, int], None]
# The same for one of several rows, each for another rank.
FillFor = Callable[[int, Bytes, int], None]
# Called with a view of bytes that came, one row from each rank, and where they lie in what it sends.
Take = Callable[[Bytes, int], None]


def ignore(rows: Bytes, start: int) -> None:
    """The `Take` of a process that only sends."""


def by_rank(take: Callable[[int, Bytes, int], None]) -> Take:
    """A `Take` of one row after another: called with a rank, its bytes and where they lie."""

    def take_rows(rows: Bytes, start: int) -> None:
        for rank, row in enumerate(rows):
            take(rank, row, start)

    return take_rows


def allgather(nbytes: int, members: Members, fill: Fill, take: Take) -> None:
    """Hands the bytes of all members, `nbytes` of each, to `take` on all of them, part by part."""
    # A part arrives from all at once: what is under way does not grow with the processes.
    program = _program(process_mesh(members), "gather")
    largest = config.part_bytes // len(members)
    _run(program, nbytes, members, 1, largest, lambda _, row, start: fill(row, start), take)


def broadcast(nbytes: int, members: Members, root: int, fill: Fill | None, take: Take) -> None:
    """Hands the bytes of rank `root`, which alone gives `fill`, to `take` on all members."""
    program = _program(process_mesh(members), "broadcast", root)
    send = None if fill is None else (lambda _, row, start: fill(row, start))
    _run(program, nbytes, members, 1, config.part_bytes // _SMALLER, send, take)


def exchange(nbytes: int, members: Members, fill: FillFor, take: Take) -> None:
    """Hands every member's bytes for each other one, `nbytes` each, to `take` on that one."""
    program = _program(process_mesh(members), "exchange")
    largest = config.part_bytes // _SMALLER // len(members)
    _run(program, nbytes, members, len(members), largest, fill, take)


def _run(
    program: Callable[[jax.Array], jax.Array],
    nbytes: int,
    members: Members,
    rows: int,
    largest: int,
    fill: FillFor | None,
    take: Take,
) -> None:
    """Sends parts of some rows through a compiled program, and hands on the rows that come out."""
    mesh = process_mesh(members)
    (device,) = mesh.local_devices
    stacked = NamedSharding(mesh, PartitionSpec("process"))
    under_way: deque[tuple[jax.Array, int, int]] = deque()

    def receive(keep: int) -> None:
        while len(under_way) > keep:
            result, start, length = under_way.popleft()
            words = _jax.fetch(_jax.parts_by_device(result)[device])
            take(words.reshape(-1, words.shape[-1]).view(np.uint8)[:, :length], start)

    start = 0
    progress = _progress.Line(nbytes, members)
    for length, size in parts(nbytes, _floor_power(largest)):
        part = _staging.buffer((rows, size), np.dtype(np.uint8))
        if fill is not None:  # without it the buffer's old contents go nowhere: see `_pass_on`
            part[:, length:] = 0
            for rank in range(rows):
                fill(rank, part[rank, :length], start)
        words = part.view(np.uint32)
        shape = (len(members), size // _WORD) if rows == 1 else (len(members), *words.shape)
        aval = ShapedArray(shape, np.uint32)
        with _jax.explicit_transfers():
            whole = _jax.put(aval, stacked, [words.reshape(1, *shape[1:])], [device], True)
        with jax.set_mesh(mesh):  # whatever mesh the user has set
            under_way.append((program(whole), start, length))
        start += length
        receive(keep=_DEPTH - 1)
        progress.show(start)
    receive(keep=0)
    progress.end()


def messages(message: bytes, members: Members) -> list[bytes]:
    """Every member's message, of whatever length each."""
    lengths = np.zeros(len(members), np.int64)

    def note(rank: int, piece: Bytes, start: int) -> None:
        del start
        lengths[rank] = piece.view(np.int64)[0]

    def write_length(out: Bytes, start: int) -> None:
        del start
        out.view(np.int64)[0] = len(message)

    def write(out: Bytes, start: int) -> None:
        piece = np.frombuffer(message, np.uint8)[start : start + len(out)]
        out[: len(piece)] = piece

    allgather(8, members, write_length, by_rank(note))
    longest = int(lengths.max())
    rows = np.empty((len(members), longest), np.uint8)

    def keep(pieces: Bytes, start: int) -> None:
        rows[:, start : start + pieces.shape[-1]] = pieces

    allgather(longest, members, write, keep)
    return [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)]


def gather_messages(message: bytes, members: Members, timeout: float) -> list[bytes] | None:
    """`messages`, or `None` when time is up: for agreement on public API alone.

    What was begun goes on in its thread when time is up: the members are then out of step, and stay
    so.
    """
    found: list[bytes] = []
    problems: list[Exception] = []

    def work() -> None:
        try:
            found.extend(messages(message, members))
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=work, name="hostmesh-agree", daemon=True)
    thread.start()
    thread.join(timeout)
    for problem in problems:
        if "thread guard" in str(problem):
            raise _guarded("an agreement", str(problem)) from problem
        raise problem
    return found or None


def require_thread(what: str, members: Members) -> None:
    """Raises where `jax.thread_guard` keeps this thread from moving bytes between processes.

    Without JAX's private names it cannot tell; an agreement then fails in its own thread.
    """
    if not _jax.PUBLIC_API and (
        refusal := _jax.thread_guard_refusal(_probe(process_mesh(members)))
    ):
        raise _guarded(what, refusal)


def _guarded(what: str, refusal: str) -> SpecError:
    return build(
        SpecError,
        where=f"{what} on process {jax.process_index()}",
        given=f"a call in thread {threading.current_thread().name!r} under jax.thread_guard",
        rule=f"only the thread that holds the guard may move bytes between processes: {refusal}",
        advice="make the call in the thread that holds the guard, or end the guard before"
        + (" (on public API hostmesh agrees in a thread of its own)" if _jax.PUBLIC_API else ""),
    )


@functools.lru_cache(maxsize=64)
def _probe(mesh: Mesh) -> Any:
    """A program of its own over a mesh, which is never run."""
    stacked = NamedSharding(mesh, PartitionSpec("process"))
    words = jax.ShapeDtypeStruct((mesh.size,), np.uint32, sharding=stacked)
    with jax.set_mesh(mesh):  # whatever mesh the user has set
        return jax.jit(lambda x: ~x, out_shardings=stacked).lower(words).compile()


class _Turns:
    """Whose turn it is among the threads of this process that move bytes between some members."""

    def __init__(self) -> None:
        self.next = 0
        self.changed = threading.Condition()


_turns: defaultdict[Members, _Turns] = defaultdict(_Turns)


@contextlib.contextmanager
def turn(members: Members, ticket: int) -> Generator[None]:
    """Holds the turn of a ticket that an agreement gave: the same order of threads everywhere."""
    turns = _turns[members]
    with turns.changed:
        turns.changed.wait_for(lambda: turns.next == ticket)
    try:
        yield
    finally:
        with turns.changed:
            turns.next += 1
            turns.changed.notify_all()


@functools.lru_cache(maxsize=64)
def process_mesh(members: Members) -> Mesh:
    """A mesh of one device of each process: its first."""
    first: dict[int, Any] = {}
    for device in sorted(jax.devices(), key=lambda device: device.id):
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[process] for process in members]), ("process",))


@functools.lru_cache(maxsize=256)
def _program(mesh: Mesh, operation: str, root: int = 0) -> Callable[[jax.Array], jax.Array]:
    if operation == "exchange":
        across = NamedSharding(mesh, PartitionSpec(None, "process"))
        return jax.jit(lambda x: x, out_shardings=across)
    if operation == "broadcast":
        own = PartitionSpec("process")
        pass_on = functools.partial(_pass_on, count=mesh.size, root=root)
        return jax.jit(jax.shard_map(pass_on, mesh=mesh, in_specs=own, out_specs=own))
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _pass_on(x: jax.Array, count: int, root: int) -> jax.Array:
    """The root's `x` on all, by a binomial tree: at each step those that have it tell as many more.

    Half the bytes of a sum with zeros. E. Chan et al., "Collective communication: theory, practice,
    and experience", Concurrency and Computation 19 (2007): the minimum-spanning-tree broadcast.
    """
    behind = (jax.lax.axis_index("process") - root) % count
    have = 1
    while have < count:
        pairs = [(k, k + have) for k in range(min(have, count - have))]
        told = jax.lax.ppermute(
            x, "process", [((a + root) % count, (b + root) % count) for a, b in pairs]
        )
        x = jnp.where((behind >= have) & (behind < 2 * have), told, x)
        have *= 2
    return x


def _floor_power(number: int) -> int:
    return 1 << (max(number, _SMALLEST).bit_length() - 1)
