"""`save_zarr`: global arrays to a zarr store, each process its own chunks."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

import jax

from .._coordination import members_of, telling
from .._errors import StorageError, build
from .._plan import Bounds, Shape
from .._progress import Line
from .._trees import Tree
from ._atomic import remove_left_overs, temporary
from ._boxes import elements
from ._folder import TemporaryFolder, sync_files
from ._grid import chunk_shape, deal, grid, holders_of
from ._leaves import Leaf, digest, leaf_of, named
from ._pending import settle
from ._plan import SavePlan
from ._save import Replicas, check_replicas, compare, local_path
from ._shares import Piece
from ._together import together
from ._writing import Source, gathered
from ._zarr import zarr_package

Chunks = Sequence[int] | Mapping[str, Sequence[int]] | None

_MARKS = ("zarr.json", ".zgroup", ".zarray")


@overload
def save_zarr(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    chunks: Chunks = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> None: ...


@overload
def save_zarr(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    chunks: Chunks = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[True],
) -> SavePlan: ...


def save_zarr(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    chunks: Chunks = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: bool = False,
) -> SavePlan | None:
    """Saves a global array, or a pytree of them, as a zarr store (format 3), on all processes together.

    Each chunk of the store is written whole by one process that holds all of it; chunks that
    several hold are dealt out evenly. Needs the `zarr` package: `pip install "hostmesh[zarr]"`.

    The store is made under a temporary name in the same folder and renamed when all have written,
    as `save_safetensors` does: a crash leaves the old store or the new one.

    Communicates: four small agreements, and no values; with `replicas="check"` digests besides.

    Args:
      path: the store, a folder on a file system that all processes share.
      tree: an array, or a tree of arrays, which becomes a group: keys are joined by slashes. Leaves
        as for `save_safetensors`.
      chunks: the chunk shape, of all arrays or by name. No chunk may straddle what no process
        holds whole. By default one that divides the shards, of at most about 16 MiB.
      replicas, progress, explain: as for `save_safetensors`.

    Raises:
      SpecError: without the zarr package.
      StorageError: as `save_safetensors`; also for a dtype that zarr does not know, for chunks that
        no process holds whole, and where `path` is there and is no zarr store.
      DivergenceError, StragglerError, ClusterError: as `save_safetensors`.

    >>> import numpy as np, hostmesh
    >>> hostmesh.save_zarr("x.zarr", {"w": np.ones((3, 4))}, explain=True).files
    {'w': 96}
    """
    name = f"save_zarr({os.fspath(path)!r})"
    with telling(name) if not explain else contextlib.nullcontext():
        if not explain:
            zarr_package(name)
            settle()
        target = local_path(path, name)
        check_replicas(replicas, name)
        members = members_of(None, name)
        is_one = jax.tree.structure(tree) == jax.tree.structure(0)
        values = {"": tree} if is_one else named(tree, name, "/")
        leaves = {key: leaf_of(key, value, members, name) for key, value in values.items()}
        shapes = {key: _chunks_of(leaf, chunks, name) for key, leaf in leaves.items()}
        plan = _plan(leaves, shapes, members, name)
    if explain:
        return plan
    if replicas == "check":
        compare(tree, name)
    what = (
        f"{name} of {len(leaves)} arrays"
        f" (names, shapes and dtypes {digest([(k, x.dtype, x.shape) for k, x in leaves.items()])},"
        f" layouts {digest([x.boxes for x in leaves.values()])},"
        f" host values {digest([x.mark for x in leaves.values()])},"
        f" chunks {digest(list(shapes.values()))})"
    )

    def make(token: str) -> TemporaryFolder:
        remove_left_overs(target)
        _require_store(target, name)
        folder = TemporaryFolder(target, token)
        try:
            _create(folder.name, leaves, shapes, is_one, name)
        except BaseException:
            folder.remove()
            raise
        return folder

    def fill(token: str) -> None:
        nbytes = sum(plan.files.values()) // len(members)
        line = Line(nbytes, members, shows=progress, doing=f"save {target.name}")
        own = plan.pieces.get(jax.process_index(), ())
        _fill(temporary(target, token, 0), leaves, own, line.show, name)
        line.end()

    together(what, make, fill)
    return None


def _chunks_of(leaf: Leaf, chunks: Chunks, name: str) -> Shape:
    """The chunk shape of one array."""
    given = chunks.get(leaf.name) if isinstance(chunks, Mapping) else chunks
    if given is None:
        value = leaf.value
        shard = (
            value.sharding.shard_shape(leaf.shape) if isinstance(value, jax.Array) else leaf.shape
        )
        return chunk_shape(shard, leaf.dtype.itemsize)
    shape = tuple(given)
    if len(shape) != len(leaf.shape) or min(shape, default=1) < 1:
        raise build(
            StorageError,
            where=f"{name}, array {leaf.name!r}",
            given=f"chunks {shape} for an array of shape {leaf.shape}",
            rule="a chunk has a size of at least 1 for each dimension",
            advice="correct it, or leave chunks= out",
        )
    return shape


def _plan(
    leaves: Mapping[str, Leaf], shapes: Mapping[str, Shape], members: Sequence[int], name: str
) -> SavePlan:
    """Who writes which chunk."""
    items: dict[tuple[int, Bounds], tuple[int, ...]] = {}
    for number, (key, leaf) in enumerate(leaves.items()):
        if not leaf.boxes:
            continue  # empty
        for place in grid(leaf.shape, shapes[key]):
            items[number, place] = holders = holders_of(place, leaf.boxes)
            if not holders:
                raise build(
                    StorageError,
                    where=f"{name}, array {key!r}",
                    given=f"chunks {shapes[key]} of an array of shape {leaf.shape}",
                    rule=f"a chunk is written whole, and no process holds all of {place}",
                    advice="choose chunks that divide the shards, or leave chunks= out",
                )
    itemsizes = [leaf.dtype.itemsize for leaf in leaves.values()]
    pieces: dict[int, list[Piece]] = {process: [] for process in members}
    for (number, place), writer in sorted(deal(items, itemsizes).items()):
        pieces[writer].append(Piece(number, place))
    written = {
        process: sum(elements(piece.place) * itemsizes[piece.tensor] for piece in own)
        for process, own in pieces.items()
    }
    sizes = {key: math.prod(x.shape) * x.dtype.itemsize for key, x in leaves.items()}
    return SavePlan(sizes, written, {process: len(own) for process, own in pieces.items()}, pieces)


def _require_store(path: Path, name: str) -> None:
    """Raises where something else than a store would be replaced."""
    there = os.listdir(path) if path.is_dir() else []
    if (there or path.is_file()) and not any(mark in there for mark in _MARKS):
        raise build(
            StorageError,
            where=name,
            given=f"{path}, which is there and is no zarr store",
            rule="a save takes the place of an older store, and of nothing else",
            advice="save under another name, or remove it yourself",
        )


def _create(
    path: Path, leaves: Mapping[str, Leaf], shapes: Mapping[str, Shape], is_one: bool, name: str
) -> None:
    """Makes the arrays, without their values."""
    zarr = zarr_package(name)
    if not is_one:
        zarr.create_group(path)
    for key, leaf in leaves.items():
        try:
            zarr.create_array(
                path, name=key or None, shape=leaf.shape, chunks=shapes[key], dtype=leaf.dtype
            )
        except (ValueError, TypeError) as error:
            raise build(
                StorageError,
                where=f"{name}, array {key!r}",
                given=f"dtype {leaf.dtype}",
                rule=f"zarr takes it: {str(error)[:200]}",
                advice="convert it before the save, or use safetensors",
            ) from error
    files = [Path(folder) / file for folder, _, files in os.walk(path) for file in files]
    sync_files(files)


def _fill(
    path: Path,
    leaves: Mapping[str, Leaf],
    pieces: Sequence[Piece],
    done: Callable[[int], None],
    name: str,
) -> None:
    """Writes this process's chunks, and makes them durable; `done` hears of the bytes so far."""
    zarr = zarr_package(name)
    values = list(leaves.values())
    files: list[Path] = []
    total = 0
    for number in sorted({piece.tensor for piece in pieces}):
        leaf = values[number]
        # Without looking for chunks of the fill value, at which NumPy warns of signalling NaNs.
        # zarr 3.1 does not heed open_array(config=).
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = zarr.open_array(path, path=leaf.name, mode="r+")
        source = Source(leaf.value)
        for piece in pieces:
            if piece.tensor != number:
                continue
            index = tuple(slice(*cut) for cut in piece.place)
            array[index or ...] = gathered(piece.place, source.at(piece.place))
            total += elements(piece.place) * leaf.dtype.itemsize
            done(total)
            at = tuple(a // c for (a, _), c in zip(piece.place, array.chunks, strict=True))
            files.append(path / leaf.name / array.metadata.encode_chunk_key(at))
    sync_files(files)
