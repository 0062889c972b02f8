"""A process's folder of what a watchdog writes: stacks, a timeline, what `faulthandler` leaves."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from .. import _jax
from . import _stacks
from ._record import Event

FOLDER = "HOSTMESH_WATCHDOG_FOLDER"
STACKS, TIMELINE, HELD = "stacks.txt", "timeline.json", "held.txt"
_RUN = "hostmesh/run"  # the name of this run, by which files of several runs are told apart
_FIRST, _SHARED_FOR = "first-", 60.0  # seconds, as in `_witness`


class Files:
    """The files of one process. They stay where there was something to write; else nothing does."""

    def __init__(self, process: int, processes: int) -> None:
        base = os.environ.get(FOLDER) or os.path.join(
            tempfile.gettempdir(),
            f"hostmesh-watchdog-{os.getuid() if hasattr(os, 'getuid') else 0}",
        )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{stamp}-process{process}-{socket.gethostname()}-{os.getpid()}"
        self.folder = Path(base, name)
        self._process, self._processes = process, processes
        self._run = _run_name()
        self._held: TextIO | None = None
        self._empty = 0
        self._wrote = False
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._tidy()

    def path(self, name: str) -> str:
        """The path of a file in this process's folder."""
        return str(self.folder / name)

    def shared(self, name: str) -> str:
        """The path of a file that the processes of a run on this host share."""
        run = (_jax.place()[2] or str(os.getpid())).replace("/", "_").replace(":", "-")
        return str(self.folder.parent / f"{_FIRST}{run}-{name}")

    def _tidy(self) -> None:
        """Removes what the witnesses of earlier runs shared: none of them needs it any more."""
        for left in self.folder.parent.glob(f"{_FIRST}*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _SHARED_FOR:
                    left.unlink()

    def arm(self, thread: int, seconds: float) -> None:
        """Has all stacks written in so many seconds, by a thread that needs no GIL, unless this is
        called again before. `thread` is the identity of the one that counts."""
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            if self._held is None:
                self._held = (self.folder / HELD).open("w")
                self._held.write(f"watched: {thread:#x}\n")
                self._held.flush()
                self._empty = self._held.tell()
            faulthandler.dump_traceback_later(seconds, file=self._held)

    def disarm(self) -> None:
        if self._held is not None:
            faulthandler.cancel_dump_traceback_later()

    def write_stacks(self, stacks: Mapping[str, _stacks.Stack], why: str) -> None:
        """Adds the stacks of all threads, as Python shows them: innermost last."""
        lines = [f"{time.strftime('%Y-%m-%d %H:%M:%S')} {why}"]
        for name, stack in stacks.items():
            lines.append(f"Thread {name}:")
            for frame in reversed(stack):
                lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
                lines += [f"    {frame.source}"] * bool(frame.source)
        with contextlib.suppress(OSError), (self.folder / STACKS).open("a") as file:
            file.write("\n".join([*lines, "", ""]))
            self._wrote = True

    def write_timeline(self, events: Iterable[Event], path: str | os.PathLike[str] | None) -> Path:
        """Writes events; by default into this process's folder. Raises `OSError`."""
        target = self.folder / TIMELINE if path is None else Path(path)
        whole = {
            "run": self._run,
            "process": self._process,
            "processes": self._processes,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "events": [asdict(event) for event in list(events)],
        }
        target.write_text(json.dumps(whole, indent=0))
        self._wrote = self._wrote or path is None
        return target

    def close(self) -> None:
        """Leaves what tells something, and removes the rest."""
        self.disarm()
        if self._held is not None:
            with contextlib.suppress(OSError):
                held = os.fstat(self._held.fileno()).st_size > self._empty
                self._held.close()
                if not held:
                    (self.folder / HELD).unlink()
        if not self._wrote:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                self.folder.parent.rmdir()


def _run_name() -> str:
    """When this run was first watched, and its coordinator: the same in all of its processes."""
    coordinator = _jax.place()[2] or f"pid {os.getpid()}"
    own = f"{time.strftime('%Y-%m-%d %H:%M:%S')}, {coordinator}"
    if (store := _jax.store()) is not None:
        with contextlib.suppress(Exception):  # it is only a name
            if not store.set_once(_RUN, own.encode()):
                return (store.get(_RUN, 5.0) or b"").decode() or coordinator
    return own


def held_stack(folder: str) -> _stacks.Stack:
    """The stack that `faulthandler` left in a folder, where this process can read it."""
    with contextlib.suppress(OSError, ValueError):
        head, _, text = Path(folder, HELD).read_text().partition("\n")
        return _stacks.read_dump(text, int(head.rpartition(" ")[2], 16))
    return ()
