"""The order of an epoch index by index, against orders that are made whole.

NumPy's permutation and, where PyTorch is installed, its DistributedSampler make the order of all
examples in memory first, in every process. For an epoch of a million examples in batches of 1,024
all indices are made; of ten million, only the first batch. One process, no cluster.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import hostmesh as hm
from hostmesh._bench._claim import Claim, Contestants, Race
from hostmesh._bench._script import main

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


def contestants(folder: Path) -> Contestants:
    found: Contestants = {
        "NumPy, all": lambda: whole(EPOCH),
        "hostmesh, all": lambda: batches(EPOCH, 976),
        "NumPy, first": lambda: whole(LARGE),
        "hostmesh, first": lambda: batches(LARGE, 1),
        "hostmesh, 1 of 8": lambda: one_of_eight(EPOCH),
    }
    if importlib.util.find_spec("torch"):
        found["PyTorch, 1 of 8"] = lambda: distributed(EPOCH, EPOCH // 8)
        found["PyTorch, first"] = lambda: distributed(LARGE, BATCH // 8)
    return found


_RACE = Race(contestants, layout=(1, 1))
CLAIMS = [
    Claim(f"{work} ({peer})", work, _RACE, f"{peer}, {work}", ours=f"hostmesh, {work}", needs=needs)
    for work, peer, needs in (
        ("all", "NumPy", None),
        ("first", "NumPy", None),
        ("1 of 8", "PyTorch", "torch"),
        ("first", "PyTorch", "torch"),
    )
]

if __name__ == "__main__":
    main(CLAIMS, __doc__)
