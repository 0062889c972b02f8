"""A save that all processes make together: made, written, agreed on, renamed; or it never was.

Process 0 makes the temporary files, all write their own pieces and make them durable, and process 0
renames. After each step all tell how it went: whatever fails on one, all raise, and the files that
were there before are as they were.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import jax
import msgpack

from .._config import config
from .._coordination import Agreement, agree, members_of, telling
from .._errors import StorageError, build
from .._packing import pack
from .._progress import Line
from ._atomic import Temporaries, new_token, remove_left_overs, temporary
from ._shares import Tensor
from ._writing import Block, write


@dataclass(frozen=True)
class File:
    """A file to be written: its final name, its first bytes and its size."""

    path: Path
    head: bytes
    size: int


@dataclass(frozen=True)
class Save:
    """What all processes do together.

    Attributes:
      what: in words that are compared between processes.
      path: what is saved, after which temporary files are named.
      files: the first is renamed last.
      tensors: where each lies.
      after: what process 0 does when all is renamed.
      replaced: contents that speak of files that the new ones replace.
      named_by: the files beside it of which such contents speak, as far as nothing needs them.
      shows: whether process 0 says how far it is.
    """

    what: str
    path: Path
    files: tuple[File, ...]
    tensors: tuple[Tensor, ...]
    after: Callable[[], None] = field(default=lambda: None)
    replaced: bytes = b""
    named_by: Callable[[bytes], Iterable[str]] = field(default=lambda _: ())
    shows: bool | None = None


class Temporary(Protocol):
    """What process 0 has made under a temporary name."""

    def rename(self) -> None:
        """Gives it its final name."""
        ...

    def remove(self) -> None:
        """Removes what was not renamed."""
        ...


def run(save: Save, blocks: Iterable[Block]) -> None:
    """Saves files, on all processes.

    Raises:
      StorageError: on all processes where one of them could not write; it says which and why.
      DivergenceError, StragglerError, ClusterError: as collectives do.
    """

    def make(token: str) -> Temporary:
        remove_left_overs(save.path, save.named_by)
        made = Temporaries(save.path, token, [file.path for file in save.files])
        try:
            made.make([file.head for file in save.files], [file.size for file in save.files])
            if save.replaced:
                made.note(save.replaced)
        except BaseException:
            made.remove()
            raise
        return made

    def fill(token: str) -> None:
        members = members_of(None, save.what)
        nbytes = sum(file.size for file in save.files) // len(members)
        line = Line(nbytes, members, shows=save.shows, doing=f"save {save.path.name}")
        with _Opened(save.path, token) as opened:
            write(save.tensors, blocks, opened.descriptor, line.show)
            opened.sync()
        line.end()

    together(save.what, make, fill, save.after)


def together(
    what: str,
    make: Callable[[str], Temporary],
    fill: Callable[[str], None],
    after: Callable[[], None] = lambda: None,
) -> None:
    """Makes, fills and renames something, on all processes, by a token that its names carry.

    Process 0 calls `make`, then all `fill`, then process 0 renames and calls `after`. For the errors
    see `run`.
    """
    first = jax.process_index() == 0
    steps = _Steps(what)
    made: Temporary | None = None
    try:
        with telling(what):
            token = new_token()
            with steps.part():
                made = make(token) if first else None
        agreed = steps.end("make the temporary files", token.encode() if first else b"")
        with telling(what):
            token = msgpack.unpackb(agreed.data[0])[1].decode()
            with steps.part():
                fill(token)
        steps.end("write")
        with telling(what), steps.part():
            if made is not None:
                made.rename()
                after()
                made.remove()  # so that nothing but the new files is there when all return
        steps.end("rename")
    finally:
        if made is not None:
            made.remove()


class _Steps:
    """The steps of a save: what failed in one on any process, all raise at its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failure = ""
        self._began = time.monotonic()

    @contextlib.contextmanager
    def part(self) -> Generator[None]:
        """Within the block, failures of files are kept for the end of the step."""
        try:
            yield
        except OSError as error:
            name = f" {Path(os.fsdecode(error.filename)).name!r}" if error.filename else ""
            self._failure = f"{error.strerror or error}{name}"[:500]

    def end(self, step: str, data: bytes = b"") -> Agreement:
        """Tells the others how the step went; raises where it failed on any process."""
        # Who wrote for long may have to wait for long, too.
        timeout = config.timeout + 2 * (time.monotonic() - self._began)
        message = pack((self._failure, data))
        agreed = agree(f"{self._what}: {step}", data=message, timeout=timeout)
        failures = {
            process: words
            for process, message in zip(agreed.members, agreed.data, strict=True)
            if (words := msgpack.unpackb(message)[0])
        }
        if failures:
            raise build(
                StorageError,
                where=f"{self._what} on process {jax.process_index()}",
                given="; ".join(f"process {p}: {words}" for p, words in failures.items()),
                rule=f"all processes {step}; what was there before is as it was",
                advice=_advice(" ".join(failures.values())),
            )
        self._began = time.monotonic()
        return agreed


def _advice(words: str) -> str:
    if any(w in words for w in (os.strerror(28), os.strerror(122))):  # ENOSPC, EDQUOT
        return "make room, or save to another file system, and save again"
    if _UNSEEN in words:
        return "save to a folder of a file system that all hosts share, by one absolute path"
    return "mend what is named, and save again"


_UNSEEN = "does not see the file that process 0 made"


class _Opened:
    """The temporary files that this process writes into, each opened when it is needed."""

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self._token = token
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> _Opened:
        self.descriptor(0)  # also who writes nothing says whether the folder is shared
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def descriptor(self, number: int) -> int:
        if number not in self._descriptors:
            name = temporary(self._path, self._token, number)
            try:
                self._descriptors[number] = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise OSError(f"{_UNSEEN}: {name}") from error
        return self._descriptors[number]

    def sync(self) -> None:
        for descriptor in self._descriptors.values():
            os.fsync(descriptor)
