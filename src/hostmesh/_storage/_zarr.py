"""Arrays in zarr stores, read by the `zarr` package: only the chunks of theirs that are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._errors import SpecError, StorageError, build
from . import _boxes
from ._local import COUNT
from ._resolve import Opened
from ._source import LIMITS, Job, Stored, Task, is_countable


def open_zarr(store: Any) -> Opened:
    """The array of a store, or all arrays of a group and the groups in it."""
    found = _opened(store)
    opened = Opened()
    name = str(store)
    if hasattr(found, "shape"):
        _add(opened, found, "array", name)
        opened.is_single = True
    else:
        for path, each in sorted(_arrays(found, "")):
            _add(opened, each, path, name)
    return opened


def zarr_package(where: str) -> Any:
    """The package, if it is there."""
    try:
        import zarr
    except ImportError:
        raise build(
            SpecError,
            where=where,
            given="a zarr store, without the package zarr",
            rule="zarr stores are read and written by it",
            advice="pip install 'hostmesh[zarr]'",
        ) from None
    return zarr


def _opened(store: Any) -> Any:
    zarr = zarr_package("load_zarr")
    try:
        return zarr.open(store, mode="r")
    except Exception as error:  # whatever the store, its codecs or the metadata raise
        raise _failed(str(store), error) from None


def _arrays(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    try:
        for name, each in group.members():
            path = f"{prefix}{name}"
            found += [(path, each)] if hasattr(each, "shape") else _arrays(each, f"{path}/")
    except StorageError:
        raise
    except Exception as error:
        raise _failed(f"{group}", error) from None
    return found


def _add(opened: Opened, array: Any, name: str, where: str) -> None:
    dtype = np.dtype(array.dtype)
    if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufcV":
        raise build(
            StorageError,
            where=f"{where}: array {name!r}",
            given=f"dtype {str(dtype)[:100]}",
            rule="an array on devices is of numbers",
            advice="leave it out with select=",
        )
    if not is_countable(array.shape):
        raise build(
            StorageError,
            where=f"{where}: array {name!r}",
            given=f"shape {str(array.shape)[:100]}",
            rule=LIMITS,
            advice="leave it out with select=",
        )
    try:
        array = _with_whole_chunks(array)
    except Exception as error:
        raise _failed(f"{where}: array {name!r}", error) from None
    number = opened.add(_Array(array, f"{where}: array {name!r}"))
    opened.stored.append(Stored(number, name, dtype, tuple(map(int, array.shape)), 0))


def _with_whole_chunks(array: Any) -> Any:
    """The same array, whose chunks are looked at where its codec does not."""
    codecs = str(array.metadata.to_dict())
    if "blosc" not in codecs or "sharding" in codecs:  # of a shard, a part is a chunk
        return array
    from ._zarr_store import WholeChunks

    return zarr_package("load_zarr").open_array(
        store=WholeChunks(array.store), path=array.path, mode="r"
    )


class _Array:
    """One zarr array. What lies in a zarr chunk is read with it."""

    is_remote = False

    def __init__(self, array: Any, name: str) -> None:
        self._array, self.name = array, name
        self.gap = 0
        self.largest = 2**62

    def jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """A job for each task."""
        return [self._job(task) for task in tasks if not _boxes.is_empty(task.box)]

    def _job(self, task: Task) -> Job:
        index = tuple(slice(a, b) for a, b in task.box)

        def run() -> None:
            try:
                values = np.asarray(self._array[index])
            except Exception as error:
                raise _failed(self.name, error) from None
            COUNT.add(values.nbytes)
            task.write(task.place, values)

        return run

    def close(self) -> None:
        """Nothing is open."""


def _failed(where: str, error: Exception) -> StorageError:
    return build(
        StorageError,
        where=where,
        given=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
        rule="the zarr package opens the store and reads its chunks",
        advice="look at the path, and whether the store is whole",
    )
