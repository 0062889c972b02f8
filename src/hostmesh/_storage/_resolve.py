"""From what a user calls a file to the files themselves, and the tensors that they hold."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from .._errors import StorageError, build
from . import _format
from ._local import LocalFile, failed
from ._source import Source, Stored

Path_: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "Path_ | Sequence[Path_]"

_INDEX = ".index.json"
_KIND = ".safetensors"
_AT_A_TIME = 16


class File(Source, Protocol):
    """A source that is a file of bytes."""

    @property
    def size(self) -> int: ...
    def read(self, start: int, length: int) -> bytes: ...


def is_url(path: Path_) -> bool:
    """Whether a path is for fsspec to read."""
    return "://" in os.fspath(path)


def open_file(path: Path_) -> File:
    """The file at a path or URL."""
    if is_url(path):
        from ._remote import RemoteFile

        return RemoteFile(os.fspath(path))
    return LocalFile(path)


class Opened:
    """Files that are open, and the tensors in them. To be closed.

    `is_single`: it is one array that has no name of its own.
    """

    def __init__(self) -> None:
        self.is_single = False
        self.sources: list[Source] = []
        self.stored: list[Stored] = []

    def add(self, source: Source) -> int:
        """Keeps a source open; returns its number."""
        self.sources.append(source)
        return len(self.sources) - 1

    def close(self) -> None:
        """Closes all files."""
        for source in self.sources:
            source.close()


def open_all(path: Paths, add: Callable[[Opened, Path_], None]) -> Opened:
    """Opens what is at a path, or at each of a list of paths; nothing stays open on an error."""
    opened = Opened()
    try:
        listed = [path] if isinstance(path, str | os.PathLike) else list(path)
        for each in listed:
            add(opened, each)
        opened.is_single &= isinstance(path, str | os.PathLike)
        names: dict[str, str] = {}
        for stored in opened.stored:
            here = opened.sources[stored.source].name
            if stored.name in names:
                raise build(
                    StorageError,
                    where=here,
                    given=f"tensor {stored.name!r}, which is also in {names[stored.name]}",
                    rule="files that are loaded together hold each tensor once",
                    advice="load them apart, or through their index",
                )
            names[stored.name] = here
    except BaseException:
        opened.close()
        raise
    return opened


def add_safetensors(opened: Opened, path: Path_) -> None:
    """Adds the tensors of a file, of all files of a folder, or of those that an index names."""
    name = os.fspath(path)
    if name.endswith(_INDEX):
        _add_index(opened, name)
    elif not is_url(name) and os.path.isdir(name):
        _add_folder(opened, name, sorted(_listed(name)))
    elif is_url(name) and not name.endswith(_KIND):
        from ._remote import listed

        if (found := listed(name)) is None:
            _add_files(opened, {name: None})
        else:
            _add_folder(opened, name, sorted(found))
    else:
        _add_files(opened, {name: None})


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise failed(folder, error) from None


def _add_folder(opened: Opened, folder: str, found: list[str]) -> None:
    indices = [n for n in found if n.endswith(_KIND + _INDEX)]
    if len(indices) == 1:
        return _add_index(opened, _within(folder, indices[0]))
    files = [n for n in found if n.endswith(_KIND)]
    if indices or not files:
        raise build(
            StorageError,
            where=folder,
            given=f"{len(indices)} files *{_KIND}{_INDEX}, {len(files)} files *{_KIND}",
            rule="a folder is loaded through its one index, or else all its files are",
            advice="name the index or the files",
        )
    _add_files(opened, {_within(folder, each): None for each in files})
    return None


def _within(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def _add_index(opened: Opened, path: str) -> None:
    file = open_file(path)
    try:
        if file.size > _format.MAX_HEADER_BYTES:
            _refuse(path, f"an index of {file.size} bytes", f"at most {_format.MAX_HEADER_BYTES}")
        text = file.read(0, file.size)
    finally:
        file.close()
    try:
        found: Any = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        _refuse(path, f"an index that is no JSON: {str(error)[:200]}", "it is one JSON object")
        return
    places: Any = (
        cast("dict[str, Any]", found).get("weight_map") if isinstance(found, dict) else None
    )
    if not isinstance(places, dict) or not all(
        isinstance(v, str) for v in cast("dict[str, Any]", places).values()
    ):
        _refuse(path, f"{str(found)[:80]}", "its weight_map gives the file of each tensor")
        return
    names: dict[str, list[str]] = {}
    for tensor, file_name in cast("dict[str, str]", places).items():
        names.setdefault(file_name, []).append(tensor)
    for file_name in names:
        parts = file_name.replace("\\", "/").split("/")
        if (
            any(part in ("", ".", "..") or "\0" in part or ":" in part for part in parts)
            or not file_name.endswith(_KIND)
            or not _format.is_text(file_name)
            or (is_url(path) and set(file_name) & set("%?#"))  # which servers may take for "/"
        ):  # fmt: skip
            _refuse(
                path,
                f"an index that names the file {file_name[:80]!r}",
                f"it names files *{_KIND} in its own folder or below",
            )
    folder = path.rpartition("/")[0] if is_url(path) else str(Path(path).parent)
    _add_files(opened, {_within(folder, each): names[each] for each in sorted(names)})


def read_header(file: File, where: str) -> _format.Header:
    """The header of a safetensors file."""
    length = _format.header_length(file.read(0, min(8, file.size)), file.size, where)
    return _format.parse(file.read(8, length), file.size, where)


def _add_files(opened: Opened, files: Mapping[str, list[str] | None]) -> None:
    """Adds files, those at a URL asked for several at a time: each takes three requests."""
    several = len(files) > 1 and any(map(is_url, files))
    with ThreadPoolExecutor(_AT_A_TIME) if several else contextlib.nullcontext() as pool:
        ahead = {path: pool.submit(_headed, path) for path in files} if pool else {}
        for path, names in files.items():
            _add_file(opened, path, names, *(ahead[path].result() if pool else _headed(path)))


def _headed(path: str) -> tuple[File, _format.Header]:
    file = open_file(path)
    try:
        return file, read_header(file, path)
    except BaseException:
        file.close()
        raise


def _add_file(
    opened: Opened, path: str, names: list[str] | None, file: File, header: _format.Header
) -> None:
    number = opened.add(file)
    if names is not None and (lacking := [n for n in names if n not in header.entries]):
        _refuse(
            path,
            f"no tensor {lacking[0]!r}" + (f" and {len(lacking) - 1} more" * (len(lacking) > 1)),
            "the index says that they are in this file",
        )
    wanted = set(names) if names is not None else header.entries.keys()
    opened.stored += [
        Stored(number, e.name, e.dtype, e.shape, e.start)
        for e in header.entries.values()
        if e.name in wanted
    ]


def _refuse(where: str, given: str, rule: str) -> None:
    raise build(
        StorageError, where=where, given=given, rule=rule, advice="get or write the file anew"
    )
