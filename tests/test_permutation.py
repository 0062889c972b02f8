"""The index permutation: one-to-one for every n, what its sources say, and random."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hostmesh._permutation import permuted

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """Steele, Lea and Flood's generator: the number that follows a state, as published."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def reference(position: int, n: int, seed: int, epoch: int) -> int:
    """Black and Rogaway's cipher in plain Python, one index at a time."""
    rounds = 24 if n < 2**16 else 8
    keys = np.random.SeedSequence(seed, spawn_key=(epoch,)).generate_state(rounds, np.uint64)
    a = math.ceil(math.isqrt(n - 1) + 1)
    a += a % 2
    b = -(-n // a)
    while True:
        left, right = divmod(position, b)
        for turn, key in enumerate(map(int, keys)):
            back = 0x9E3779B97F4A7C15  # numbers count from 0, and a generator's first is after it
            if turn % 2:
                high = splitmix64((key + left * back - back) & MASK) >> 32
                right = (right + (high * b >> 32)) % b
            else:
                high = splitmix64((key + right * back - back) & MASK) >> 32
                left = (left + (high * a >> 32)) % a
        position = left * b + right
        if position < n:
            return position


def test_the_round_function_is_the_published_one() -> None:
    state, numbers = 1234567, []
    for _ in range(3):
        numbers.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(
    "n", [1, 2, 3, 5, 12, 99, 5000, 65535, 65536, 10**6 + 3, 10**10, 2**62 + 1, 2**63 - 1]
)
def test_it_is_the_cipher(n: int) -> None:
    rng = np.random.default_rng(n)
    positions = np.append(rng.integers(0, n, 40), [0, n - 1])
    for seed, epoch in ((0, 0), (2**70, 3)):
        expected = [reference(int(position), n, seed, epoch) for position in positions]
        assert permuted(positions, n, seed, epoch).tolist() == expected


def test_the_order_is_the_same_in_every_version() -> None:
    """States and checkpoints rely on it."""
    assert permuted(np.arange(10), 10, 0, 0).tolist() == [5, 1, 8, 3, 7, 9, 2, 4, 6, 0]
    last = permuted(np.arange(10**10 - 4, 10**10), 10**10, 7, 3)
    assert last.tolist() == [6257834015, 1152715823, 8158564578, 4964868646]


def test_a_permutation_for_every_n_up_to_5000() -> None:
    for n in range(1, 5001):
        images = permuted(np.arange(n), n, seed=n, epoch=0)
        assert np.array_equal(np.bincount(images, minlength=n), np.ones(n)), n


def test_no_repeats_among_a_million_of_large_n() -> None:
    rng = np.random.default_rng(5)
    for n in (10**10, *np.exp(rng.uniform(np.log(10**7), np.log(10**10), 3)).astype(int).tolist()):
        drawn = np.append(rng.integers(0, n - 500_000, 500_000), np.arange(n - 500_000, n))
        drawn.sort()
        positions = drawn[np.append(True, np.diff(drawn) > 0)]
        images = permuted(positions, n, seed=1, epoch=2)
        images.sort()
        assert images[0] >= 0
        assert images[-1] < n
        assert (np.diff(images) > 0).all()
        assert len(images) > 950_000


def test_shapes_and_blocks_do_not_matter() -> None:
    positions = np.random.default_rng(0).integers(0, 10**9, (3, 7, 1111))
    images = permuted(positions, 10**9, 3, 4)
    flat = [permuted(part, 10**9, 3, 4) for part in np.array_split(positions.ravel(), 50)]
    assert images.dtype == np.int64
    np.testing.assert_array_equal(images.ravel(), np.concatenate(flat))
    assert permuted(np.arange(0), 5, 0, 0).tolist() == []


def excess(observed: np.ndarray) -> float:
    """Pearson's chi-squared against equal counts, in standard deviations above its mean."""
    expected, freedom = observed.mean(), observed.size - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


# Fixed seeds: |excess| < 4 fails a true uniform with a chance below 1 in 5,000.
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_few_are_as_likely(n: int) -> None:
    number = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(number))
    for epoch in range(max(1000, 25 * len(number))):
        counts[number[tuple(permuted(np.arange(n), n, 11, epoch).tolist())]] += 1
    assert abs(excess(counts)) < 4


@pytest.mark.parametrize("by", ["seed", "epoch"])
def test_every_example_stands_everywhere_as_often(by: str) -> None:
    n = 60
    places, pairs = np.zeros((n, n)), np.zeros((n, n))
    for k in range(3000):
        seed, epoch = (k, 0) if by == "seed" else (0, k)
        order = permuted(np.arange(n), n, seed, epoch)
        places[np.arange(n), order] += 1
        pairs[order[:-1], order[1:]] += 1
    assert abs(excess(places)) < 4
    assert abs(excess(pairs[~np.eye(n, dtype=bool)])) < 4


@pytest.mark.parametrize("n", [65536, 10**6, 10**10])
def test_one_order_of_many_is_uniform(n: int) -> None:
    count = min(n, 10**6)
    order = permuted(np.arange(count), n, 0, 1)
    bins = np.zeros((100, 100))
    np.add.at(bins, (np.arange(count) * 100 // count, order * 100 // n), 1)
    assert abs(excess(bins)) < 4
    for lag in (1, 2, 64, math.isqrt(n)):  # neighbours, and those that differ in the left number
        if lag < count:
            steps = (order[lag:] - order[:-lag]) % n
            assert abs(excess(np.bincount(steps * 256 // n, minlength=256))) < 4
