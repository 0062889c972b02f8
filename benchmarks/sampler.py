"""The order of an epoch index by index, against orders that are made whole.

NumPy's permutation and, where PyTorch is installed, its DistributedSampler make the order of all
examples in memory first, in every process. For an epoch of a million examples in batches of 1,024
all indices are made; of ten million, only the first batch. One process, no cluster.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np
from _race import Row, main

import hostmesh as hm

EPOCH, LARGE, BATCH = 1_000_000, 10_000_000, 1_024


def batches(n: int, count: int) -> None:
    sampler = hm.ShardedSampler(n, global_batch=BATCH)
    for batch in range(count):
        sampler.indices(batch)


def whole(n: int) -> None:
    np.random.default_rng(0).permutation(n)


def one_of_eight(n: int) -> None:
    list(hm.ShardedSampler(n, global_batch=BATCH, shard=(0, 8)))


def distributed(n: int, count: int) -> None:
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(n), num_replicas=8, rank=0, drop_last=True)
    for _, _ in zip(range(count), sampler, strict=False):
        pass


def measure(rounds: int) -> list[Row]:
    pairs: list[tuple[str, str, Callable[[], None], Callable[[], None]]] = [
        *(
            ("1,000,000 indices", "NumPy", lambda: whole(EPOCH), lambda: batches(EPOCH, 976)),
            ("first batch of 10,000,000", "NumPy", lambda: whole(LARGE), lambda: batches(LARGE, 1)),
        )
    ]
    if importlib.util.find_spec("torch"):
        pairs += [
            (
                "1,000,000 over 8, one by one",
                "PyTorch",
                lambda: distributed(EPOCH, EPOCH // 8),
                lambda: one_of_eight(EPOCH),
            ),
            (
                "first batch of 10,000,000",
                "PyTorch",
                lambda: distributed(LARGE, BATCH // 8),
                lambda: batches(LARGE, 1),
            ),
        ]
    rows: list[Row] = []
    for work, peer, theirs, ours in pairs:
        times = [(seconds(theirs), seconds(ours)) for _ in range(rounds)]  # in turns
        rows.append(Row(work, peer, *zip(*times, strict=True)))
    return rows


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(measure, __doc__, rounds=15)
