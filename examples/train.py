"""Trains on handwritten digits with Grain; `resume.py` adds stopping at SIGTERM, and going on.

pip install "hostmesh[demo,grain]" && hostmesh run -n 4 -d 2 examples/train.py
"""

import grain
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
images, is_test = (images / 16).astype(np.float32), np.arange(len(labels)) % 5 == 0
random = np.random.default_rng(0)
params = [0.1 * random.normal(size=shape) for shape in ((64, 64), 64, (64, 10), 10)]
params = hm.to_global([p.astype(np.float32) for p in params], mesh, PartitionSpec())


def batches(numbers: np.ndarray, epochs: int = 1) -> grain.MapDataset:
    """Every process takes each P-th example; the last batch is short."""
    mine = grain.MapDataset.source(numbers).seed(0).shuffle().repeat(epochs)[me::processes]
    return mine.map(lambda i: {"image": images[i], "label": labels[i]}).batch(64 // processes)


def logits(params: list, image: jax.Array) -> jax.Array:
    return jax.nn.relu(image @ params[0] + params[1]) @ params[2] + params[3]


def loss(params: list, batch: dict, mask: jax.Array) -> jax.Array:
    chances = jax.nn.log_softmax(logits(params, batch["image"]))
    each = -chances[jnp.arange(mask.size), batch["label"]]
    return jnp.where(mask, each, 0).sum() / mask.sum()


@jax.jit
def step(params: list, batch: dict, mask: jax.Array) -> tuple[list, jax.Array]:
    value, slope = jax.value_and_grad(loss)(params, batch, mask)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, slope), value


def is_right(params: list, batch: dict) -> jax.Array:
    return logits(params, batch["image"]).argmax(-1) == batch["label"]


if __name__ == "__main__":
    train = batches(np.flatnonzero(~is_test), epochs=8)
    with hm.Feeder(train, mesh, spec, ends="pad", global_batch=64, progress=True) as feeder:
        for batch, mask in feeder:
            params, value = step(params, batch, mask)
            value = float(value)  # waits: with steps in flight JAX itself can hang on CPU
        print(f"process {me}: loss {value:.3f}; {feeder.stats().line()}")
    found = hm.evaluate(is_right, batches(np.flatnonzero(is_test)), params, mesh=mesh, specs=spec)
    print(f"process {me}: {found.sum} of {found.count} right, {found.mean:.1%}")
