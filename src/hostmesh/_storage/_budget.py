"""One budget of host memory for all processes of a host: what is read and not yet on its devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

GroupT = TypeVar("GroupT")


class Budget:
    """A process's fair share of the host's budget. A group larger than it goes alone."""

    def __init__(self, nbytes: int, processes_here: int) -> None:
        self.share = max(1, nbytes // max(1, processes_here))
        self._used = 0
        self._moving: deque[tuple[Sequence[jax.Array], int]] = deque()

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes may be read now."""
        while self._used and self._used + nbytes > self.share and self._moving:
            self._settle()
        return not self._used or self._used + nbytes <= self.share

    def take(self, nbytes: int) -> None:
        """Charges bytes that are about to be read."""
        self._used += nbytes

    def give(self, arrays: Sequence[jax.Array], nbytes: int) -> None:
        """Bytes that are on their way to devices: charged until they are there."""
        self._moving.append((arrays, nbytes))
        if all(d.platform == "cpu" for array in arrays for d in array.sharding.addressable_devices):
            while self._moving:  # what a CPU device takes as it is, is the array itself
                self._used -= self._moving.popleft()[1]

    def _settle(self) -> None:
        arrays, nbytes = self._moving.popleft()
        jax.block_until_ready(arrays)
        self._used -= nbytes


def grouped(sizes: Sequence[int], largest: int) -> list[range]:
    """Puts neighbours together up to `largest` bytes.

    >>> grouped([3, 3, 9, 1], largest=6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    found: list[range] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > largest:
            found.append(range(start, i))
            start, total = i, 0
        total += size
    if start < len(sizes):
        found.append(range(start, len(sizes)))
    return found


def pipelined(
    groups: Sequence[GroupT],
    size_of: Callable[[GroupT], int],
    begin: Callable[[GroupT], Any],
    end: Callable[[GroupT, Any], Sequence[jax.Array]],
    budget: Budget,
    ahead: int,
) -> None:
    """Begins groups in order, up to `ahead` beside the one that ends and within the budget."""
    begun: deque[tuple[GroupT, Any]] = deque()
    number = 0
    while number < len(groups) or begun:
        while number < len(groups) and len(begun) <= ahead:
            nbytes = size_of(groups[number])
            if not budget.fits(nbytes):
                break
            budget.take(nbytes)
            begun.append((groups[number], begin(groups[number])))
            number += 1
        group, state = begun.popleft()
        budget.give(end(group, state), size_of(group))
