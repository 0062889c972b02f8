"""A folder that comes into being whole, in place of one that is there: for stores of many files."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from pathlib import Path

from ._atomic import sync_folder, temporary

_CURRENT_FOLDER, _EXCHANGE = -100, 2


class TemporaryFolder:
    """A folder under a temporary name, locked until it is renamed.

    Where a folder is there already, the two change names in one step (Linux's `renameat2`); on file
    systems without it, in two, between which a crash leaves the old one under its temporary name
    `...-00001.tmp`.
    """

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self.name = temporary(path, token, 0)
        self._aside = temporary(path, token, 1)
        os.mkdir(self.name)
        self._lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def rename(self) -> None:
        """Gives the folder its name; what had it before is then under the temporary one."""
        if not os.path.lexists(self._path):
            os.rename(self.name, self._path)
        elif not _exchange(self.name, self._path):
            os.rename(self._path, self._aside)
            os.rename(self.name, self._path)
        sync_folder(self._path.parent)

    def remove(self) -> None:
        """Removes what is under the temporary names."""
        for name in (self.name, self._aside):
            shutil.rmtree(name, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _exchange(one: Path, other: Path) -> bool:
    """Lets two names change places, in one step; `False` where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return rename(_CURRENT_FOLDER, names[0], _CURRENT_FOLDER, names[1], _EXCHANGE) == 0


def sync_files(files: list[Path]) -> None:
    """Makes files durable, and the folders that they lie in."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for folder in {file.parent for file in files}:
        with contextlib.suppress(FileNotFoundError):
            sync_folder(folder)
