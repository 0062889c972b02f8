"""Trains a Flax NNX model on digits; parameters are replicated, and saved by their names.

pip install "hostmesh[demo,flax]" && hostmesh run -n 4 -d 2 examples/flax_nnx.py
"""

import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from sklearn.datasets import load_digits

import hostmesh as hm

hm.initialize()
me, processes = jax.process_index(), jax.process_count()
mesh, spec = Mesh(jax.devices(), "data"), PartitionSpec("data")
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.inner = nnx.Linear(64, 64, rngs=rngs)
        self.outer = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.relu(self.inner(x)))


# The same seed on all processes makes the same parameters; `check` sees to it that they are.
graph, params = nnx.split(Model(nnx.Rngs(0)))
params = hm.to_global(params, mesh, PartitionSpec(), check="replicas")
optimizer = optax.adam(0.02)
state = jax.jit(optimizer.init)(params)


def batches(epochs, rows=256):
    """Every process takes each P-th example of an order that all know."""
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))[me::processes]
        for start in range(0, len(order), rows // processes):
            numbers = order[start : start + rows // processes]
            yield {"image": images[numbers], "label": labels[numbers]}


def losses(params, batch):
    logits = nnx.merge(graph, params)(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])


@jax.jit
def step(params, state, batch, mask):
    def mean(params):
        return (losses(params, batch) * mask).sum() / mask.sum()

    loss, slope = jax.value_and_grad(mean)(params)
    change, state = optimizer.update(slope, state, params)
    return optax.apply_updates(params, change), state, loss


with hm.Feeder(batches(epochs=4), mesh, spec, ends="pad") as feeder:
    for batch, mask in feeder:
        params, state, loss = step(params, state, batch, mask)
        loss = float(loss)  # waits: with steps in flight JAX itself can hang on CPU
found = hm.evaluate(losses, batches(epochs=1), params, mesh=mesh, specs=spec)
print(f"process {me}: loss {found.mean:.3f} over {found.count} examples")

with hm.together("save"):
    folder = Path(hm.same_choice(hm.broadcast_object(tempfile.mkdtemp() if me == 0 else None)))
    hm.save_safetensors(folder / "model.safetensors", params)
    again = hm.load_safetensors(folder / "model.safetensors", mesh, None, like=params)
    hm.assert_equal(hm.to_local(again, numpy=True), name="what was saved")
if me == 0:
    print(sorted(hm.inspect(folder / "model.safetensors")))
