"""Trees as streams of bytes between processes, and what a tree looks like in words."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax
import msgpack
import numpy as np
import numpy.typing as npt
import xxhash
from jax.core import Tracer

from . import _staging, _values
from ._errors import ShapeError, SpecError, build
from ._outward import to_numpy
from ._trees import Tree

Bytes = npt.NDArray[np.uint8]

# Streams up to this many bytes, and together up to so many more, travel with the agreement: a round
# trip, and no program.
INLINE = 2048
_INLINE_TOGETHER = 64 * 1024
# Arrays that come share blocks of up to this size: whoever holds one holds its block.
_BLOCK_BYTES = 1024 * 1024
# Leaves begin at multiples of this in a stream: the largest size of an element.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Kind:
    """Dtype and shape of a leaf; `key` names the implementation where its values are PRNG keys.

    The shape of keys is that of their data.
    """

    dtype: str
    shape: tuple[int, ...]
    key: str = ""

    @functools.cached_property
    def nbytes(self) -> int:
        """The length of the leaf's values."""
        return math.prod(self.shape) * self.numpy.itemsize

    @functools.cached_property
    def padded(self) -> int:
        """The length that it takes in a stream."""
        return _aligned(self.nbytes)

    @functools.cached_property
    def numpy(self) -> np.dtype[Any]:
        """The dtype in NumPy."""
        return np.dtype(self.dtype)

    @functools.cached_property
    def _words(self) -> str:
        name = f"key<{self.key}>" if self.key else self.dtype
        return f"{name}[{','.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        return self._words


def empty(kinds: Sequence[Kind], lead: tuple[int, ...] = ()) -> list[npt.NDArray[Any]]:
    """New arrays for such leaves, or for several of each along new first axes."""
    shapes = [lead + kind.shape for kind in kinds]
    return _staging.buffers(shapes, [kind.numpy for kind in kinds])


def landing(kinds: Sequence[Kind]) -> tuple[list[npt.NDArray[Any]], Stream]:
    """New arrays for such leaves, and their stream.

    Small ones that follow each other share a block of memory, in which they lie as in the stream.
    """
    arrays: list[npt.NDArray[Any]] = []
    spans: list[npt.NDArray[Any]] = []
    start = 0
    while start < len(kinds):
        stop, size = start + 1, kinds[start].padded
        while stop < len(kinds) and size + kinds[stop].padded <= _BLOCK_BYTES:
            size += kinds[stop].padded
            stop += 1
        spans.append(block := _staging.buffer((size,), np.dtype(np.uint8)))
        place = 0
        for kind in kinds[start:stop]:
            arrays.append(np.ndarray(kind.shape, kind.numpy, block, place))
            place += kind.padded
        start = stop
    return arrays, Stream(spans)


@functools.lru_cache(maxsize=4096)
def kind_of(dtype: np.dtype[Any], shape: tuple[int, ...], key: str = "") -> Kind:
    """The kind of values of a dtype and shape: one object for equal ones, as far as they are kept."""
    return Kind(dtype.name, shape, key)


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
    shown = list(map(str, kinds))
    whole = f"{words} {shown}"
    for kind in shown[:6]:
        words = words.replace("*", kind, 1)
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


def pack_kinds(kinds: Sequence[Kind]) -> tuple[Any, list[int]]:
    """Kinds as plain values, for msgpack: the different ones, and which of them each is."""
    numbers: dict[Kind, int] = {}
    which = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
    return [(kind.dtype, kind.shape, kind.key) for kind in numbers], which


def unpack_kinds(packed: Sequence[Any]) -> tuple[Kind, ...]:
    """The inverse of `pack_kinds`."""
    different = [Kind(dtype, tuple(shape), key) for dtype, shape, key in packed[0]]
    return tuple(different[number] for number in packed[1])


def is_inline(nbytes: int, senders: int) -> bool:
    """Whether streams of at most this length travel with the agreement."""
    return nbytes <= min(INLINE, _INLINE_TOGETHER // senders)


def pack(value: object) -> bytes:
    """A plain value as msgpack."""
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def length_of(kinds: Sequence[Kind]) -> int:
    """The length of a stream of such leaves."""
    return sum(kind.padded for kind in kinds)


def rows_of(messages: Sequence[bytes]) -> Bytes:
    """Messages of one length as the rows of an array."""
    return np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), -1)


def joined(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """All of the stream of a few small arrays."""
    return b"".join(array.tobytes().ljust(_aligned(array.nbytes), b"\0") for array in arrays)


def side_by_side(rows: Bytes, kinds: Sequence[Kind]) -> list[npt.NDArray[Any]]:
    """The arrays of as many streams as there are rows, stacked: new ones."""
    found: list[npt.NDArray[Any]] = []
    place = 0
    for kind in kinds:
        part = rows[:, place : place + kind.nbytes].copy()
        found.append(part.view(kind.numpy).reshape(len(rows), *kind.shape))
        place += kind.padded
    return found


def runs(array: npt.NDArray[Any], start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
    """Views that cover the elements `start` to `stop`, in C order, of an array of any strides.

    >>> [run.tolist() for run in runs(np.arange(12).reshape(4, 3), 1, 10)]
    [[1, 2], [[3, 4, 5], [6, 7, 8]], [9]]
    """
    if array.ndim < 2:
        yield array.reshape(-1)[start:stop]
        return
    row = math.prod(array.shape[1:])
    (first, head), (last, tail) = divmod(start, row), divmod(stop, row)
    if first == last:
        yield from runs(array[first], head, tail)
        return
    if head:
        yield from runs(array[first], head, row)
    whole = array[first + bool(head) : last]
    if len(whole):
        yield whole
    if tail:
        yield from runs(array[last], 0, tail)


class Stream:
    """The bytes of several arrays end to end, read and written in pieces.

    The arrays stay where they are, whatever their strides; pieces begin and end between elements.
    With `rows`, the arrays are C-ordered and have a first axis of that size: as many streams of one
    layout side by side, whose pieces have that first axis, too.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], rows: int | None = None) -> None:
        shape = (-1,) if rows is None else (rows, -1)
        # Contiguous arrays as plain bytes: one run each.
        self._plain = [array.flags.c_contiguous for array in arrays]
        self._arrays = [
            array.reshape(shape).view(np.uint8) if plain else array
            for array, plain in zip(arrays, self._plain, strict=True)
        ]
        self._sizes = [array.nbytes // (rows or 1) for array in arrays]
        ends = list(itertools.accumulate(map(_aligned, self._sizes), initial=0))
        self._starts, self.nbytes = ends[:-1], ends[-1]

    def read(self, out: Bytes, start: int) -> None:
        """Fills `out` with the bytes that begin at `start`; past the end it leaves it as it is."""
        for number, low, high, place in self.spans(start, out.shape[-1]):
            array = self._arrays[number]
            if self._plain[number]:
                out[..., place : place + high - low] = array[..., low:high]
                continue
            for run in runs(array, low // array.itemsize, high // array.itemsize):
                out[place : place + run.nbytes].view(run.dtype).reshape(run.shape)[...] = run
                place += run.nbytes

    def write(self, piece: Bytes, start: int) -> None:
        """Writes a piece of the stream into the arrays."""
        for number, low, high, place in self.spans(start, piece.shape[-1]):
            array = self._arrays[number]
            if self._plain[number]:
                array[..., low:high] = piece[..., place : place + high - low]
                continue
            for run in runs(array, low // array.itemsize, high // array.itemsize):
                run[...] = piece[place : place + run.nbytes].view(run.dtype).reshape(run.shape)
                place += run.nbytes

    def tobytes(self) -> bytes:
        """All of the stream, which is short."""
        return joined(self._arrays)

    def spans(self, start: int, length: int) -> Iterator[tuple[int, int, int, int]]:
        """The arrays that share bytes with a piece: number, first and last byte, place in the piece.

        >>> list(Stream([np.zeros(20, np.uint8), np.zeros(3)]).spans(start=16, length=24))
        [(0, 16, 20, 0), (1, 0, 8, 16)]
        """
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        while number < len(self._arrays) and (first := self._starts[number]) < start + length:
            low, high = max(start, first), min(start + length, first + self._sizes[number])
            if low < high:
                yield number, low - first, high - first, low - start
            number += 1


def _aligned(nbytes: int) -> int:
    return _staging.round_up(nbytes, _ALIGNMENT)
