"""How a process of a cluster ends: after a clean run with the others, after a failure at once.

JAX ends every process in a barrier, whatever happened before: one that raised waits for the others,
and they, in a collective, for it, until the barrier's time-out aborts all of them. Here one key in
JAX's coordination service ends the run. It is written once: empty by the last process to come to
its end, or by the first that fails, with its traceback. Each process reads it, in a thread that
waits from the start. So all learn of a failure, even in the middle of a collective, and only after
a clean run does JAX's own barrier follow, which everybody then passes.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import xxhash

from . import _jax
from ._cluster import FAILURES, member_from_environment
from ._explain import annotate

_END = "hostmesh/end"
_COUNT = "hostmesh/count"  # of the processes that came to their end
_CAME = "hostmesh/came/"  # and which
_SHOWN = "hostmesh/shown/"  # tracebacks, by digest
_FOREVER = 2**31 - 1  # milliseconds
_READ = 3.0  # seconds that a failed process stays for the others to read why: a launcher has 5
_SETTLE = 5.0  # seconds that process 0 stays then, which has the service
_NOTICE = 10.0  # seconds of silent waiting at the end
_TRACEBACK_CHARACTERS = 8000
_SECONDS = re.compile(r"\b\d+\.\d s\b")
_LINES, _LINE_CHARACTERS = 12, 300  # of an error, for the others to say


# What ends when all processes have come to their end, and before JAX ends its service.
_last: list[Callable[[], None]] = []
_arranged = False


def at_end(end: Callable[[], None]) -> None:
    """Has `end` called at this process's end, when no other process needs it any more.

    For threads that wait in JAX's service: they must not meet the end of the interpreter.
    """
    if _arranged:
        _last.append(end)
    else:
        atexit.register(end)


def is_arranged() -> bool:
    """Whether what `at_end` calls comes after all processes' end, and JAX waits for none of them."""
    return _arranged


def not_at_end(end: Callable[[], None]) -> None:
    """Takes `at_end` back."""
    atexit.unregister(end)
    with suppress(ValueError):
        _last.remove(end)


def arrange(shutdown_timeout: float) -> None:
    """Arranges for this process's end; to be called once, when it has joined its cluster.

    Without private names there is no key, and the end is JAX's own.
    """
    global _arranged
    client = _jax.coordination_client()
    if client is None:
        return
    _arranged = True
    process, processes, _ = _jax.place()
    end = _End(client, process, processes, shutdown_timeout)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        annotate(error)
        end.fail(kind, error, trace)
        if not end.is_in_sight():
            previous(kind, error, trace)

    sys.excepthook = hook
    # Runs before JAX's own, which was registered when JAX was imported.
    atexit.register(end.leave)


class _End:
    def __init__(self, client: Any, process: int, processes: int, timeout: float) -> None:
        self._client = client
        self._process = process
        self._processes = processes
        self._timeout = timeout
        self._pid = os.getpid()
        self._failed = False
        self._clean = False  # all processes came to their end
        self._first = False  # this one was the first to fail
        self._traceback = ""
        self._reader = threading.Thread(target=self._read, name="hostmesh-end", daemon=True)
        self._reader.start()

    def fail(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Tells all processes that this one failed, unless another did before."""
        self._failed = True
        if FAILURES in os.environ:
            with suppress(OSError), open(os.environ[FAILURES], "a") as reports:
                reports.write(f"{self._process}\n")
        lines = "".join(traceback.format_exception_only(kind, error)).strip().splitlines()
        said = "\n".join(line[:_LINE_CHARACTERS] for line in lines[:_LINES])
        text = "".join(traceback.format_exception(kind, error, trace))
        self._traceback = text[-_TRACEBACK_CHARACTERS:]
        self._write(said, self._traceback)

    def is_in_sight(self) -> bool:
        """Whether another process has shown this one's traceback, but for its number and for how
        long it waited, in this very terminal. Says so then."""
        if FAILURES not in os.environ:  # no `hostmesh run`, which puts all into one
            return False
        known = self._traceback.replace(f" on process {self._process}\n", "\n")
        known = _SECONDS.sub("", known)
        try:
            self._client.key_value_set(f"{_SHOWN}{xxhash.xxh3_128_hexdigest(known.encode())}", "")
        except Exception as error:  # or the coordinator is gone
            if "ALREADY_EXISTS" not in str(error):
                return False
            _say(
                f"process {self._process} of {self._processes} failed in the same way, at the same"
                " lines"
            )
            return True
        return False

    def leave(self) -> None:
        """Waits for the others after a clean run; after a failure sees to it that JAX does not."""
        if self._pid != os.getpid():
            return  # a forked child
        try:
            self._leave()
        finally:
            for end in reversed(_last):
                with suppress(Exception):
                    end()

    def _leave(self) -> None:
        if _jax.coordination_client() is not self._client:  # the program has shut JAX down itself
            self._reader.join(_SETTLE)  # which ended the reader's wait: it must not meet the exit
            return
        came = self._come()
        if not self._failed and self._reader.is_alive():
            self._wait(last=came == self._processes)
        self._reader.join(_READ + 1.0)
        if self._clean:
            return
        if self._process == 0 and not self._first:
            # The coordinator goes with this process, and JAX aborts who still needs it. (Where this
            # process is the cause, the others may sit in a collective until it is gone.)
            patience = time.monotonic() + _SETTLE
            while came and came < self._processes and time.monotonic() < patience:
                time.sleep(0.02)
                came = int(self._client.key_value_try_get(_COUNT))
        _jax.abandon_runtime()

    def _come(self) -> int:
        with suppress(Exception):  # the coordinator may be gone
            self._client.key_value_set(f"{_CAME}{self._process}", "")
            return int(self._client.key_value_increment(_COUNT, 1))
        return 0

    def _wait(self, *, last: bool) -> None:
        if last:
            self._write("", "")
        try:
            self._reader.join(min(_NOTICE, self._timeout))
            if self._reader.is_alive() and self._timeout > _NOTICE:
                _say(
                    f"process {self._process} of {self._processes} is done and waits for "
                    f"{self._missing()} to end, {self._timeout:g} s at most"
                )
                self._reader.join(self._timeout - _NOTICE)
        except KeyboardInterrupt:
            self._write("KeyboardInterrupt while it waited for the others to end", "")
        if self._reader.is_alive():
            waited = (
                f"ended, and did not wait longer than {self._timeout:g} s for {self._missing()}"
            )
            _say(f"process {self._process} of {self._processes} {waited}")
            self._write(waited, "")

    def _missing(self) -> str:
        with suppress(Exception):
            keys = [key for key, _ in self._client.key_value_dir_get(_CAME)]
            came = {int(key.rpartition("/")[2]) for key in keys}
            missing = sorted(set(range(self._processes)) - came)
            text = ", ".join(map(str, missing[:20])) + ", ..." * (len(missing) > 20)
            return f"process{'es' * (len(missing) > 1)} {text}"
        return "others"

    def _write(self, line: str, trace: str) -> None:
        value = json.dumps({"process": self._process, "line": line, "traceback": trace})
        with suppress(Exception):  # the key is there already, or the coordinator is not
            self._client.key_value_set(_END, value)

    def _read(self) -> None:
        while True:
            try:
                value = json.loads(self._client.blocking_key_value_get(_END, _FOREVER))
                break
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    return  # JAX was shut down, or the coordinator is gone, which JAX tells itself
        if not value["line"]:
            self._clean = True
            return
        self._first = value["process"] == self._process
        if not self._first:
            line = value["line"]
            if value["traceback"] and FAILURES in os.environ:  # it has all of it, in this terminal
                line = line.partition("\n")[0]
            _say(
                f"process {value['process']} of {self._processes} was the first to report a "
                f"failure: {line}"
            )
            if value["traceback"] and member_from_environment() is None:
                sys.stderr.write(value["traceback"])  # else it is in the same terminal already
        with suppress(Exception):  # nobody leaves before all have read it, but for a bounded time
            self._client.wait_at_barrier("hostmesh/read", int(_READ * 1000))


def _say(text: str) -> None:
    sys.stderr.write(f"hostmesh: {text}\n")
    sys.stderr.flush()
