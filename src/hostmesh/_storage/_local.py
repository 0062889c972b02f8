"""Files that ranges of bytes are read from, into memory that is there already."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .._errors import StorageError, build
from . import _boxes
from ._source import HostArray, Job, Stored, Task

Bytes = npt.NDArray[np.uint8]

# Runs below it are copied out of the mapped file: a call of the system for each would cost more.
_LEAST_PREAD = 64 * 1024
# What a thread does at a time.
_LARGEST_JOB = 8 * 2**20


class Count:
    """How many bytes of data, and in how many requests, this process has asked of files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = 0
        self.requests = 0

    def add(self, nbytes: int, requests: int = 1) -> None:
        """Notes bytes that were read."""
        with self._lock:
            self.nbytes += nbytes
            self.requests += requests


COUNT = Count()


class LocalFile:
    """A file on this machine. It stays open until `close`."""

    is_remote = False
    gap = 0
    largest = _LARGEST_JOB

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        try:
            # A pipe would wait for its writer.
            self._descriptor = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise failed(self.name, error) from None
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise build(
                StorageError,
                where=self.name,
                given="no regular file",
                rule="tensors are read from files whose size is known",
                advice="give the path of a file, or of a folder of safetensors files",
            )
        self.size = found.st_size
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None

    def read_into(self, start: int, out: HostArray) -> None:
        """Fills `out`, which is contiguous, with the bytes from `start` on."""
        view = memoryview(out.data).cast("B") if out.nbytes else memoryview(b"")
        COUNT.add(len(view))
        while view:
            try:
                got = os.preadv(self._descriptor, [view], start)
            except OSError as error:
                raise failed(self.name, error) from None
            if not got:
                raise ends_early(self.name, start, self.size)
            view, start = view[got:], start + got

    def read(self, start: int, length: int) -> bytes:
        """Some bytes."""
        out = np.empty(length, np.uint8)
        self.read_into(start, out)
        return out.tobytes()

    def mapped(self) -> Bytes:
        """All bytes, as they lie in the page cache. A file cut short meanwhile is the end of us.

        Raises `StorageError` where its size is no longer what it was.
        """
        with self._lock:
            if os.fstat(self._descriptor).st_size < self.size:
                raise ends_early(self.name, os.fstat(self._descriptor).st_size, self.size)
            if self._map is None:
                try:
                    self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:
                    raise failed(self.name, error) from None
            return np.frombuffer(self._map, np.uint8)

    def jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """Long runs of bytes straight into their places; all else out of the mapped file."""
        found: list[Job] = []
        small: list[Task] = []
        room = _LARGEST_JOB

        def flush() -> None:
            if small:
                found.append(_all(self._read, tuple(small)))
                small.clear()

        for task in tasks:
            kind = task.stored
            for box in _boxes.cut(
                kind.shape, kind.dtype.itemsize, task.box, _gap_of(task), _LARGEST_JOB
            ):
                part = task if box == task.box else task.part(box)
                small.append(part)
                room -= part.nbytes
                if room <= 0:
                    flush()
                    room = _LARGEST_JOB
        flush()
        return found

    def _read(self, task: Task) -> None:
        stored, place = task.stored, task.place
        size = stored.dtype.itemsize
        start, stop = _boxes.span_of(stored.shape, size, task.box)
        if (
            stop - start == place.nbytes
            and stored.dtype == place.dtype
            and place.flags.c_contiguous
            and place.nbytes
        ):
            self.read_into(stored.start + start, place.reshape(-1).view(np.uint8))
            return
        COUNT.add(task.nbytes)
        task.write(place, box_of(self.mapped(), 0, stored, task))

    def close(self) -> None:
        """Gives the file back; what was mapped goes when nobody looks at it any more."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._map = -1, None


def _gap_of(task: Task) -> int:
    """Which gaps a part of a task may have: none where its runs are worth a call each."""
    stored = task.stored
    run = _boxes.run_of(stored.shape, stored.dtype.itemsize, task.box)
    return 0 if run >= _LEAST_PREAD else 2**62


def box_of(data: Bytes, first: int, stored: Stored, task: Task) -> HostArray:
    """The values of a task's box in bytes of the source that begin at its byte `first`."""
    size = stored.dtype.itemsize
    start, _ = _boxes.span_of(stored.shape, size, task.box)
    shape = tuple(b - a for a, b in task.box)
    return np.ndarray(
        shape,
        stored.dtype,
        buffer=data.data,
        offset=stored.start + start - first,
        strides=_boxes.strides_of(stored.shape, size),
    )


def _all(read: Callable[[Task], None], tasks: tuple[Task, ...]) -> Job:
    def run() -> None:
        for task in tasks:
            read(task)

    return run


def failed(name: str, error: Exception) -> StorageError:
    """The error for a file that the system does not give."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return build(
        StorageError,
        where=name,
        given=f"{type(error).__name__}: {said}",
        rule="the file is there and may be read, on every process that loads it",
        advice="look at the path, the permissions and the mounts of this host",
    )


def ends_early(name: str, at: int, size: int) -> StorageError:
    """The error for a file that is shorter than it was when it was opened."""
    return build(
        StorageError,
        where=name,
        given=f"its end at byte {at}",
        rule=f"it had {size} bytes when it was opened",
        advice="do not write to a file that is being read; load it again",
    )
