"""Agreement between processes before they do anything together: `agree`.

Each process posts what it is about to do; one of them compares, and publishes a verdict that all
read. A stray, late or failed process is so an error with names on every process, not a hang.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from types import FrameType

from . import _jax, _moments, _rounds, _transport
from ._config import config
from ._errors import (
    ClusterError,
    DivergenceError,
    HostmeshError,
    SpecError,
    StragglerError,
    build,
)
from ._verdict import Call, name_processes, site_of
from ._watch import _marks

_local = threading.local()

_IN_ORDER = "make every process make the same calls in the same order, also those that log or save"
# Of calls that diverged, in place of the order, where something else is apart: see `Verdict`.
_APART = {
    "lines": f"{_IN_ORDER}; where one call is meant to stand on several lines, set"
    " hostmesh.config.call_sites=False",
    "values": "give equal structures, shapes and dtypes here on every process, and call as often on"
    " each; sizes may differ in allgather(tiled=True), exchange and allgather_object",
}
_ERRORS: dict[str, tuple[type[HostmeshError], str]] = {
    "diverged": (DivergenceError, _IN_ORDER),
    "late": (
        StragglerError,
        "see what the missing processes do: HOSTMESH_WATCHDOG=60 in the environment reports it;"
        " raise timeout= if they are only slow",
    ),
    "failed": (ClusterError, "mend the failure that is named; here it is only passed on"),
}


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
    while frame.f_back is not None and (_is_ours(frame) or _is_jax(frame)):
        frame = frame.f_back
    return site_of(frame.f_code.co_filename, frame.f_lineno)


def is_called_by_us() -> bool:
    """Whether hostmesh itself called the function of JAX that calls the caller."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    for is_passed in (_is_ours, _is_jax):
        while frame.f_back is not None and is_passed(frame):
            frame = frame.f_back
    return _is_ours(frame)


def _is_jax(frame: FrameType) -> bool:
    return _jax.is_jax(frame.f_code.co_filename)


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
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


def rank_of(process: int, processes: Sequence[int] | None, where: str) -> int:
    """The place of a process among those that take part."""
    members = members_of(processes, where)
    if process in members:
        return members.index(process)
    raise build(
        SpecError,
        where=f"{where} on process {_jax.place()[0]}",
        given=f"process {process}",
        rule=f"{name_processes(members)} take part",
        advice="name one of them",
    )


@dataclass(frozen=True)
class Agreement:
    """What `agree` returns: the data of the `members`, in their order."""

    members: tuple[int, ...]
    data: tuple[bytes, ...]
    ticket: int = -1
    what: str = ""
    site: str = ""

    @property
    def rank(self) -> int:
        """This process's place among the members."""
        return self.members.index(_jax.place()[0])

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """This agreement's turn to move bytes: threads take them in one order on all members."""
        if self.ticket < 0:
            return contextlib.nullcontext()
        return self._turn()

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        with (
            _marks.call("move", f"the bytes of {self.what}", self.site),
            _transport.turn(self.members, self.ticket),
        ):
            yield


def agree(
    what: str,
    *,
    data: bytes | None = None,
    moves: bool = False,
    timeout: float | None = None,
    processes: Sequence[int] | None = None,
) -> Agreement:
    """Makes sure that all processes are about to do the same, and carries a little data along.

    Args:
      what: what this process is about to do, in words that are compared between processes: the
        operation with the structure, shapes and dtypes that must be equal.
      data: some bytes for all others, a few kilobytes at most; `None`, on all processes, where no
        process has any for this call.
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

    Communicates: one message to and one from each process, or one to each where there is no data.
    Alone, a process needs no service.

    >>> import jax
    >>> agree("an example", data=b"x", processes=[jax.process_index()]).data
    (b'x',)
    """
    members = members_of(processes, what)
    if _moments.fault is not None:
        with telling(what, processes=processes):
            _moments.fault.call(what)
    if len(members) == 1:
        return Agreement(members, (data or b"",))
    if moves:
        with telling(what, processes=processes):
            _transport.require_thread(what, members)
    call = Call(what + _moments.in_words(), call_site())
    wait = config.timeout if timeout is None else timeout
    shared = _own_channel(members)
    with _marks.call("agree", what, call.site), shared.lock:
        verdict = _rounds.hold_round(shared, call, data, _rounds.patience_of(wait), moves)
    if verdict.kind == "agreed":
        data_of_all = verdict.data or (b"",) * len(members)
        return Agreement(members, data_of_all, verdict.ticket, what, call.site)
    kind, advice = _ERRORS[verdict.kind]
    error = build(
        kind,
        where=f"{what} on process {_jax.place()[0]}",
        given=f"called here at {call.site}, where {name_processes(members)} are to do the same",
        rule=verdict.rule,
        advice=_APART.get(verdict.apart, advice),
    )
    _mark_as_told(error, shared)
    raise error


@contextlib.contextmanager
def telling(what: str, *, processes: Sequence[int] | None = None) -> Generator[None]:
    """Within the block, an exception is told to the processes that wait for this one in `agree`.

    For what a collective does before it agrees: looking at its arguments, packing them.
    """
    try:
        yield
    except BaseException as error:
        tell(error, what, members_of(processes, what), str(error))
        raise


def tell(error: BaseException, what: str, members: tuple[int, ...], words: str) -> None:
    """Tells the processes that wait for this one of an error, in words that follow its name."""
    if len(members) > 1:
        shared = _own_channel(members)
        with shared.lock, contextlib.suppress(Exception):  # its own error is what counts
            _rounds.post_failure(
                shared, Call(what, call_site(), f"{type(error).__name__}: {_abridged(words)}")
            )
        _mark_as_told(error, shared)


def _abridged(words: str) -> str:
    """Without the middle of what is long: an error begins with what it is, a traceback ends so."""
    return words if len(words) <= 4000 else f"{words[:1500]}\n...\n{words[-2500:]}"


# The folder of a channel, and the number of a round of it.
Position = tuple[str, int]


def position(members: tuple[int, ...]) -> Position:
    """The next round of this thread's channel."""
    shared = _own_channel(members)
    return shared.folder, shared.round


def is_told_since(error: BaseException, start: Position) -> bool:
    """Whether a round from `start` on told all of an error, or of one that it came from."""
    seen: list[BaseException] = []
    chain: BaseException | None = error
    while chain is not None and chain not in seen:
        folder, number = getattr(chain, "_hostmesh_told", ("", -1))
        if folder == start[0] and number >= start[1]:
            return True
        seen.append(chain)
        chain = chain.__cause__ or chain.__context__
    return False


def _mark_as_told(error: BaseException, channel: _rounds.Channel) -> None:
    with contextlib.suppress(AttributeError):
        error._hostmesh_told = (channel.folder, channel.round - 1)  # pyright: ignore


def _own_channel(members: tuple[int, ...]) -> _rounds.Channel:
    return _rounds.channel_of(channel_name(), members)


def channel_name() -> str:
    """The name of this thread's channel."""
    return getattr(_local, "name", None) or threading.current_thread().name
