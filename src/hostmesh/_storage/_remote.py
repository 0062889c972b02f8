"""Files at a URL, read in ranges by fsspec: merged where they are close, tried again when they fail."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .._errors import SpecError, StorageError, build
from . import _boxes
from ._local import COUNT, box_of
from ._source import HostArray, Job, Task

T = TypeVar("T")

# What lies between two ranges costs less than a request of its own, up to here.
_GAP = 256 * 1024
_LARGEST = 8 * 2**20
_TRIES = 5
_FOR_NOW = (408, 425, 429)  # too slow, too early, too many requests
_PAUSE = 0.1  # seconds before the second try; twice as long before each next one


class _Rate:
    """Bytes a second of this process's larger requests: a moving mean."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        """Notes a request that took so long."""
        if nbytes >= _GAP:
            rate = nbytes / max(seconds, 1e-9)
            with self._lock:
                self.value = rate if not self.value else 0.8 * self.value + 0.2 * rate


_RATE = _Rate()


def measured_rate() -> float:
    """Bytes a second that were measured in this process so far, or 0."""
    return _RATE.value


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    try:
        import fsspec.core  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise build(
            SpecError,
            where=url,
            given="a URL, without the package fsspec",
            rule="URLs are read by fsspec",
            advice="pip install 'hostmesh[remote]'",
        ) from None
    try:
        options = (
            _http_options(url.partition(":")[0]) if url.startswith(("http:", "https:")) else {}
        )
        found: Any = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise build(
            SpecError,
            where=url,
            given=f"{type(error).__name__}: {str(error)[:300]}",
            rule="fsspec has a file system for each kind of URL, some in packages of their own",
            advice="pip install 'hostmesh[remote]', and what the error names",
        ) from None
    return found[0], found[1]


def _http_options(protocol: str) -> dict[str, Any]:
    """fsspec's options for http: the user's, and that each answer is looked at."""
    import fsspec.config

    own = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
    return {"client_kwargs": {**own, "trace_configs": [*own.get("trace_configs", []), _watch()]}}


@functools.cache
def _watch() -> Any:
    """Has aiohttp look at each answer before its body comes: whether it is the range asked for.

    fsspec itself takes whatever comes.
    """
    import aiohttp

    async def look(_: Any, __: Any, told: aiohttp.TraceRequestEndParams) -> None:
        asked, answer = told.headers.get("Range", ""), told.response
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if answer.status == 206 and asked:
            wrong = not answer.headers.get("Content-Range", "").startswith(f"bytes {first}-")
        else:  # a server that knows no ranges sends all, which may be more than there is room for
            length = answer.content_length
            wrong = bool(last) and answer.status == 200 and length != int(last) - int(first) + 1
        if wrong:
            answer.close()
            came = answer.headers.get("Content-Range") or f"all {answer.content_length} bytes"
            raise OSError(f"{came} came where {asked} was asked for; does the server know ranges?")

    watch = aiohttp.TraceConfig()
    watch.on_request_end.append(look)
    return watch


def listed(url: str) -> list[str] | None:
    """The names in the folder at a URL; `None` where it is no folder, or cannot be listed."""
    system, path = filesystem(url)
    try:
        if not system.isdir(path):
            return None
        return [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(path, detail=False)]
    except Exception:  # a server that lists nothing: what is there is taken for a file
        return None


class RemoteFile:
    """A file at a URL."""

    is_remote = True
    gap = _GAP
    largest = _LARGEST

    def __init__(self, url: str) -> None:
        self.name = url
        self._system, self._path = filesystem(url)
        size = self._tried(lambda: self._system.info(self._path).get("size"), "its size")
        if not isinstance(size, int) or size < 0:
            raise self._error(f"size {size}", "the server tells how long a file is")
        self.size = size

    def read(self, start: int, length: int) -> bytes:
        """Some bytes, in one request."""
        if not length:
            return b""

        def once() -> bytes:
            data: bytes = self._system.cat_file(self._path, start=start, end=start + length)
            if len(data) != length:
                raise OSError(f"{len(data)} bytes came of {length} from byte {start} on")
            return data

        begun = time.monotonic()
        data = self._tried(once, f"bytes {start} to {start + length}")
        _RATE.note(length, time.monotonic() - begun)
        COUNT.add(length)
        return data

    def jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """A job for each range that is read at once."""
        parts = [
            task.part(box)
            for task in tasks
            for box in _boxes.cut(
                task.stored.shape, task.stored.dtype.itemsize, task.box, self.gap, self.largest
            )
        ]
        spans = [_span(part) for part in parts]
        return [
            self._job(span, [parts[number] for number in members])
            for span, members in _boxes.merged(spans, self.gap, self.largest)
        ]

    def _job(self, span: tuple[int, int], parts: Sequence[Task]) -> Job:
        start, stop = span

        def run() -> None:
            data: HostArray = np.frombuffer(self.read(start, stop - start), np.uint8)
            for part in parts:
                part.write(part.place, box_of(data, start, part.stored, part))

        return run

    def _tried(self, ask: Callable[[], T], what: str) -> T:
        """What the server says, asked up to `_TRIES` times."""
        pause = _PAUSE
        for number in range(_TRIES):
            try:
                return ask()
            except Exception as error:  # whatever the client of this kind of store raises
                final = _is_final(error)
                if final or number == _TRIES - 1:
                    times = "at once" if final else f"{_TRIES} times"
                    raise self._error(
                        f"{what}: {type(error).__name__}: {str(error)[:300]}",
                        f"the server gives the bytes that it is asked for; it failed {times}",
                    ) from None
            time.sleep(pause)
            pause *= 2
        raise AssertionError

    def _error(self, given: str, rule: str) -> StorageError:
        return build(
            StorageError,
            where=self.name,
            given=given,
            rule=rule,
            advice="look at the URL, the server and the network, and load again",
        )

    def close(self) -> None:
        """Nothing is open: connections are the file system's."""


def _is_final(error: Exception) -> bool:
    """Whether to ask again would give the same."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        # Of whatever kept it from asking for the size fsspec's http says that there is no file.
        status = getattr(error.__cause__, "status", 0)
        return isinstance(status, int) and 400 <= status < 500 and status not in _FOR_NOW
    return isinstance(error, FileNotFoundError | PermissionError | NotImplementedError | TypeError)


def _span(task: Task) -> tuple[int, int]:
    stored = task.stored
    start, stop = _boxes.span_of(stored.shape, stored.dtype.itemsize, task.box)
    return stored.start + start, stored.start + stop
