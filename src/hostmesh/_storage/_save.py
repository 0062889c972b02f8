"""`save_safetensors`: global arrays to safetensors files, each process its own share of the bytes."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import jax

from .._check import assert_equal, check_global
from .._coordination import members_of, telling
from .._errors import SpecError, StorageError, build
from .._trees import Matched, Tree
from . import _files, _format
from ._leaves import Leaf, digest, leaf_of, named
from ._pending import settle
from ._plan import SavePlan, plan_of
from ._shares import Piece, Tensor, share_out
from ._together import File, Save, run
from ._writing import blocks

Replicas = Literal["first", "check"]


@dataclass(frozen=True)
class Prepared:
    """A save that is planned: what all do, the values of the tensors, and who writes what."""

    save: Save
    values: tuple[Any, ...]
    plan: SavePlan

    @property
    def mine(self) -> Sequence[Piece]:
        """What this process writes."""
        return self.plan.pieces.get(jax.process_index(), ())


@overload
def save_safetensors(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    max_file_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> None: ...


@overload
def save_safetensors(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    max_file_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[True],
) -> SavePlan: ...


def save_safetensors(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    max_file_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: bool = False,
) -> SavePlan | None:
    """Saves a pytree of arrays as a safetensors file, on all processes together.

    Each distinct chunk is written once, by one of the processes that hold it, at its place in the
    file. What several hold is split over them, so that all write about as many bytes. Nothing is
    gathered. The file is, byte for byte, what the safetensors package writes for the same tensors.

    It is made under a temporary name in the same folder, made durable (fsync), agreed on by all
    processes, and renamed: a crash at any moment leaves the file that was there before, or the new
    one. What a crash leaves over, the next save to the path removes, and names in the log.

    Communicates: four small agreements, and no values; with `replicas="check"` digests besides.

    Args:
      path: the file. Its folder exists, and is one folder for all processes.
      tree: arrays by name: a dict, or any pytree, whose keys are then joined by dots. Leaves are
        global `jax.Array`s of any sharding. NumPy arrays, numbers and arrays on this process alone
        must be equal on all processes, which is checked by a digest; each writes a share of them.
      max_file_bytes: splits the tensors over files `model-00001-of-0000N.safetensors` of at most
        so many bytes of data, with `model.safetensors.index.json`, as Hugging Face's writers do.
        Where all fits in one file, it is `path` itself.
      metadata: strings for the header of each file.
      replicas: `"first"` takes what replicated chunks hold to be equal, and each holder may write a
        part of them: where they differ, the file is nobody's. `"check"` compares them before
        anything is written, by digests, which communicates besides; such arrays have a
        `NamedSharding`.
      progress: whether process 0 says how far it is, on standard error; by default
        `config.progress`.
      explain: returns the plan, and writes nothing and communicates nothing.

    Raises:
      StorageError: on all processes where one of them could not write, naming it and what the
        system says; what was there before is as it was. Also for a tensor or name that the format
        does not have.
      DivergenceError, StragglerError, ClusterError: where processes save different things, do not
        come, or fail. What was there before is as it was.

    >>> import os, tempfile, jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> w = hostmesh.to_global(np.ones((8, 4), np.float32), mesh, P("x"), global_shape=(8, 4))
    >>> plan = hostmesh.save_safetensors("model.safetensors", {"w": w}, explain=True)
    >>> plan.files
    {'model.safetensors': 200}
    >>> sum(plan.written.values())
    128
    """
    name = f"save_safetensors({os.fspath(path)!r})"
    if explain:
        return prepare(name, path, tree, max_file_bytes, metadata, replicas, progress).plan
    prepared = begun(
        name,
        lambda: prepare(name, path, tree, max_file_bytes, metadata, replicas, progress),
        tree,
        replicas,
    )
    carry_out(prepared)
    return None


PreparedT = TypeVar("PreparedT")


def begun(name: str, prepare: Callable[[], PreparedT], tree: Tree, replicas: str) -> PreparedT:
    """What `prepare` plans, after the save in the background, and with replicas compared if asked."""
    with telling(name):
        settle()
        prepared = prepare()
    if replicas == "check":
        compare(tree, name)
    return prepared


def compare(tree: Tree, name: str) -> None:
    """Raises `DivergenceError` on all processes where they hold other values of the same.

    Global arrays are compared chunk by chunk, by those that hold each.
    """

    def is_spread(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and len(_holders(leaf)) > 1

    own = jax.tree.map(lambda leaf: None if is_spread(leaf) else leaf, tree)
    spread = jax.tree.map(lambda leaf: leaf if is_spread(leaf) else None, tree)
    if jax.tree.leaves(own):
        assert_equal(own, name=name)
    arrays = jax.tree.leaves(spread)
    members = tuple(sorted({process for array in arrays for process in _holders(array)}))
    if jax.process_index() in members:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, spread)
        matched = Matched(spread, shardings, name, "shardings")
        check_global("replicas", spread, matched, arrays, members, name)


def _holders(array: jax.Array) -> set[int]:
    return {device.process_index for device in array.sharding.device_set}


def carry_out(prepared: Prepared) -> None:
    """Saves what is planned, on all processes."""
    run(prepared.save, blocks(prepared.save.tensors, prepared.mine, prepared.values))


def prepare(
    name: str,
    path: str | os.PathLike[str],
    tree: Tree,
    max_file_bytes: int | None,
    metadata: Mapping[str, str] | None,
    replicas: str,
    progress: bool | None,
) -> Prepared:
    """Plans a save of safetensors, which writes and communicates nothing."""
    target = local_path(path, name)
    check_replicas(replicas, name)
    if max_file_bytes is not None and max_file_bytes < 1:
        raise build(
            SpecError,
            where=name,
            given=f"max_file_bytes={max_file_bytes}",
            rule="it is a number of bytes, at least 1",
            advice="leave it out for a single file",
        )
    members = members_of(None, name)
    leaves = {key: leaf_of(key, x, members, name) for key, x in named(tree, name).items()}
    index = _index_before(target)
    files, ordered, tensors, stale = _arranged(
        target, leaves, max_file_bytes, metadata, name, _files.named_by(index, target)
    )
    what = (
        f"{name} of {len(leaves)} tensors"
        f" (names, shapes and dtypes {digest([(x.name, x.dtype, x.shape) for x in ordered])},"
        f" layouts {digest([x.boxes for x in ordered])},"
        f" host values {digest([x.mark for x in ordered])},"
        f" options {digest((max_file_bytes, sorted((metadata or {}).items()), replicas))})"
    )
    save = Save(
        what,
        target,
        files,
        tensors,
        after=functools.partial(_remove, stale),
        replaced=index,
        named_by=functools.partial(_left_over, path=target, index=index),
        shows=progress,
    )
    written = {file.path.name: file.size for file in files}
    return Prepared(
        save,
        tuple(x.value for x in ordered),
        plan_of(written, tensors, share_out(tensors), members),
    )


def _arranged(
    path: Path,
    leaves: Mapping[str, Leaf],
    most: int | None,
    metadata: Mapping[str, str] | None,
    name: str,
    before: set[str],
) -> tuple[tuple[File, ...], list[Leaf], tuple[Tensor, ...], list[Path]]:
    """The files, the leaves in the order of their bytes, where each lies, and what is then stale."""
    groups = _files.split({key: _nbytes(leaf) for key, leaf in leaves.items()}, most)
    index = _files.index_path(path)
    beside = set[str]()
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            beside = set(os.listdir(path.parent))
    several = len(groups) > 1
    names = _files.shard_names(path, len(groups), beside) if several else [path.name]
    files: list[File] = []
    ordered: list[Leaf] = []
    tensors: list[Tensor] = []
    for number, (group, file) in enumerate(zip(groups, names, strict=True), 1 if several else 0):
        kinds = {key: (leaves[key].dtype, leaves[key].shape) for key in group}
        head, header = _format.arrange(kinds, metadata, name)
        files.append(File(path.with_name(file), head, header.size))
        for entry in header.entries.values():
            leaf = leaves[entry.name]
            ordered.append(leaf)
            size = leaf.dtype.itemsize
            tensors.append(Tensor(leaf.shape, size, number, entry.start, leaf.boxes))
    stale = [path.with_name(old) for old in sorted(before)]
    if several:
        words = _files.index(groups, names, sum(map(_nbytes, leaves.values())))
        files.insert(0, File(index, words, len(words)))
        stale.append(path)
    elif index.name in beside:
        stale.insert(0, index)
    return tuple(files), ordered, tuple(tensors), stale


def _index_before(path: Path) -> bytes:
    """The index that lies there, on process 0."""
    if jax.process_index() == 0:
        with contextlib.suppress(OSError):
            return _files.index_path(path).read_bytes()
    return b""


def _left_over(contents: bytes, path: Path, index: bytes) -> set[str]:
    """The files of which something left over speaks, and not the index that is there."""
    return _files.named_by(contents, path) - _files.named_by(index, path)


def _nbytes(leaf: Leaf) -> int:
    size = leaf.dtype.itemsize
    for n in leaf.shape:
        size *= n
    return size


def _remove(paths: list[Path]) -> None:
    """Removes what the new files take the place of."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def check_replicas(replicas: str, name: str) -> None:
    """Raises `SpecError` for what `replicas=` cannot be."""
    if replicas not in ("first", "check"):
        raise build(
            SpecError,
            where=name,
            given=f"replicas={replicas!r}",
            rule="it is 'first' or 'check'",
            advice="leave it out to take replicas to be equal",
        )


def local_path(path: str | os.PathLike[str], name: str) -> Path:
    """A path of the file system; `StorageError` for a URL."""
    words = os.fspath(path)
    if "://" in words:
        raise build(
            StorageError,
            where=name,
            given=words,
            rule="processes write parts of one file in place, which needs a file system",
            advice="save to a folder that all hosts share, and upload the file from one of them",
        )
    return Path(words)
