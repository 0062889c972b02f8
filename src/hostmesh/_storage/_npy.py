"""NumPy's files: `.npy` by ranges, `.npz` by ranges where entries are stored as they are.

Headers are parsed by NumPy, which evaluates literals only; nothing is ever unpickled.
"""

from __future__ import annotations

import io
import math
import os
import threading
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.lib import format as npy_format

from .._errors import StorageError, build
from .._plan import Shape
from ._local import box_of
from ._resolve import File, Opened, open_file
from ._source import LIMITS, Job, Stored, Task, is_countable

_MOST_HEADER = 64 * 1024
# Deflate makes at most about this much of a byte.
_INFLATION = 1040


def add_npy(opened: Opened, path: str | os.PathLike[str]) -> None:
    """Adds the array of a `.npy` file, or the arrays of a `.npz`."""
    name = os.fspath(path)
    file = open_file(name)
    number = opened.add(file)
    if file.read(0, min(4, file.size)) in (b"PK\x03\x04", b"PK\x05\x06"):
        _add_npz(opened, number, file)
        return
    head = file.read(0, min(file.size, _MOST_HEADER))
    opened.stored.append(_stored(number, "array", head, 0, file.size, name))
    opened.is_single = True


def _add_npz(opened: Opened, number: int, file: File) -> None:
    try:
        archive = zipfile.ZipFile(io.BufferedReader(_Raw(file), 1 << 16))
        entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OverflowError) as error:
        _refuse(file.name, f"no zip archive: {str(error)[:200]}", "a .npz file is one")
    with archive:
        for entry in entries:
            where = f"{file.name}: entry {entry.filename!r}"
            if not entry.filename.endswith(".npy"):
                _refuse(where, "this name", "the entries of a .npz file are .npy files")
            _require_sizes(entry, file.size, where)
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
                start = _start_of(file, entry, where)
                head = file.read(start, min(entry.file_size, _MOST_HEADER))
                stored = _stored(number, name, head, start, entry.file_size, where)
                opened.stored.append(stored)
                continue
            try:
                with archive.open(entry) as stream:
                    head = stream.read(min(entry.file_size, _MOST_HEADER))
            except _BAD_ENTRY as error:
                _refuse(where, f"{type(error).__name__}: {str(error)[:200]}", "it can be inflated")
            member = opened.add(_Inflated(file, entry, where))
            opened.stored.append(_stored(member, name, head, 0, entry.file_size, where))


_BAD_ENTRY = (
    zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError, RuntimeError,
    OverflowError, KeyError,
)  # fmt: skip


def _require_sizes(entry: zipfile.ZipInfo, size: int, where: str) -> None:
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        _refuse(where, f"compression {entry.compress_type}", "entries are stored or deflated")
    if not (0 <= entry.header_offset < size and 0 <= entry.compress_size <= size):
        _refuse(
            where,
            f"{entry.compress_size} bytes from byte {entry.header_offset} on",
            f"they lie within the {size} of the file",
        )
    factor = 1 if entry.compress_type == zipfile.ZIP_STORED else _INFLATION
    if not 0 <= entry.file_size <= factor * entry.compress_size + factor:
        _refuse(
            where,
            f"{entry.file_size} bytes of {entry.compress_size} compressed ones, in a file of {size}",
            f"a byte holds at most {factor}",
        )


def _start_of(file: File, entry: zipfile.ZipInfo, where: str) -> int:
    """Where the data of an entry that is stored as it is begin."""
    at = entry.header_offset
    head = file.read(at, 30) if at + 30 <= file.size else b""
    start = at + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if head[:4] != b"PK\x03\x04" or start + entry.file_size > file.size:
        _refuse(where, f"data from byte {start} on", f"they lie within the {file.size} of the file")
    return start


def _stored(number: int, name: str, head: bytes, start: int, size: int, where: str) -> Stored:
    """The array whose file of `size` bytes begins with `head`."""
    stream = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            version = npy_format.read_magic(stream)
            readers = {(1, 0): npy_format.read_array_header_1_0, (2, 0): _read_2, (3, 0): _read_2}
            shape, is_fortran, dtype = readers[version](stream)
    except Exception as error:  # whatever NumPy's parser and ast.literal_eval raise
        _refuse(where, f"{type(error).__name__}: {str(error)[:200]}", "it has the header of a .npy")
    shape = tuple(int(n) for n in shape)
    if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufc" or dtype.subdtype:
        _refuse(where, f"dtype {str(dtype)[:100]}", "it is a number; nothing is unpickled")
    if not is_countable(shape):
        _refuse(where, f"shape {str(shape)[:100]}", LIMITS)
    at, nbytes = stream.tell(), math.prod(shape) * dtype.itemsize
    if at + nbytes > size:
        _refuse(where, f"{size - at} bytes of data", f"shape {shape} of {dtype} takes {nbytes}")
    if is_fortran:
        return Stored(number, name, dtype, shape[::-1], start + at, reversed_axes=True)
    return Stored(number, name, dtype, shape, start + at)


def _read_2(stream: io.BytesIO) -> tuple[Shape, bool, np.dtype[Any]]:
    return npy_format.read_array_header_2_0(stream)


class _Raw(io.RawIOBase):
    """A file as `zipfile` reads it."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._file.size - self._at))
        buffer[:length] = self._file.read(self._at, length) if length else b""
        self._at += length
        return length


class _Inflated:
    """A compressed entry: read whole when its first byte is wanted, and kept until `close`."""

    gap, largest = 2**62, 2**62

    def __init__(self, file: File, entry: zipfile.ZipInfo, where: str) -> None:
        self._file, self._entry, self.name = file, entry, where
        self.is_remote = file.is_remote
        self._lock = threading.Lock()
        self._data: bytes | None = None

    def jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """One job, for all of them."""

        def run() -> None:
            data = np.frombuffer(self._whole(), np.uint8)
            for task in tasks:
                task.write(task.place, box_of(data, 0, task.stored, task))

        return [run] if tasks else []

    def _whole(self) -> bytes:
        with self._lock:
            if self._data is None:
                try:
                    with zipfile.ZipFile(io.BufferedReader(_Raw(self._file), 1 << 20)) as archive:
                        self._data = archive.read(self._entry)
                except _BAD_ENTRY as error:
                    _refuse(
                        self.name,
                        f"{type(error).__name__}: {str(error)[:200]}",
                        "it can be inflated",
                    )
                if len(self._data) != self._entry.file_size:
                    _refuse(self.name, f"{len(self._data)} bytes", "as many as the archive says")
            return self._data

    def close(self) -> None:
        """Lets the data go."""
        self._data = None


def _refuse(where: str, given: str, rule: str) -> NoReturn:
    raise build(
        StorageError, where=where, given=given, rule=rule, advice="get or write the file anew"
    )
