"""What a worker process of a warm cluster does: join the cluster, then one task after another.

Runs in a process of its own, started by `_pool`. Standard output and standard error are a file
that the starter reads; tasks and answers travel over one connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from .._cluster import SANITIZE, is_asked_for, member_from_environment
from ._pickle import dumps
from ._report import MACHINERY

if TYPE_CHECKING:
    from collections.abc import Callable

STACKS = signal.SIGUSR1  # asks a worker to write the stacks of its threads
JOIN_TIMEOUT = 60
_PR_SET_PDEATHSIG = 1


class Answer(NamedTuple):
    """What a task gives back; the fields are those of `_report.Done`."""

    failed: bool
    clean: bool
    payload: bytes


DONE = Answer(failed=False, clean=True, payload=pickle.dumps(None))


def main(connection_number: int, stacks_number: int, parent: int) -> None:
    """Joins the cluster that the environment names, then serves the connection until it ends."""
    _die_with(parent)
    for number in (connection_number, stacks_number):
        os.set_inheritable(number, False)  # a child of a test must not keep the connection open
    faulthandler.register(STACKS, file=stacks_number, all_threads=True)
    connection: Connection[Any, Any] = Connection(connection_number)
    member = member_from_environment()
    assert member is not None
    import jax

    jax.distributed.initialize(
        member.coordinator,
        member.processes,
        member.process,
        initialization_timeout=JOIN_TIMEOUT,
        coordinator_bind_address=member.coordinator,  # that alone; JAX's own is any address
    )
    # All processes meet here once, so that no task pays for it.
    jax.devices()  # pyright: ignore[reportUnknownMemberType]
    reply(connection, DONE)
    serve(connection, {"call": call, "session": lambda *data: _session(connection, *data)})


def serve(
    connection: Connection[Any, Any], handlers: dict[str, Callable[..., Answer | None]]
) -> None:
    """Answers the tasks that come over `connection` until it ends or `None` comes."""
    while True:
        try:
            message = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        if message is None:
            return
        kind, *data = message
        answer = handlers[kind](*data)
        if answer is not None:
            reply(connection, answer)


def reply(connection: Connection[Any, Any], answer: Answer) -> None:
    connection.send((answer.failed, answer.clean))
    connection.send_bytes(answer.payload)  # apart, so that large values are not copied again


def call(payload: bytes) -> Answer:
    """Runs a pickled `(function, args)`; the answer is its pickled result, or the traceback."""
    from ._state import State

    before = State.now()
    try:
        function, args = pickle.loads(payload)
        with sanitized():
            failed, result = False, dumps(function(*args))
    except BaseException as error:
        failed, result = True, pickle.dumps(error_text(error))
    return Answer(failed, before.restore(), result)


def sanitized() -> contextlib.AbstractContextManager[None]:
    """For a task, where the environment asks for it. Each begins anew: one may end in mid-step."""
    if not is_asked_for(SANITIZE):
        return contextlib.nullcontext()
    from .._sanitize import watched

    return watched()


def error_text(error: BaseException) -> str:
    """The traceback, from where the task's own code begins."""
    from .._explain import annotate

    annotate(error)
    frames = error.__traceback__
    while frames is not None and MACHINERY.search(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _session(connection: Connection[Any, Any], *data: Any) -> Answer | None:
    from ._session import host  # pytest, and only where tests run

    return host(connection, *data)


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its starter ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
