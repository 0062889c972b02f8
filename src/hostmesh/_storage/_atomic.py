"""Files that come into being whole: made under a temporary name, renamed when all is in them.

The names tell whose they are: `.model.safetensors.hostmesh-<token>-<number>.tmp` in the folder of
`model.safetensors`. Number 0 is renamed last, and locked until then: what carries the token of a
file that is not locked, or not there, is left over from a save that did not end.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_log = logging.getLogger("hostmesh")
_HEX = 8
# What names other files is not longer.
_MOST_WORDS = 16 * 2**20


def new_token() -> str:
    """A part of names that no other save has."""
    return secrets.token_hex(_HEX)


def temporary(path: Path, token: str, number: int) -> Path:
    """The temporary name of file `number` of a save to `path`."""
    return path.with_name(f".{path.name}.hostmesh-{token}-{number:05d}.tmp")


def sync_folder(folder: Path) -> None:
    """Makes sure that a folder's names survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Temporaries:
    """The temporary files of one save, for the process that makes and renames them.

    Args:
      path: what is saved, after which they are named.
      finals: the name that each gets in the end, all in the folder of `path`; the first last.
    """

    def __init__(self, path: Path, token: str, finals: Sequence[Path]) -> None:
        self._path = path
        self._token = token
        self._finals = list(finals)
        self._names = [temporary(path, token, number) for number in range(len(finals))]
        self._lock = -1

    @property
    def names(self) -> list[Path]:
        """The temporary names."""
        return list(self._names)

    def make(self, heads: Sequence[bytes], sizes: Sequence[int]) -> None:
        """Makes the files, each with its first bytes and in its full size."""
        for number, (name, head, size) in enumerate(zip(self._names, heads, sizes, strict=True)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o666)
            try:
                if number == 0:
                    self._lock = os.dup(descriptor)
                    with contextlib.suppress(OSError):  # a file system without locks
                        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                at = 0
                while at < len(head):
                    at += os.pwrite(descriptor, head[at:], at)
                os.truncate(descriptor, size)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def note(self, contents: bytes) -> None:
        """Keeps what speaks of files that the new ones replace, until those are removed.

        If they never are, it is for `remove_left_overs` of the next save to read.
        """
        self._names.append(temporary(self._path, self._token, len(self._names)))
        self._names[-1].write_bytes(contents)

    def rename(self) -> None:
        """Gives the files their names: whoever looks sees the old first one or the new one."""
        for number in [*range(1, len(self._finals)), 0]:
            if number == 0 and len(self._finals) > 1:  # what the first names is there before it
                sync_folder(self._finals[0].parent)
            os.replace(self._names[number], self._finals[number])
        sync_folder(self._finals[0].parent)
        self._unlock()

    def remove(self) -> None:
        """Removes what was not renamed."""
        for name in self._names:
            with contextlib.suppress(OSError):
                name.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_left_overs(
    path: Path, named_by: Callable[[bytes], Iterable[str]] = lambda _: ()
) -> list[str]:
    """Removes the temporary files of saves to `path` that did not end, and says so in the log.

    `named_by` tells which other files are left over, too, by the contents of a temporary one: those
    that were renamed before the save ended, or should have been removed after it.
    """
    pattern = re.compile(re.escape(f".{path.name}.hostmesh-") + r"([0-9a-f]+)-(\d{5,})\.tmp")
    found: dict[str, list[str]] = {}
    for name in sorted(os.listdir(path.parent)):
        if match := pattern.fullmatch(name):
            found.setdefault(match[1], []).append(name)
    removed: list[str] = []
    for token, names in found.items():
        if _is_alive(temporary(path, token, 0)):
            continue
        for file in [path.with_name(name) for name in names]:
            with contextlib.suppress(OSError):
                if file.stat().st_size <= _MOST_WORDS:
                    names = [*named_by(file.read_bytes()), *names]
        for name in names:
            left = path.with_name(name)
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
            removed.append(name)
    if removed:
        _log.warning(
            "removed from %s what a save that did not end had left: %s",
            path.parent,
            ", ".join(removed),
        )
    return removed


def _is_alive(first: Path) -> bool:
    """Whether a process still holds the first temporary file of a save."""
    try:
        descriptor = os.open(first, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
