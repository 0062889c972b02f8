"""Trees as streams of bytes between processes, and what a tree looks like in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax
import msgpack
import numpy as np
import numpy.typing as npt
import xxhash
from jax.core import Tracer

from . import _moments, _values
from ._errors import ShapeError, SpecError, build
from ._kinds import Kind, kind_of, length_of, runs_of
from ._outward import to_numpy
from ._stream import Bytes, Stream
from ._trees import Tree

# Streams up to this many bytes, and together up to so many more, travel with the agreement: a round
# trip, and no program, which takes twice as long here. From 64 KiB each the service takes longer.
INLINE = 16 * 1024
_INLINE_TOGETHER = 64 * 1024


@dataclass(frozen=True)
class Parcel:
    """A tree with its leaves as NumPy arrays: what one process passes to a collective.

    Global arrays are set apart, by the numbers of their leaves, where they are asked for.
    """

    structure: Any
    kinds: tuple[Kind, ...]
    arrays: tuple[npt.NDArray[Any], ...]
    globals: tuple[tuple[int, jax.Array, Kind], ...] = ()

    @property
    def nbytes(self) -> int:
        """The length of the stream of all leaves."""
        return length_of(self.kinds)

    def described(self) -> str:
        """The tree in words, abridged, with a digest of all of it: equal for equal trees only."""
        return describe(str(self.structure), self.kinds)

    def stream(self) -> Stream:
        """The bytes of all leaves."""
        return Stream(self.arrays)


def parcel(tree: Tree, function: str, *, with_globals: bool = False) -> Parcel:
    """Looks at a tree of host-local values; `ShapeError` or `SpecError` names a leaf that is none.

    With `with_globals` arrays that are not fully addressable are taken too, as they are.
    """
    tree = _moments.passed(function, tree)
    leaves, structure = jax.tree.flatten(tree)
    kinds: list[Kind] = []
    arrays: list[npt.NDArray[Any]] = []
    globals_: list[tuple[int, jax.Array, Kind]] = []
    for number, leaf in enumerate(leaves):
        array, key = leaf, ""
        if isinstance(leaf, np.generic):
            array = leaf = np.asarray(leaf)
        if type(leaf) is not np.ndarray or leaf.dtype.kind not in "fiub" or not leaf.dtype.isnative:
            if with_globals and is_global(leaf):
                data, key = key_data(leaf)
                globals_.append((number, data, kind_of(np.dtype(data.dtype), data.shape, key)))
                continue
            array, key = host_array(leaf, tree, number, function)
        kinds.append(kind_of(array.dtype, array.shape, key))
        arrays.append(array)
    return Parcel(structure, tuple(kinds), tuple(arrays), tuple(globals_))


def is_global(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf is an array with parts on other processes."""
    return isinstance(leaf, jax.Array) and not (
        isinstance(leaf, Tracer) or leaf.is_fully_addressable
    )


def key_data(leaf: jax.Array) -> tuple[jax.Array, str]:
    """The data of PRNG keys and the name of their implementation; other arrays as they are."""
    if not _values.is_key(leaf.dtype):
        return leaf, ""
    return jax.random.key_data(leaf), str(jax.random.key_impl(leaf))


def host_array(leaf: Any, tree: Tree, number: int, function: str) -> tuple[npt.NDArray[Any], str]:
    """Leaf `number` of a tree as NumPy, and the implementation of its keys; errors name its path."""

    def where() -> str:
        path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[number][0])
        return f"leaf {path or 'of the value'} on process {jax.process_index()} ({function})"

    key = ""
    if isinstance(leaf, jax.Array):
        if isinstance(leaf, Tracer):
            raise build(
                SpecError,
                where=where(),
                given="a traced value",
                rule="what goes between processes outside jit must have values",
                advice="call it outside jit, grad and vmap; inside jit use jax.lax collectives",
            )
        leaf, key = key_data(leaf)
        if not leaf.is_fully_addressable:
            raise build(
                ShapeError,
                where=where(),
                given=f"a global array of shape {leaf.shape} on several processes",
                rule=f"{function} takes host-local values",
                advice="gather it with allgather or gather, or take to_local of it",
            )
        return to_numpy(leaf), key
    array = _values.as_host_array(leaf, where())
    _values.device_dtype(array.dtype, x64=True)
    return array.astype(array.dtype.newbyteorder("="), copy=False), key


def finished(array: npt.NDArray[Any], kind: Kind, as_jax: bool) -> Any:
    """A result as it is handed out: keys as keys, others as NumPy or, if asked for, as arrays."""
    if kind.key:
        return jax.random.wrap_key_data(jax.device_put(array), impl=kind.key)
    if not as_jax:
        return array
    target = np.empty(array.shape, _values.device_dtype(array.dtype, _values.x64_enabled()))
    _values.convert(array, target, "a result with as_jax=True")
    return jax.device_put(target)


def describe(structure: str, kinds: Sequence[Kind]) -> str:
    """A structure with the kinds of its leaves in words, abridged."""
    words = structure.removeprefix("PyTreeDef(").removesuffix(")")
    whole = f"{words} {[(str(kind), count) for kind, count in runs_of(kinds)]}"
    for kind in kinds[:6]:
        words = words.replace("*", str(kind), 1)
    if len(whole) <= 200 and len(kinds) <= 6:
        return words
    digest = xxhash.xxh3_64_hexdigest(whole.encode())
    return f"{words[:160]}... ({len(kinds)} leaves, {length_of(kinds)} bytes, digest {digest})"


def plain_structure(structure: Any) -> bytes:
    """A structure of dicts, lists, tuples and `None` as bytes; empty where it has other types."""
    try:
        return structure.serialize_using_proto()
    except ValueError:
        return b""


def structure_of(plain: bytes) -> Any:
    """The inverse of `plain_structure`. Nothing is unpickled."""
    registry = jax.tree_util.default_registry
    return jax.tree_util.PyTreeDef.deserialize_using_proto(registry, plain)


def is_inline(nbytes: int, senders: int) -> bool:
    """Whether streams of at most this length travel with the agreement."""
    return nbytes <= min(INLINE, _INLINE_TOGETHER // senders)


def pack(value: object) -> bytes:
    """A plain value as msgpack."""
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def rows_of(messages: Sequence[bytes]) -> Bytes:
    """Messages of one length as the rows of an array."""
    return np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), -1)


def side_by_side(rows: Bytes, kinds: Sequence[Kind]) -> list[npt.NDArray[Any]]:
    """The arrays of as many streams as there are rows, stacked: new ones."""
    found: list[npt.NDArray[Any]] = []
    place = 0
    for kind in kinds:
        part = rows[:, place : place + kind.nbytes].copy()
        found.append(part.view(kind.numpy).reshape(len(rows), *kind.shape))
        place += kind.padded
    return found
