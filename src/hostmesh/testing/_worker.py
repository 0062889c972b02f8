"""What a worker process of a warm cluster does: join the cluster, then one task after another.

Runs in a process of its own, started by `_pool`. Standard output and standard error are files that
the starter reads; tasks and answers travel over one connection.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from .._cluster import member_from_environment

STACKS = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1

# What a task gives back: whether it failed, and the pickled answer.
Answer = tuple[bool, bytes]


def main(connection_number: int, stacks_number: int, parent: int) -> None:
    """Joins the cluster that the environment names and serves `connection_number` until it ends."""
    _die_with(parent)
    for number in (connection_number, stacks_number):
        os.set_inheritable(number, False)  # a child of a test must not keep the connection open
    faulthandler.register(STACKS, file=stacks_number, all_threads=True)
    connection: Connection[Any, Any] = Connection(connection_number)
    member = member_from_environment()
    assert member is not None
    import jax

    jax.distributed.initialize(
        member.coordinator, member.processes, member.process, initialization_timeout=60
    )
    jax.devices()  # all processes meet here once, so that no test pays for it
    reply(connection, (False, pickle.dumps(None)))
    serve(connection, _handle)


def serve(
    connection: Connection[Any, Any],
    handle: Callable[[Connection[Any, Any], tuple[Any, ...]], Answer | None],
) -> None:
    """Answers the tasks that come over `connection` until it ends or `None` comes."""
    while True:
        try:
            message = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        if message is None:
            return
        answer = handle(connection, message)
        if answer is not None:
            reply(connection, answer)


def reply(connection: Connection[Any, Any], answer: Answer) -> None:
    """Sends an answer: first whether it is a failure, then what it is."""
    failed, payload = answer
    connection.send(failed)
    connection.send_bytes(payload)


def call(payload: bytes) -> Answer:
    """Runs a pickled `(function, args)`; the answer is its pickled result, or the traceback."""
    try:
        import cloudpickle

        function, args = pickle.loads(payload)
        return False, cloudpickle.dumps(function(*args))
    except BaseException as error:
        here = error.__traceback__
        text = "".join(traceback.format_exception(type(error), error, here and here.tb_next))
        return True, pickle.dumps(text)


def _handle(connection: Connection[Any, Any], message: tuple[Any, ...]) -> Answer | None:
    kind, *data = message
    if kind == "call":
        return call(*data)
    from ._session import host  # pytest only where a test asks for it

    return host(connection, *data)


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its starter ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
