"""What is read: stored tensors, boxes of them, and where their values go. No file is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .._plan import Bounds, Shape
from ._boxes import within

HostArray: TypeAlias = npt.NDArray[Any]
# Something to do in whatever thread, in no order; it reads and writes its own part.
Job: TypeAlias = Callable[[], None]


# What every NumPy has; NumPy and JAX count bytes in 63 bits, and an element has at most 16.
_MAX_RANK, _MAX_ELEMENTS = 32, 2**58
LIMITS = f"an array has at most {_MAX_RANK} dimensions and 2**58 elements"


def is_countable(shape: Shape) -> bool:
    """Whether an array may have a shape. Zeros hide no overflow: (2**40, 2**40, 0) fits nowhere.

    >>> is_countable((2**40, 0)), is_countable((2**40, 2**40, 0))
    (True, False)
    """
    fits = math.prod(max(size, 1) for size in shape) <= _MAX_ELEMENTS
    return fits and len(shape) <= _MAX_RANK and min(shape, default=0) >= 0


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a source: `start` is its first byte there, its order row-major.

    With `reversed_axes` the tensor that is meant has the axes of `shape` in reverse.
    """

    source: int
    name: str
    dtype: np.dtype[Any]
    shape: Shape
    start: int
    reversed_axes: bool = False


@dataclass(frozen=True, eq=False)
class Task:
    """A box of a stored tensor and the place of its values: a view of the box's own shape.

    `write(place, values)` puts values into a place, in whatever dtype that has.
    """

    stored: Stored
    box: Bounds
    place: HostArray
    write: Callable[[HostArray, HostArray], None]

    @property
    def nbytes(self) -> int:
        return self.place.size * self.stored.dtype.itemsize

    def part(self, box: Bounds) -> Task:
        """The same for a box within this one."""
        return Task(self.stored, box, self.place[within(box, self.box)], self.write)


class Source(Protocol):
    """A file, or whatever else tensors are read from."""

    @property
    def name(self) -> str: ...
    @property
    def is_remote(self) -> bool: ...
    @property
    def gap(self) -> int:
        """Bytes up to which it reads what lies between two runs, rather than each for itself."""
        ...

    @property
    def largest(self) -> int:
        """About how many bytes it reads at once."""
        ...

    def jobs(self, tasks: Sequence[Task]) -> list[Job]:
        """What reads the tasks, all of this source."""
        ...

    def close(self) -> None: ...
