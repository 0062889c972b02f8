"""The claims, a file for each race, in the order of the table."""

from __future__ import annotations

from .._claim import Claim
from . import (
    allgather_large,
    allgather_leaves,
    assert_equal,
    barrier,
    broadcast_large,
    broadcast_leaves,
    drop_in,
    feeder_overlap,
    host_to_device,
    import_cost,
    inference_batch,
    large_leaf,
    leaves_in,
    leaves_out,
    load_model,
    planning,
    replicate,
    save_async,
    save_model,
    scalar,
    small_leaf,
)

ALL: tuple[Claim, ...] = (
    *leaves_in.CLAIMS,
    *leaves_out.CLAIMS,
    *large_leaf.CLAIMS,
    *small_leaf.CLAIMS,
    *inference_batch.CLAIMS,
    *drop_in.CLAIMS,
    *barrier.CLAIMS,
    *scalar.CLAIMS,
    *allgather_leaves.CLAIMS,
    *allgather_large.CLAIMS,
    *broadcast_leaves.CLAIMS,
    *broadcast_large.CLAIMS,
    *assert_equal.CLAIMS,
    *replicate.CLAIMS,
    *feeder_overlap.CLAIMS,
    *load_model.CLAIMS,
    *save_model.CLAIMS,
    *save_async.CLAIMS,
    *planning.CLAIMS,
    *import_cost.CLAIMS,
    *host_to_device.CLAIMS,
)
