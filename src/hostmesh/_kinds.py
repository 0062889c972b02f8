"""What a leaf is, in a stream of bytes: dtype and shape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import ClusterError, build
from ._staging import round_up

# Leaves begin at multiples of this in a stream: the largest size of an element.
ALIGNMENT = 16
# Leaves without bytes that a message may claim beyond its length.
_EMPTY = 2**16


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
        return round_up(self.nbytes, ALIGNMENT)

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


@functools.lru_cache(maxsize=4096)
def kind_of(dtype: np.dtype[Any], shape: tuple[int, ...], key: str = "") -> Kind:
    """The kind of values of a dtype and shape: one object for equal ones, as far as they are kept."""
    return Kind(dtype.name, shape, key)


def runs_of(kinds: Sequence[Kind]) -> list[tuple[Kind, int]]:
    """Kinds as runs of equal ones with their lengths: the leaves of a model are mostly alike.

    >>> a, b = Kind("float32", ()), Kind("int8", (2,))
    >>> [(str(kind), count) for kind, count in runs_of([a, a, b])]
    [('float32[]', 2), ('int8[2]', 1)]
    """
    return [(kind, len(list(run))) for kind, run in itertools.groupby(kinds)]


def length_of(kinds: Sequence[Kind]) -> int:
    """The length of a stream of such leaves."""
    return sum(kind.padded * count for kind, count in runs_of(kinds))


def pack_kinds(kinds: Sequence[Kind]) -> list[Any]:
    """Kinds as plain values, for msgpack."""
    return [(kind.dtype, kind.shape, kind.key, count) for kind, count in runs_of(kinds)]


def unpack_kinds(packed: Sequence[Any], most: int | None = None) -> tuple[Kind, ...]:
    """The inverse of `pack_kinds`, for what came from another process: nothing of it is taken on trust.

    Raises:
      ClusterError: for kinds that are none, or of objects, whose bytes would be read as pointers,
        and for values of more than `most` bytes, before memory is taken for them.
    """
    kinds: list[Kind] = []
    try:
        for dtype, shape, key, count in packed:
            kind = Kind(dtype, tuple(shape), key)
            numbers = (*kind.shape, count)
            if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(key, str):
                raise ValueError(f"sizes {numbers[:8]}")
            if not isinstance(dtype, str) or kind.numpy.hasobject:
                raise ValueError(f"dtype {dtype!r}")
            if most is not None and (kind.padded * count > most or count > most + _EMPTY):
                raise ValueError(f"{count} of {str(kind)[:80]} in {most} bytes")
            kinds += [kind] * count
    except (TypeError, ValueError, OverflowError) as error:
        raise malformed(f"arrays that cannot be: {error}") from None
    if most is not None and length_of(kinds) > most:
        raise malformed(f"arrays of {length_of(kinds)} bytes in {most}")
    return tuple(kinds)


def malformed(given: str) -> ClusterError:
    """The error of a message that no process of this version would have sent."""
    return build(
        ClusterError,
        where="a message of another process",
        given=given[:300],
        rule="it is what hostmesh packs, of the length that was agreed",
        advice="run the same versions of hostmesh and its dependencies on all processes",
    )
