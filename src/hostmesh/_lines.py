"""The lines of several processes on one output: each behind its process's number, the last kept."""

from __future__ import annotations

import collections
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

_LAST_LINES = 20
# Lines of JAX's C++ side that every run has and that say nothing about the program. Several threads
# write the first at a time, so that its parts may come in any order.
_NOISE = re.compile(
    rb"(?=.*(\[Gloo\]|connected to|peer ranks))"
    rb"(\[Gloo\] Rank |\d+| is connected to | peer ranks\. "
    rb"|Expected number of connected peer ranks is : )+\s*$"
    rb"|W.*preemption_notifier\.cc.*SIGTERM caught"
)
# Such a line has three numbers, each behind one of these. Where another thread's part comes between,
# a number may be left over, for a line of its own; and the end of the line, too. As numbers of two
# threads may touch, digits are counted: too many rather than hide what the program printed.
_BEFORE_NUMBER = re.compile(rb"\[Gloo\] Rank | is connected to | peer ranks is : ")
_DIGIT = re.compile(rb"\d")
_ALONE = re.compile(rb"\d+$")
# Frames of a C++ stack: printed, but not among the last lines, which they would fill.
_FRAME = re.compile(r"\s+@ +0x")
# What JAX's C++ side says as it ends a process. Where the program has told its own error before, that
# is why, and this what became of it: printed as well, but not among the last lines.
_ABORT = re.compile(r"[EF]\d{4} .*(coordination_service|client\.h)")
_TRACEBACK = "Traceback (most recent call last):"


class Printer:
    """Writes lines of all processes to one output, whole, and remembers the last of each."""

    def __init__(self, output: BinaryIO, processes: int, verbose: bool) -> None:
        self._output = output
        self._verbose = verbose
        self._lock = threading.Lock()
        self._broken = False
        self._held: list[list[bytes]] | None = None
        self._owed = [0] * processes  # numbers that each process's noise still lacks
        self._after_noise = [False] * processes
        self._aborts = [False] * processes
        self.last = [collections.deque[str](maxlen=_LAST_LINES) for _ in range(processes)]
        self.prefixes = list(prefixes(processes, output.isatty() and "NO_COLOR" not in os.environ))

    def line(self, process: int, line: bytes) -> None:
        if not self._verbose:
            at = _noise_within(line)
            if self._is_noise(process, line[at:]):
                if not at:
                    return
                line = line[:at]
        text = line.decode(errors="replace").rstrip()
        if _ABORT.match(text) and any(_TRACEBACK in told for told in self.last[process]):
            self._aborts[process] = True
        if not (self._aborts[process] or _FRAME.match(text)):
            self.last[process].append(text)
        line = self.prefixes[process] + line.removesuffix(b"\n") + b"\n"
        with self._lock:
            if self._held is not None:
                self._held[process].append(line)
            else:
                self._write([line])

    def _is_noise(self, process: int, line: bytes) -> bool:
        owed, after = self._owed[process], self._after_noise[process]
        found = bool(_NOISE.match(line) or (owed and _ALONE.match(line)))
        self._after_noise[process] = found
        if found:
            owed += len(_BEFORE_NUMBER.findall(line)) - len(_DIGIT.findall(line))
            self._owed[process] = max(0, owed)
        return found or (after and not line.strip())

    def hold(self) -> None:
        """From here on the lines are kept, to be written process by process on `release`."""
        with self._lock:
            self._held = [[] for _ in self.last]

    def has_held(self, process: int, text: bytes) -> bool:
        """Whether a process has written a text since `hold`."""
        with self._lock:
            return any(text in line for line in (self._held[process] if self._held else ()))

    def release(self) -> None:
        with self._lock:
            held, self._held = self._held or [], None
            with suppress(OSError):
                self._write(line for lines in held for line in lines)

    def _write(self, lines: Iterable[bytes]) -> None:
        if self._broken:
            return
        self._broken = True  # said once, by the error itself
        self._output.write(b"".join(lines))
        self._output.flush()
        self._broken = False


def _noise_within(line: bytes) -> int:
    """Where it begins: `print` may have written a line and not yet its newline. Or 0."""
    at = max(0, line.find(b"[Gloo]"))
    return at if _NOISE.match(line, at) else 0


def prefixes(processes: int, colour: bool) -> Iterator[bytes]:
    width = len(str(processes - 1))
    for process in range(processes):
        prefix = f"[{process:>{width}}]"
        yield (f"\x1b[{31 + process % 6}m{prefix}\x1b[0m " if colour else f"{prefix} ").encode()
