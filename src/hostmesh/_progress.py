"""A line on standard error that says how far a long collective is."""

from __future__ import annotations

import sys
import time

import jax

from ._config import config
from ._verdict import name_processes

# Nothing is shown before this many seconds, and nothing more often.
_INTERVAL = 1.0
_MIB = 2**20


class Line:
    """The progress of `nbytes` from each of some processes, shown by the first of them.

    `shows` says whether it is, in place of `config.progress`; `doing` what they do, in words.
    """

    def __init__(
        self, nbytes: int, members: tuple[int, ...], *, shows: bool | None = None, doing: str = ""
    ) -> None:
        self._nbytes = nbytes
        self._what = f"{name_processes(members)} {doing}" if doing else None
        self._members = members
        # Less waits for processes, not for bytes.
        wanted = (config.progress and nbytes >= _MIB) if shows is None else shows
        self._shows = wanted and members[0] == jax.process_index()
        self._next = time.monotonic() + _INTERVAL
        self._shown = False

    def show(self, done: int) -> None:
        """Says that so many bytes are done, where it is time to."""
        if self._shows and time.monotonic() >= self._next:
            self._write(f"{done // _MIB} of {self._nbytes // _MIB} MiB")
            self._next = time.monotonic() + _INTERVAL

    def end(self) -> None:
        """Says that all is done, where anything was said."""
        if self._shown:
            self._write(f"{self._nbytes // _MIB} MiB, done", last=True)

    def _write(self, words: str, last: bool = False) -> None:
        write_line(f"{self._what or f'between {name_processes(self._members)}'}: {words}", last)
        self._shown = True


def write_line(words: str, last: bool) -> None:
    """Writes a line on standard error; on a terminal it takes the place of the one before."""
    before, after = ("\r\x1b[K", "\n" if last else "") if sys.stderr.isatty() else ("", "\n")
    sys.stderr.write(f"{before}hostmesh: {words}{after}")
    sys.stderr.flush()
