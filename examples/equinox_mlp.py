"""Trains an Equinox model on digits, its parameters cut over all devices of all processes.

pip install "hostmesh[demo,equinox]" && hostmesh run -n 4 -d 2 examples/equinox_mlp.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from sklearn.datasets import load_digits

import hostmesh as hm

hm.initialize()
me, processes = jax.process_index(), jax.process_count()
mesh, spec = Mesh(jax.devices(), "data"), PartitionSpec("data")
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)


def cut(leaf):
    """Along the first axis, where the devices divide it; else the leaf stands on all of them."""
    divides = leaf.ndim > 0 and leaf.shape[0] % mesh.size == 0
    return PartitionSpec("data") if divides else PartitionSpec()


# Every process makes the whole model by one key, and `to_global` cuts its own part out of it.
model = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=jax.random.key(0))
params, static = eqx.partition(model, eqx.is_array)
specs, shapes = jax.tree.map(cut, params), jax.tree.map(jnp.shape, params)
params = hm.to_global(params, mesh, specs, global_shape=shapes)


def batches(epochs, rows=256):
    """Every process takes each P-th example of an order that all know."""
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))[me::processes]
        for start in range(0, len(order), rows // processes):
            numbers = order[start : start + rows // processes]
            yield {"image": images[numbers], "label": labels[numbers]}


def logits(params, batch):
    return jax.vmap(eqx.combine(params, static))(batch["image"])


@jax.jit
def step(params, batch, mask):
    def mean(params):
        chances = jax.nn.log_softmax(logits(params, batch))
        each = -jnp.take_along_axis(chances, batch["label"][:, None], axis=1)[:, 0]
        return jnp.where(mask, each, 0).sum() / mask.sum()

    loss, slope = jax.value_and_grad(mean)(params)
    return jax.tree.map(lambda p, g: p - 0.005 * jnp.sign(g), params, slope), loss


def is_right(params, batch):
    return logits(params, batch).argmax(-1) == batch["label"]


with hm.Feeder(batches(epochs=6), mesh, spec, ends="pad") as feeder:
    for batch, mask in feeder:
        params, loss = step(params, batch, mask)
        loss = float(loss)  # waits: with steps in flight JAX itself can hang on CPU
found = hm.evaluate(is_right, batches(epochs=1), params, mesh=mesh, specs=spec)
here = sum(s.data.nbytes for p in jax.tree.leaves(params) for s in p.addressable_shards)
whole = sum(p.nbytes for p in jax.tree.leaves(params))
print(f"process {me}: {found.sum} of {found.count} right; holds {here:,} of {whole:,} bytes")
