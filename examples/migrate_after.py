"""`migrate_before.py` with hostmesh's own names, on an interleaved mesh; it prints the same.

hostmesh run -n 4 -d 2 examples/migrate_after.py

The way in between: `from hostmesh import multihost_utils` in place of JAX's, and nothing else.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import hostmesh as hm

hm.initialize()  # under any launcher, and as one process
me = jax.process_index()
# Any mesh: here devices are dealt out to processes in turn.
devices = np.array(jax.devices()).reshape(jax.process_count(), -1).T
mesh = Mesh(devices.reshape(devices.shape[::-1]), ("data", "model"))

seed = hm.broadcast_object(7 if me == 0 else None)
truth = np.random.default_rng(seed).normal(size=8).astype(np.float32)
shard = hm.data_shard(mesh, PartitionSpec("data"))  # processes of one shard read the same rows
rows = [np.random.default_rng(seed + 1 + q).normal(size=(32, 8)) for q in range(shard.of_chunks)]
rows = np.concatenate([rows[chunk] for chunk in shard.chunks]).astype(np.float32)
hm.assert_equal(truth, name="weights")

x, y = hm.to_global((rows, rows @ truth), mesh, PartitionSpec("data"), check="replicas")
w = hm.to_global(np.zeros(8, np.float32), mesh, PartitionSpec())


@jax.jit
def step(w, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * slope, loss


for _ in range(40):
    w, loss = step(w, x, y)
    loss = float(loss)  # waits: with steps in flight JAX itself can hang on CPU

worst = float(np.abs(hm.to_local(w, numpy=True) - truth).max())
everybody = hm.allgather(np.float32(worst))
hm.barrier("trained")
print(f"process {me}: loss {loss:.2e}, {len(everybody)} processes within {everybody.max():.2e}")
