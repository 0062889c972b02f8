"""A random permutation of 0 .. n - 1, computed index by index: it costs no memory, whatever n is.

A generalized Feistel cipher with cycle walking, methods 2 and 3 of Black and Rogaway, "Ciphers with
arbitrary finite domains" (CT-RSA 2002). An index below a * b >= n is a pair (index // b,
index % b); rounds in turn add a function of the right number to the left one, modulo a, and of the
left to the right, modulo b; what comes out at n or above goes through again. Each round is
one-to-one, so all of it is. The round function is SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014): the x-th number of a generator whose seed
is the round's key. That such ciphers shuffle well is shown by Mitchell, Stokes, Frank and Holmes,
"Bandwidth-optimal random shuffling for GPUs" (ACM TOPC 2022).

It is for shuffling, and keeps no secrets.
"""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

LARGEST = 2**63 - 1  # of the indices' dtype

_SMALL = 2**16
_BLOCK = 8192  # indices at a time: the scratch space stays in the processor's cache
_GAMMA, _MIX_1, _MIX_2 = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_27, _30, _31, _32 = map(np.uint64, (27, 30, 31, 32))


def permuted(positions: Indices, n: int, seed: int, epoch: int) -> Indices:
    """The examples at some positions of an epoch's order, a permutation of 0 .. n - 1.

    Args:
      positions: numbers from 0 to n - 1, of any shape.
      n: from 1 to 2**63 - 1.
      seed, epoch: whole numbers from 0 on, of any size: together they choose the permutation.

    >>> permuted(np.arange(10), 10, seed=0, epoch=0)
    array([5, 1, 8, 3, 7, 9, 2, 4, 6, 0])
    """
    if n < _SMALL:
        return _all(n, seed, epoch)[positions]
    return _images(positions, n, seed, epoch)


@functools.lru_cache(maxsize=4)
def _all(n: int, seed: int, epoch: int) -> Indices:
    """The whole order of few examples: at most half a MiB, for many small batches to pick from."""
    return _images(np.arange(n), n, seed, epoch)


def _images(positions: Indices, n: int, seed: int, epoch: int) -> Indices:
    keys = _keys(seed, epoch, _rounds(n))
    flat = positions.reshape(-1)
    result = np.empty(flat.shape, np.int64)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.uint64)
        _encipher(block, n, keys)
        result[start : start + _BLOCK] = block
    return result.reshape(positions.shape)


@functools.lru_cache(maxsize=64)
def _keys(seed: int, epoch: int, rounds: int) -> tuple[np.uint64, ...]:
    # NumPy promises that a SeedSequence gives the same words in all its versions.
    return tuple(np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(rounds, np.uint64))


def _rounds(n: int) -> int:
    """How many rounds make it random: what 4 leave of order falls with each, slower for small n.

    Counts of whole permutations and of pairs show none after 16 rounds for n from 2 to 7, after 10
    for 10 and 16, after 8 for 60.
    """
    return 24 if n < _SMALL else 8


def _sides(n: int) -> tuple[int, int]:
    """a and b, near the root of n, with n <= a * b < n + a.

    An even a: with two odd numbers all rounds are even permutations.
    """
    a = math.isqrt(n - 1) + 1
    a += a % 2
    return a, -(-n // a)


def _encipher(numbers: _Words, n: int, keys: tuple[np.uint64, ...]) -> None:
    """Replaces numbers below n by their images, in place."""
    sides = tuple(map(np.uint64, _sides(n)))
    _pass(numbers, sides, keys)
    outside = np.flatnonzero(numbers >= n)
    while outside.size:  # fewer than 1 in root(n)
        again = numbers[outside]
        _pass(again, sides, keys)
        numbers[outside] = again
        outside = outside[again >= n]


def _pass(numbers: _Words, sides: tuple[np.uint64, ...], keys: tuple[np.uint64, ...]) -> None:
    a, b = sides
    left = numbers // b
    right = numbers - left * b
    scratch = np.empty((2, numbers.size), np.uint64)
    for number, key in enumerate(keys):
        if number % 2:
            _round(right, left, b, key, scratch)
        else:
            _round(left, right, a, key, scratch)
    np.multiply(left, b, out=numbers)
    np.add(numbers, right, out=numbers)


def _round(
    target: _Words, source: _Words, side: np.uint64, key: np.uint64, scratch: _Words
) -> None:
    """Adds a function of `source` to `target`, modulo `side`."""
    x, shifted = scratch
    np.multiply(source, _GAMMA, out=x)
    np.add(x, key, out=x)
    for shift, factor in ((_30, _MIX_1), (_27, _MIX_2)):
        np.right_shift(x, shift, out=shifted)
        np.bitwise_xor(x, shifted, out=x)
        np.multiply(x, factor, out=x)
    np.right_shift(x, _31, out=shifted)
    np.bitwise_xor(x, shifted, out=x)
    # The high half of x as a fraction of 2**32 of the side.
    np.right_shift(x, _32, out=x)
    np.multiply(x, side, out=x)
    np.right_shift(x, _32, out=x)
    np.add(target, x, out=target)
    # Unsigned: below the side, the difference wraps round to a large number.
    np.subtract(target, side, out=shifted)
    np.minimum(target, shifted, out=target)
