"""The leaves of a pytree as tensors with names, and who holds which part of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
import xxhash
from jax.sharding import PartitionSpec

from .. import _values
from .._errors import StorageError, build
from .._outward import to_numpy
from .._plan import Shape
from .._trees import Tree
from ._boxes import elements
from ._shares import Box, boxes_of


@dataclass(frozen=True)
class Leaf:
    """A tensor to be saved: a `jax.Array`, or a host array that all processes have.

    `mark` tells host values apart from others; it is empty for arrays on devices.
    """

    name: str
    value: Any
    dtype: np.dtype[Any]
    shape: Shape
    boxes: tuple[Box, ...]
    mark: str = ""


def named(tree: Tree, function: str, joint: str = ".") -> dict[str, Any]:
    """The leaves of a tree by name: its keys, joined by dots or another `joint`, in the tree's order.

    Raises `StorageError` for a tree that is one leaf, and for two leaves of one name.

    >>> named({"layer": [{"w": 1}, {"w": 2}], "b.c": 3}, "save")
    {'b.c': 3, 'layer.0.w': 1, 'layer.1.w': 2}
    """
    found: dict[str, Any] = {}
    paths: dict[str, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = name_of(path, joint)
        shown = jax.tree_util.keystr(path)
        if not path:
            raise build(
                StorageError,
                where=function,
                given=f"a single {type(leaf).__name__}",
                rule="tensors are saved by name, and this one has none",
                advice='pass {"name": array}',
            )
        if name in found:
            raise build(
                StorageError,
                where=function,
                given=f"leaves {paths[name]} and {shown}",
                rule=f"both have the name {name!r}: keys are joined by {joint!r}",
                advice="rename one of them",
            )
        found[name], paths[name] = leaf, shown
    return found


def name_of(path: Sequence[Any], joint: str = ".") -> str:
    """The name of a leaf by its key path."""
    return joint.join(map(_word, path))


def _word(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def named_specs(specs: Any, joint: str = ".") -> Any:
    """A tree of specs, of dicts, lists and tuples, by the names of its leaves; all else as it is.

    In the order given, which counts among patterns: JAX would sort the keys.

    >>> named_specs({"*": 1, "layer": [{"w": 2}, {"w": 3}]})
    {'*': 1, 'layer.0.w': 2, 'layer.1.w': 3}
    """
    if isinstance(specs, Mapping):
        pairs = list(cast("Mapping[object, Any]", specs).items())
    elif isinstance(specs, list | tuple) and not isinstance(specs, PartitionSpec):
        pairs = list(enumerate(cast("Sequence[Any]", specs)))
    else:
        return specs
    found: dict[str, Any] = {}
    for key, below in pairs:
        inner = named_specs(below, joint)
        if inner is below:
            found[str(key)] = below
        else:
            found |= {f"{key}{joint}{name}": spec for name, spec in inner.items()}
    return found


def leaf_of(name: str, value: Any, members: Sequence[int], function: str) -> Leaf:
    """One leaf of a save in which `members` take part.

    Raises `StorageError` for PRNG keys, and `ShapeError` for what is no array.
    """
    where = f"{function} on process {jax.process_index()}" + (f", tensor {name!r}" if name else "")
    if isinstance(value, jax.Array) and _values.is_key(value.dtype):
        raise build(
            StorageError,
            where=where,
            given=f"PRNG keys of dtype {value.dtype}",
            rule="the format has numbers only",
            advice="save jax.random.key_data(keys), and wrap_key_data it when it is read",
        )
    if isinstance(value, jax.Array) and (len(members) == 1 or not value.is_fully_addressable):
        shape = tuple(value.shape)
        return Leaf(name, value, np.dtype(value.dtype), shape, boxes_of(value.sharding, shape))
    # On this process alone: all must have it alike, and all hold it then.
    host = to_numpy(value) if isinstance(value, jax.Array) else _values.as_host_array(value, where)
    host = np.asarray(host, host.dtype.newbyteorder("="), order="C")
    whole = tuple((0, size) for size in host.shape)
    boxes = (Box(whole, tuple(members)),) if elements(whole) else ()
    mark = ""
    if len(members) > 1:
        mark = xxhash.xxh3_64_hexdigest(host.reshape(-1).view(np.uint8).data)
    return Leaf(name, host, host.dtype, host.shape, boxes, mark)


def digest(value: object) -> str:
    """A short word that equal values have alike, and others hardly ever."""
    return xxhash.xxh3_64_hexdigest(repr(value).encode())[:8]
