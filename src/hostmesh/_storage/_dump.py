"""Each process's own shards in a file of its own, for looking at a bad step without the cluster.

A file is safetensors, so that other tools read it too; what its tensors are part of stands in its
metadata. Values whose dtype the format lacks are stored as bytes.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _jax, _values
from .._errors import StorageError, build
from .._packing import key_data
from .._plan import Bounds, Index, Shape, bounds
from .._shards import from_callback
from .._trees import Tree
from .._verdict import name_processes
from . import _atomic, _format
from ._boxes import elements, is_empty, overlap, within
from ._leaves import named
from ._local import LocalFile
from ._resolve import read_header
from ._source import LIMITS, is_countable
from ._writing import write_all

HostArray: TypeAlias = npt.NDArray[Any]

_NAME = "process-{:05d}-of-{:05d}.safetensors"
_PATTERN = re.compile(r"process-(\d{5,})-of-(\d{5,})\.safetensors")
_METADATA = "hostmesh.dump"
_MOST_NAMED = 2**16


@dataclass(frozen=True)
class _Part:
    """A part of a leaf in one process's file."""

    process: int
    place: Bounds
    values: HostArray


@dataclass(frozen=True)
class _Leaf:
    """A leaf in all files: `key` names the implementation of PRNG keys, whose data it holds."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    key: str
    spec: tuple[Any, ...]
    parts: tuple[_Part, ...]


def dump_local(tree: Tree, folder: str | os.PathLike[str]) -> None:
    """Writes what this process holds of a pytree to a file of its own, for `load_local` to read.

    Nothing is communicated, so that it works where other processes hang or are gone. Shards that
    should be equal and are not, on devices of this process too, are all kept.

    Args:
      tree: arrays by name, as for `save_safetensors`: global arrays, of which this process's shards
        are written, and host-local values and PRNG keys, which are written whole.
      folder: where the file goes; made if it is not there. It may be this host's own.

    Raises:
      StorageError: where it cannot be written. A file that was there is then as it was.
      ShapeError: for a leaf that is no array.

    >>> import hostmesh, numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hostmesh.dump_local({"w": np.arange(3)}, folder)
    ...     hostmesh.load_local(folder)["w"]
    array([0, 1, 2])
    """
    me, count = jax.process_index(), jax.process_count()
    where = f"dump_local({os.fspath(folder)!r}) on process {me}"
    arrays: dict[str, HostArray] = {}
    leaves: dict[str, Any] = {}
    for name, leaf in named(tree, where).items():
        data, key = key_data(leaf) if isinstance(leaf, jax.Array) else (leaf, "")
        parts = _own_parts(data, f"{where}, leaf {name!r}")
        first = parts[0][1] if parts else data
        chunks: dict[str, Any] = {}
        for place, values in parts:
            stored = f"{name}[{', '.join(f'{a}:{b}' for a, b in place)}]"
            while stored in arrays:  # not as the one before it
                stored += "'"
            arrays[stored] = values
            chunks[stored] = place
        sharding = getattr(data, "sharding", None)
        leaves[name] = {
            "dtype": np.dtype(first.dtype).name,
            "shape": data.shape if isinstance(data, jax.Array) else first.shape,
            "key": key,
            "spec": list(sharding.spec) if isinstance(sharding, NamedSharding) else [],
            "chunks": chunks,
        }
    _write(Path(folder), _NAME.format(me, count), arrays, leaves, where)


def _own_parts(leaf: Any, where: str) -> list[tuple[Bounds, HostArray]]:
    """The different parts of a leaf that are here, by where they lie."""
    if not isinstance(leaf, jax.Array):
        host = _values.as_host_array(leaf, where)
        host = np.asarray(host, host.dtype.newbyteorder("="), order="C")
        return [(tuple((0, size) for size in host.shape), host)]
    found: defaultdict[Bounds, dict[bytes, HostArray]] = defaultdict(dict)
    indices = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    on = _jax.parts_by_device(leaf)
    for device, index in indices.items():
        assert index is not None  # it is one of this process's
        values = np.ascontiguousarray(_jax.fetch(on[device])).reshape(on[device].shape)
        found[bounds(index, leaf.shape)].setdefault(values.tobytes(), values)
    return [(place, values) for place, each in sorted(found.items()) for values in each.values()]


def _write(
    folder: Path, name: str, arrays: dict[str, HostArray], leaves: dict[str, Any], where: str
) -> None:
    stored = {key: _storable(values) for key, values in arrays.items()}
    kinds = {key: (values.dtype, values.shape) for key, values in stored.items()}
    words = json.dumps({"version": 1, "leaves": leaves})
    head, header = _format.arrange(kinds, {_METADATA: words}, where)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = _atomic.Temporaries(folder / name, _atomic.new_token(), [folder / name])
        _atomic.remove_left_overs(folder / name)
        try:
            files.make([head], [header.size])
            with open(files.names[0], "r+b", buffering=0) as file:
                for key, entry in header.entries.items():
                    values = stored[key].reshape(-1).view(np.uint8)
                    write_all(file.fileno(), [values], entry.start)
                os.fsync(file.fileno())
            files.rename()
        finally:
            files.remove()
    except OSError as error:
        raise build(
            StorageError,
            where=where,
            given=str(error),
            rule=f"this process writes {header.size} bytes to {name}",
            advice="see to room and permission, or name another folder",
        ) from error


def _storable(values: HostArray) -> HostArray:
    if _format.has(values.dtype):
        return values
    return values.reshape(-1).view(np.uint8)


def load_local(folder: str | os.PathLike[str], mesh: Mesh | None = None) -> dict[str, Any]:
    """Reads what processes have dumped to a folder, on any number of processes: one will do.

    Nothing is communicated. The files of all processes, or of as many as hold every part, are in the
    folder. Where processes, or devices of one, hold different values for the same part, the first
    process's are taken, and a warning says where they first differ.

    Args:
      folder: where `dump_local` wrote, or where its files were brought together.
      mesh: the mesh to place arrays on, by the specs that they had; axes that it lacks cut nothing.
        By default whole NumPy arrays.

    Returns:
      A dict by name: of NumPy arrays, PRNG keys as JAX arrays, or with a mesh of global arrays.

    Raises:
      StorageError: for a file that is malformed or of another dump, and for parts that no file
        holds; it names their processes.

    >>> import hostmesh, jax, numpy as np, tempfile
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hostmesh.dump_local({"w": np.arange(3)}, folder)
    ...     hostmesh.load_local(folder, Mesh(jax.local_devices(), "x"))["w"].sharding.spec
    P(None,)
    """
    where = f"load_local({os.fspath(folder)!r})"
    leaves, absent = _read(Path(folder), where)
    found: dict[str, Any] = {}
    for name, leaf in leaves.items():
        _warn_of_differences(leaf, where)

        def read(index: Index, leaf: _Leaf = leaf) -> HostArray:
            return _assembled(leaf, bounds(index, leaf.shape), absent, where)

        if mesh is None:
            found[name] = read(tuple(slice(0, size) for size in leaf.shape))
        else:
            found[name] = from_callback(
                leaf.shape, mesh, _spec_on(leaf, mesh), read, dtype=leaf.dtype
            )
        if leaf.key:
            try:
                found[name] = jax.random.wrap_key_data(found[name], impl=leaf.key)
            except (TypeError, ValueError) as error:
                _refuse(
                    f"{where}, leaf {name!r}",
                    f"{leaf.dtype}{list(leaf.shape)} as keys {leaf.key!r}: {str(error)[:200]}",
                    "PRNG keys are of a kind that this JAX has",
                    "read it with the JAX that wrote it",
                )
    return found


def _spec_on(leaf: _Leaf, mesh: Mesh) -> PartitionSpec:
    cuts: list[tuple[str, ...] | None] = [None] * len(leaf.shape)
    for number, axes in enumerate(leaf.spec):
        cuts[number] = tuple(axis for axis in axes if axis in mesh.axis_names) or None
    return PartitionSpec(*cuts)


def _assembled(leaf: _Leaf, place: Bounds, absent: Sequence[int], where: str) -> HostArray:
    """The values at a place, of the parts that overlap it; the first process's go before others."""
    overlaps = [(overlap(place, part.place), part) for part in reversed(leaf.parts)]
    overlaps = [(common, part) for common, part in overlaps if not is_empty(common)]
    lacking = elements(place) - sum(elements(common) for common, _ in overlaps)
    if lacking > 0:  # before memory for what no file holds
        _refuse_absent(leaf, lacking, elements(place), absent, where)
    out = np.empty(tuple(b - a for a, b in place), leaf.dtype)
    filled = np.zeros(out.shape, np.bool_)
    for common, part in overlaps:
        here = within(common, place)
        out[here] = part.values[within(common, part.place)]
        filled[here] = True
    if not filled.all():
        lacking = int(filled.size - filled.sum())
        _refuse_absent(leaf, lacking, filled.size, absent, where)
    return out


def _refuse_absent(
    leaf: _Leaf, lacking: int, count: int, absent: Sequence[int], where: str
) -> NoReturn:
    _refuse(
        f"{where}, leaf {leaf.name!r}",
        f"{lacking} of {count} elements in no file",
        f"the folder lacks the files of {name_processes(absent)}"
        if absent
        else "each element is in the file of a process",
        "bring the files of all hosts together in the folder",
    )


def _warn_of_differences(leaf: _Leaf, where: str) -> None:
    first: dict[Bounds, _Part] = {}
    for part in leaf.parts:
        other = first.setdefault(part.place, part)
        if other is part or part.values.tobytes() == other.values.tobytes():
            continue
        a, b = (x.values.reshape(x.values.shape or (1,)) for x in (other, part))
        unlike = a.view(np.uint8) != b.view(np.uint8)
        unlike = unlike.reshape(*a.shape, -1).any(-1)
        index = tuple(int(i) for i in np.argwhere(unlike)[0])
        at = tuple(i + low for i, (low, _) in zip(index, part.place, strict=False))
        warnings.warn(
            f"{where}: leaf {leaf.name!r} differs between process {other.process} and process"
            f" {part.process} in {int(unlike.sum())} of {unlike.size} elements, first at {at}:"
            f" {a[index]} and {b[index]}",
            stacklevel=3,
        )


def _read(folder: Path, where: str) -> tuple[dict[str, _Leaf], list[int]]:
    """All leaves of the files in a folder, and the processes whose files are not there."""
    try:
        matches = {name: _PATTERN.fullmatch(name) for name in sorted(os.listdir(folder))}
    except OSError as error:
        _refuse(where, str(error), "it is a folder that dump_local wrote", "correct the path")
    files = {name: (int(m[1]), int(m[2])) for name, m in matches.items() if m}
    counts = {count for _, count in files.values()}
    if len(counts) != 1:
        _refuse(
            where,
            f"files of {', '.join(f'{n} processes' for n in sorted(counts)) or 'no process'}",
            "a folder holds the files of one dump",
            "dump to a new folder",
        )
    found: dict[str, _Leaf] = {}
    for name, (process, _) in sorted(files.items(), key=lambda item: item[1]):
        for leaf in _leaves_of(folder / name, process, f"{where}, {name}"):
            known = found.get(leaf.name)
            if known is None:
                found[leaf.name] = leaf
                continue
            same = (known.dtype, known.shape, known.key) == (leaf.dtype, leaf.shape, leaf.key)
            if not same:
                _refuse(
                    f"{where}, leaf {leaf.name!r}",
                    f"{leaf.dtype}{list(leaf.shape)} in {name}",
                    f"it is {known.dtype}{list(known.shape)} in the files before",
                    "dump to a new folder",
                )
            parts = known.parts + leaf.parts
            found[leaf.name] = _Leaf(
                known.name, known.dtype, known.shape, known.key, known.spec, parts
            )
    there = {process for process, _ in files.values()}
    return found, [p for p in range(min(counts.pop(), _MOST_NAMED)) if p not in there]


def _leaves_of(path: Path, process: int, where: str) -> list[_Leaf]:
    file = LocalFile(path)
    try:
        header = read_header(file, where)
        data = file.mapped()
    finally:
        file.close()
    leaves: list[_Leaf] = []
    try:
        for name, told in json.loads(header.metadata[_METADATA])["leaves"].items():
            shape, dtype = tuple(map(int, told["shape"])), np.dtype(told["dtype"])
            if not is_countable(shape):
                raise ValueError(f"shape {list(shape)}; {LIMITS}")
            spec = [[axes] if isinstance(axes, str) else axes or [] for axes in told["spec"]]
            if len(spec) > len(shape) or not all(isinstance(a, str) for cut in spec for a in cut):
                raise ValueError(f"spec {told['spec']}")
            parts: list[_Part] = []
            for stored, listed in told["chunks"].items():
                entry = header.entries[stored]
                place = tuple((int(a), int(b)) for a, b in listed)
                if len(place) != len(shape) or not all(
                    0 <= a <= b <= n for (a, b), n in zip(place, shape, strict=True)
                ):
                    raise ValueError(f"{stored!r} lies outside its leaf")
                values = data[entry.start : entry.stop].view(dtype)
                parts.append(_Part(process, place, values.reshape([b - a for a, b in place])))
            leaves.append(
                _Leaf(name, dtype, shape, str(told["key"]), tuple(map(tuple, spec)), tuple(parts))
            )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        _refuse(
            where,
            f"metadata that is none of dump_local's: {type(error).__name__}: {str(error)[:200]}",
            "dump_local notes there what the tensors are part of",
            "dump anew",
        )
    return leaves


def _refuse(where: str, given: str, rule: str, advice: str) -> NoReturn:
    raise build(StorageError, where=where, given=given, rule=rule, advice=advice)
