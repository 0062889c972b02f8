"""Faults on purpose: one process strays at a chosen moment, to see what a program makes of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from . import _jax, _moments
from ._errors import SpecError, build
from ._trees import Tree

_KINDS = {
    "slow": "takes longer from then on, at each such moment",
    "hang": "runs for ever in Python",
    "stop": "is stopped, as by SIGSTOP",
    "kill": "is killed, as by SIGKILL",
    "exit": "ends with status 3",
    "error": "raises FaultError",
    "order": "makes a collective that the others do not make",
    "shape": "passes a first leaf that is one element longer",
    "value": "passes a first leaf with one bit flipped",
}
_ALTERING = ("shape", "value")


class FaultError(RuntimeError):
    """What a process raises where `fault("error", ...)` strikes."""

    __module__ = "hostmesh.testing"  # where it is public


@dataclass(frozen=True)
class Fault:
    """A fault: what happens, on which process, and when.

    Attributes:
      kind: one of the kinds of `hostmesh.testing.fault`.
      process: the process that it happens to.
      at: `"step"`, `"call"` or `"after"`; with `value`: the number of a step, the number or the name
        of a call, or seconds.
      value: see `at`.
      seconds: how long `"slow"` takes.
    """

    kind: str
    process: int
    at: str
    value: str
    seconds: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Reads `KIND:PROCESS@WHEN`.

        >>> Fault.parse("slow=0.5:2@step=30")
        Fault(kind='slow', process=2, at='step', value='30', seconds=0.5)
        """
        found = re.fullmatch(
            r"(\w+)(?:=([\d.]+))?:(\d+)@(?:(step)=(\d+)|(call)=(\S+)|(after)=([\d.]+))", text
        )
        if found is None or found[1] not in _KINDS or (found[2] and found[1] != "slow"):
            raise build(
                SpecError,
                where="a fault",
                given=repr(text),
                rule=f"it is KIND:PROCESS@WHEN, KIND one of {', '.join(_KINDS)} (or slow=S), WHEN"
                " step=N, call=N, call=NAME or after=SECONDS",
                advice="write 'stop:2@step=30', say",
            )
        at = found[4] or found[6] or found[8]
        value = found[5] or found[7] or found[9]
        return cls(found[1], int(found[3]), at, value, float(found[2] or 1.0))


@contextlib.contextmanager
def fault(kind: str, process: int, at: str) -> Generator[None]:
    """Within the block one process strays at a chosen moment: to try a program's own loop.

    To be entered in every process, or by `hostmesh run --fault KIND:PROCESS@WHEN`, without a change
    to the program. Does not communicate.

    Args:
      kind: what the process does. `"slow"` (or `"slow=S"`) takes a second (or S) longer from then on;
        `"hang"` runs for ever in Python; `"stop"` and `"kill"` are the signals; `"exit"` ends with
        status 3; `"error"` raises `FaultError`; `"order"` makes a collective that the others do
        not; `"shape"` and `"value"` pass a first leaf that is one element longer, or has one bit
        flipped, to the next collective or to `to_global`.
      process: the process that it happens to.
      at: `"step=30"`, as told to `should_stop` or `watchdog.step`, or counted by a `Feeder`;
        `"call=7"`, the seventh agreed call of the process; `"call=allgather"`, the first whose name
        begins so; `"after=2.5"`, seconds, for what a thread can do: slow and altering faults strike
        at the next moment then.

    Raises:
      SpecError: for a fault that is none of these.

    Warns at the end of the block, on that process, where the moment never came.

    >>> import hostmesh
    >>> from hostmesh.testing import fault
    >>> with fault("error", 0, at="call=barrier"):
    ...     hostmesh.barrier("here")  # raises FaultError on process 0, ClusterError elsewhere
    Traceback (most recent call last):
    ...
    hostmesh.testing.FaultError: error:0@call=barrier
    """
    chosen = Fault.parse(f"{kind}:{process}@{at}")
    before = _moments.fault
    armed = _arm(chosen)
    try:
        yield
    finally:
        _moments.fault = before
    if armed and (never := armed.never()):
        warnings.warn(never, stacklevel=3)


def install(chosen: Fault) -> None:
    """Sets a fault, in every process, for good; one that never strikes is told of at the end."""
    if armed := _arm(chosen):
        atexit.register(_say_never, armed)


def _say_never(armed: _Armed) -> None:
    if never := armed.never():
        sys.stderr.write(f"hostmesh: {never}\n")


def _arm(chosen: Fault) -> _Armed | None:
    if _jax.place()[0] != chosen.process:
        return None
    _moments.fault = armed = _Armed(chosen)
    return armed


class _Armed:
    """A fault of this process that waits for its moment."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._calls = 0
        self._last: int | None = None  # of the steps that were marked
        self._is_due = False  # the moment was reached; some faults then wait for a tree
        self._is_done = False
        if fault.at == "after":
            timer = threading.Timer(float(fault.value), self._after)
            timer.daemon = True
            timer.start()

    def step(self, number: int) -> None:
        """See `_moments`."""
        self._last = number
        self._moment(self._fault.at == "step" and number >= int(self._fault.value))

    def call(self, what: str) -> None:
        """See `_moments`."""
        self._calls += 1
        value = self._fault.value
        is_named = self._calls >= int(value) if value.isdigit() else what.startswith(value)
        self._moment(self._fault.at == "call" and is_named)

    def passed(self, name: str, tree: Tree) -> Tree:
        """See `_moments`."""
        fault = self._fault
        if fault.kind not in _ALTERING or self._is_done:
            return tree
        if fault.at == "call" and not fault.value.isdigit() and name.startswith(fault.value):
            self._is_due = True
        if not self._is_due:
            return tree
        self._is_done = True
        self._say()
        leaves, structure = jax.tree.flatten(tree)
        leaves[:1] = [_altered(leaf, fault.kind) for leaf in leaves[:1]]
        return jax.tree.unflatten(structure, leaves)

    def never(self) -> str:
        """Says that the fault did not strike, and what came instead of its moment; "" if it did."""
        if self._is_done:
            return ""
        steps = "no step" if self._last is None else f"steps up to {self._last}"
        return (
            f"the fault {_in_words(self._fault)} never struck: process {self._fault.process} marked"
            f" {steps} (watchdog.step, should_stop, Feeder) and made {self._calls} agreed calls"
        )

    def _after(self) -> None:
        if self._fault.kind in ("stop", "kill"):
            self._strike()
        self._is_due = True

    def _moment(self, is_it: bool) -> None:
        self._is_due |= is_it
        if self._is_due and self._fault.kind not in _ALTERING:
            self._strike()

    def _strike(self) -> None:
        fault = self._fault
        if fault.kind == "slow":
            if not self._is_done:
                self._say()
            self._is_done = True
            time.sleep(fault.seconds)
        elif not self._is_done:
            self._is_done = True
            self._say()
            _strike(fault)

    def _say(self) -> None:
        f = self._fault
        os.write(
            2,
            f"hostmesh: process {f.process} strays on purpose: {f.kind}: {_KINDS[f.kind]}\n".encode(),
        )


def _in_words(fault: Fault) -> str:
    return f"{fault.kind}:{fault.process}@{fault.at}={fault.value}"


def _strike(fault: Fault) -> None:
    words = _in_words(fault)
    if fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "exit":
        os._exit(3)
    elif fault.kind == "error":
        raise FaultError(words)
    elif fault.kind == "order":
        from ._collectives import barrier

        barrier(f"a fault on purpose, {words}")
    else:
        while True:
            pass


def _altered(leaf: Any, kind: str) -> Any:
    values = np.array(leaf)
    if kind == "shape":
        return np.append(values, values.ravel()[:1])
    if values.nbytes:
        values.reshape(-1).view(np.uint8)[-1] ^= 1
    return values
