"""Loading: files to global arrays, each process its own bytes."""

from __future__ import annotations

import contextlib
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import jax
import msgpack
import xxhash
from jax.sharding import Mesh, NamedSharding

from .._convert import mesh_for, processes_of
from .._coordination import agree
from .._decisions import together
from .._errors import ShapeError, SpecError, build
from .._moves import telling_members
from .._trees import Tree
from . import _bar, _budget, _explain, _once, _reading
from ._bar import Progress
from ._items import Item, Specs, described, items_of, loads_of, members_of
from ._leaves import name_of, named_specs
from ._npy import add_npy
from ._resolve import Opened, Paths, add_safetensors, open_all
from ._wanted import Axes, DType, Join, Names, Rename, Wanted, abridged, wanted_of

Replicas: TypeAlias = Literal["auto", "read", "once"]
Transpose: TypeAlias = "Mapping[str, Axes] | Sequence[str] | str | None"

_WARN_RATIO, _WARN_BYTES = 2.0, 2**20


@dataclass(frozen=True)
class _Options:
    """The keywords of all loads; see `load_safetensors`."""

    dtype: DType | None = None
    rename: Rename | None = None
    select: Names | None = None
    join: Mapping[str, Join] | None = None
    transpose: Transpose = None
    like: Tree = None
    threads: int | None = None
    progress: Progress = None
    replicas: Replicas = "auto"
    explain: bool = False

    @property
    def keeps_names(self) -> bool:
        """Whether a single array is still what is asked for, rather than a dict or tree."""
        changed = (self.like, self.rename, self.join)
        return not self.explain and all(option is None for option in changed)


class LoadOptions(TypedDict, total=False):
    """`_Options`, for those who check types."""

    dtype: DType | None
    rename: Rename | None
    select: Names | None
    join: Mapping[str, Join] | None
    transpose: Transpose
    like: Tree
    threads: int | None
    progress: Progress
    replicas: Replicas
    explain: bool


def load_safetensors(
    path: Paths,
    mesh: Mesh | None,
    specs: Specs,
    *,
    dtype: DType | None = None,
    rename: Rename | None = None,
    select: Names | None = None,
    join: Mapping[str, Join] | None = None,
    transpose: Transpose = None,
    like: Tree = None,
    threads: int | None = None,
    progress: Progress = None,
    replicas: Replicas = "auto",
    explain: bool = False,
) -> Any:
    """Loads tensors onto a mesh; each process reads the header and the bytes of its own chunks.

    All processes of the mesh make the same call: they agree before and after, and where one fails
    (a file that is missing there, or differs) all raise. Others may make it as well, and get arrays
    without addressable shards.

    Args:
      path: a safetensors file, a folder, a `*.safetensors.index.json`, a list of files, or an
        fsspec URL (extra `hostmesh[remote]`). Every process reads it at this path.
      mesh: the mesh; `None` takes that of the context, as in `to_global`.
      specs: a `PartitionSpec` or `NamedSharding` for all; a mapping of them by name or pattern
        (`"*.weight"`; a name goes before patterns, and the first pattern that matches counts); a
        tree of them, as of the parameters that were saved, whose keys are joined by dots; or a
        function of (name, shape, dtype). `None` with `like` takes the shardings of its leaves.
      dtype: what values become, chunk by chunk; one for all or a mapping by name or pattern. By
        default the stored dtype. 64-bit values follow `config.canonicalize`.
      rename: a mapping or function from stored names to those of the result, which all that follows
        goes by.
      select: which stored tensors: names, patterns, or a function of the name.
      join: new names, each with a `Join` of several tensors to be one: laid side by side on an axis,
        or stacked on a new one. Only own ranges of each are read.
      transpose: patterns of names whose axes are reversed, or a mapping from patterns to axes.
        Transposed before they are joined; a joined name may be given as well.
      like: a pytree of arrays or `jax.ShapeDtypeStruct`s to be filled; a leaf takes the tensor named
        by its key path, joined by dots (zarr: slashes), which has its shape and gets its dtype.
      threads: how many read at a time; by default by the CPUs and processes of the host.
      progress: `True` shows a line on standard error of process 0; a function is called with bytes
        done and in all, on every process. By default `config.progress`.
      replicas: a chunk that several processes hold is read by each (`"read"`), or by one and sent
        on (`"once"`). `"auto"` chooses by bytes and rates.
      explain: gives a `LoadPlan` of who would read what instead. Then nothing is communicated.

    Returns:
      A dict of global arrays by name in the order of the files, or a pytree like `like`.

    Raises:
      StorageError: for a file that cannot be read or is malformed.
      SpecError, ShapeError: one that lists all names that are missing or left over, or all shapes
        that do not fit.
      DivergenceError, StragglerError, ClusterError: on all processes of the mesh, where files or
        calls differ between them, one does not come, or fails.

    >>> import hostmesh, jax, numpy as np, os, safetensors.numpy, tempfile
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "model.safetensors")
    ...     tensors = {"w": np.ones((8 * jax.device_count(), 4), np.float32)}
    ...     safetensors.numpy.save_file(tensors, file)
    ...     hostmesh.load_safetensors(file, mesh, {"w": P("x")})["w"].addressable_shards[
    ...         0
    ...     ].data.shape
    (8, 4)
    """
    options = _Options(
        dtype, rename, select, join, transpose, like, threads, progress, replicas, explain
    )
    return _load("load_safetensors", lambda: open_all(path, add_safetensors), mesh, specs, options)


def load_npy(
    path: Paths,
    mesh: Mesh | None,
    specs: Specs,
    **options: Unpack[LoadOptions],
) -> Any:
    """Loads a `.npy` or `.npz` file onto a mesh; arguments and errors as in `load_safetensors`.

    Of a `.npy` file, and of the entries of a `.npz` that are stored as they are (`numpy.savez`),
    each process reads its own ranges; a compressed entry is read whole by each process that holds
    any of it. Nothing is unpickled. It communicates as `load_safetensors` does.

    Returns:
      The global array of a `.npy` file, which is named `"array"` where names count; a dict of those
      of a `.npz`.

    >>> import hostmesh, jax, numpy as np, os, tempfile
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(
    ...         os.path.join(folder, "x.npy"), np.arange(4 * jax.device_count(), dtype=np.int32)
    ...     )
    ...     x = hostmesh.load_npy(os.path.join(folder, "x.npy"), mesh, P("x"))
    >>> x.addressable_shards[0].data.shape
    (4,)
    """
    return _load("load_npy", lambda: open_all(path, add_npy), mesh, specs, _Options(**options))


def load_zarr(
    store: Any,
    mesh: Mesh | None,
    specs: Specs,
    **options: Unpack[LoadOptions],
) -> Any:
    """Loads a zarr array or group (format 2 or 3) onto a mesh, by the `zarr` package.

    Each process reads the zarr chunks that overlap its own. Arguments, errors and communication as
    in `load_safetensors`; extra `hostmesh[zarr]`.

    Args:
      store: a path, a URL, or whatever `zarr.open` takes.

    Returns:
      The global array of a zarr array, which is named `"array"` where names count; of a group a dict
      by path within it.

    >>> import hostmesh, jax, numpy as np, os, tempfile, zarr
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     values = np.arange(4 * jax.device_count(), dtype=np.int32)
    ...     store = zarr.save(os.path.join(folder, "x.zarr"), values)
    ...     x = hostmesh.load_zarr(os.path.join(folder, "x.zarr"), mesh, P("x"))
    >>> x.addressable_shards[0].data.shape
    (4,)
    """
    from ._zarr import open_zarr

    return _load("load_zarr", lambda: open_zarr(store), mesh, specs, _Options(**options), "/")


def _load(
    function: str,
    open_files: Callable[[], Opened],
    mesh: Mesh | None,
    specs: Specs,
    options: _Options,
    joint: str = ".",
) -> Any:
    me = jax.process_index()
    where = f"{function} on process {me}"
    wanted_by = _Like(options.like, joint, where) if options.like is not None else None
    specs = named_specs(specs, joint)
    if wanted_by is not None:
        specs = wanted_by.specs if specs is None else specs
    members = () if options.explain else _likely_members(mesh, specs)
    telling = contextlib.nullcontext() if options.explain else telling_members(function, members)
    with contextlib.ExitStack() as stack:
        with telling:
            opened = open_files()
            stack.callback(opened.close)
            items = _items(opened, mesh, specs, options, wanted_by, where)
            members = members_of(items) or members
            is_remote = any(source.is_remote for source in opened.sources)
            # Local files are read faster than processes send: no numbers decide.
            load = loads_of(items, me) if is_remote else _once.Load(0, 0)
            mode, why = _once.choose(options.replicas, [load], is_remote, where)
            _warn(items, opened, mode, function)
        if options.explain:
            mode, why = _once.choose(
                options.replicas, [loads_of(items, p) for p in members], is_remote, where
            )
            staging = _budget.Budget(_reading.config.staging_bytes, 1).share
            return _explain.explained(function, items, opened.sources, mode, why, staging, me)
        here = socket.gethostname()
        processes_here = 1
        if me in members and len(members) > 1:
            rate = opened_rate(opened)
            data = msgpack.packb((here, load.own, load.share, rate))
            agreed = agree(_in_words(function, items), data=data, processes=members)
            told = [msgpack.unpackb(each) for each in agreed.data]
            processes_here = sum(each[0] == here for each in told)
            loads = [_once.Load(*each[1:]) for each in told]
            mode, _ = _once.choose(options.replicas, loads, is_remote, where)
        if me not in members or len(members) == 1:
            mode = "read"
        total = sum(item.weight for item in items)
        bar = _bar.Bar(options.progress, total, function)
        budget = _reading.budget_of(processes_here)
        ending = (
            together(f"{function}: read", processes=members)
            if me in members and len(members) > 1
            else contextlib.nullcontext()
        )
        with ending:
            arrays = _reading.read(
                items,
                opened.sources,
                mode,
                members,
                budget,
                options.threads,
                processes_here,
                bar,
                function,
            )
    found = {item.wanted.name: array for item, array in zip(items, arrays, strict=True)}
    if opened.is_single and options.keeps_names:
        return found[opened.stored[0].name]
    return found if wanted_by is None else wanted_by.filled(found)


def _items(
    opened: Opened,
    mesh: Mesh | None,
    specs: Specs,
    options: _Options,
    like: _Like | None,
    where: str,
) -> list[Item]:
    wanted = wanted_of(
        opened.stored,
        where,
        select=options.select,
        rename=options.rename,
        transpose=options.transpose,
        join=options.join,
    )
    dtype = options.dtype
    if like is not None:
        wanted = like.chosen(wanted)
        dtype = like.dtypes if dtype is None else dtype
    listed: Sequence[Any] = [specs]
    if isinstance(specs, Mapping):
        listed = list(specs.values())
    is_known = bool(listed) and all(isinstance(spec, NamedSharding) for spec in listed)
    mesh = mesh_for(mesh, listed if is_known or mesh is None else [], where)
    return items_of(wanted, mesh, specs, dtype, where)


def opened_rate(opened: Opened) -> float:
    """Bytes a second that were measured of remote files, 0 where there are none."""
    if not any(source.is_remote for source in opened.sources):
        return 0.0
    from ._remote import measured_rate

    return measured_rate()


def _likely_members(mesh: Mesh | None, specs: Specs) -> tuple[int, ...]:
    """Who takes part, as far as it can be told before the files are read."""
    tree: Any = None if callable(specs) else dict(specs) if isinstance(specs, Mapping) else specs
    return processes_of(mesh, tree)


def _in_words(function: str, items: Sequence[Item]) -> str:
    nbytes = sum(item.plan.device_nbytes(item.recipe.dtype) for item in items)
    digest = xxhash.xxh3_64_hexdigest(described(items).encode("utf-8", "surrogatepass"))
    return f"{function} of {len(items)} tensors, {nbytes} bytes a device, digest {digest}"


def _warn(items: Sequence[Item], opened: Opened, mode: _once.Mode, function: str) -> None:
    if not any(map(_explain.has_short_runs, items)):
        return
    useful, touched = _explain.wasted(items, opened.sources, mode, jax.process_index())
    if touched > _WARN_RATIO * useful and touched - useful > _WARN_BYTES:
        warnings.warn(
            f"{function}: this layout reads in tiny pieces: storage gives {touched / useful:.1f}"
            f" times the {useful} bytes that this process uses. Cut earlier dimensions, or read"
            " another layout and reshard",
            stacklevel=4,
        )


class _Like:
    """A pytree that is to be filled, by the names of its leaves."""

    def __init__(self, tree: Tree, joint: str, where: str) -> None:
        self._where = where
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._leaves = {name_of(path, joint): leaf for path, leaf in leaves}
        self._names = [name_of(path, joint) for path, _ in leaves]
        self.dtypes: dict[str, Any] = {n: x.dtype for n, x in self._leaves.items()}
        self.specs: dict[str, Any] = {
            n: x.sharding
            for n, x in self._leaves.items()
            if isinstance(getattr(x, "sharding", None), NamedSharding)
        }

    def chosen(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """The tensors of the leaves; an error lists all that are not there, left over, or wrong."""
        by_name = {each.name: each for each in wanted}
        lacking = [repr(name) for name in self._leaves if name not in by_name]
        left = [repr(name) for name in by_name if name not in self._leaves]
        wrong = [
            f"{name!r} {list(by_name[name].shape)}, not {list(leaf.shape)}"
            for name, leaf in self._leaves.items()
            if name in by_name and by_name[name].shape != tuple(leaf.shape)
        ]
        given = [f"missing: {abridged(lacking)}"] if lacking else []
        given += [f"left over: {abridged(left)}"] if left else []
        given += [f"of another shape: {abridged(wrong)}"] if wrong else []
        if given:
            raise build(
                SpecError if lacking or left else ShapeError,
                where=self._where,
                given="; ".join(given),
                rule="each leaf of like takes the tensor of its name and shape, and none is left",
                advice="rename, select or transpose what is stored, or correct like",
            )
        return list(wanted)

    def filled(self, found: Mapping[str, jax.Array]) -> Tree:
        """The pytree with its arrays."""
        return jax.tree.unflatten(self._structure, [found[name] for name in self._names])
