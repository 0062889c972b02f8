"""What a leaf is, in a stream of bytes: dtype and shape."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._staging import round_up

# Leaves begin at multiples of this in a stream: the largest size of an element.
ALIGNMENT = 16


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


def unpack_kinds(packed: Sequence[Any]) -> tuple[Kind, ...]:
    """The inverse of `pack_kinds`."""
    kinds: list[Kind] = []
    for dtype, shape, key, count in packed:
        kinds += [Kind(dtype, tuple(shape), key)] * count
    return tuple(kinds)
