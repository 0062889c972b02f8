"""A script on `jax.experimental.multihost_utils`: linear regression by all processes.

hostmesh run -n 4 -d 2 examples/migrate_before.py

`migrate_after.py` is the same with hostmesh, and prints the same.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

# What the launcher tells, told on to JAX.
jax.distributed.initialize(
    os.environ["HOSTMESH_COORDINATOR"],
    int(os.environ["HOSTMESH_PROCESSES"]),
    int(os.environ["HOSTMESH_PROCESS"]),
)
me = jax.process_index()
# A contiguous mesh: others are refused.
mesh = Mesh(np.array(jax.devices()).reshape(jax.process_count(), -1), ("data", "model"))

# One seed for all, by way of a sum over all devices.
seed = int(multihost_utils.broadcast_one_to_all(np.int32(7 if me == 0 else 0)))
truth = np.random.default_rng(seed).normal(size=8).astype(np.float32)
rows = np.random.default_rng(seed + 1 + me).normal(size=(32, 8)).astype(np.float32)
batch = (rows, rows @ truth)
multihost_utils.assert_equal(truth, "processes start from different weights")

to_global = multihost_utils.host_local_array_to_global_array
# Copies, because on CPU an array may share the buffer that it was made of.
x, y = to_global(tuple(part.copy() for part in batch), mesh, PartitionSpec("data"))
w = to_global(np.zeros(8, np.float32), mesh, PartitionSpec())


@jax.jit
def step(w, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * slope, loss


for _ in range(40):
    w, loss = step(w, x, y)
    loss = float(loss)  # waits: with steps in flight JAX itself can hang on CPU

mine = multihost_utils.global_array_to_host_local_array(w, mesh, PartitionSpec())
worst = float(np.abs(np.asarray(mine) - truth).max())
everybody = multihost_utils.process_allgather(np.float32(worst))
multihost_utils.sync_global_devices("trained")
print(f"process {me}: loss {loss:.2e}, {len(everybody)} processes within {everybody.max():.2e}")
