"""Evaluates a classifier on examples that are shared out unevenly, and counts each exactly once.

pip install "hostmesh[demo]" && hostmesh run -n 4 -d 2 examples/evaluate.py

Process p reads p + 1 tenths of the examples. Scores of the examples come back in their places.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from sklearn.datasets import load_digits

import hostmesh as hm

CLASSES = 10

hm.initialize()
me, processes = jax.process_index(), jax.process_count()
mesh, spec = Mesh(jax.devices(), "data"), PartitionSpec("data")
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)

# The nearest of ten mean images: a model that needs no training.
means = np.stack([images[labels == digit].mean(0) for digit in range(CLASSES)])
means = hm.to_global(means, mesh, PartitionSpec())

# 1 : 2 : 3 : 4 for four processes; the last batch of each is short, and they end at other times.
bounds = np.cumsum(np.arange(processes + 1)) * len(labels) // sum(range(processes + 1))
mine = np.arange(bounds[me], bounds[me + 1])


def batches(rows=64):
    for start in range(0, len(mine), rows):
        numbers = mine[start : start + rows]
        yield {"image": images[numbers], "label": labels[numbers], "number": numbers}


def guess(means, batch):
    return ((batch["image"][:, None] - means) ** 2).sum(-1).argmin(-1)


def metrics(means, batch):
    """A row of each metric for each row of the batch. Rows that are filler do not count."""
    guessed = guess(means, batch)
    row = jax.nn.one_hot(batch["label"], CLASSES, dtype=int)[..., None]
    confusion = row * jax.nn.one_hot(guessed, CLASSES, dtype=int)[:, None]
    return {"right": guessed == batch["label"], "confusion": confusion}


found = hm.evaluate(metrics, batches(), means, mesh=mesh, specs=spec)
confused = found.sum["confusion"]
right = int(found.sum["right"])
print(f"process {me}: reads {len(mine)}; {right} of {found.count} right")
assert confused.sum() == found.count == len(labels)
assert confused.trace() == right


@jax.jit
def margin(means, batch):
    """How much nearer the nearest mean is than the next."""
    near = jnp.sort(((batch["image"][:, None] - means) ** 2).sum(-1))
    return near[:, 1] - near[:, 0]


# What is known of each example, in its place: process 0 gathers it.
margins = np.full(len(labels), np.nan, np.float32)
with hm.Feeder(batches(), mesh, spec, ends="pad") as feeder:
    for batch, mask in feeder:
        tree = {"margin": margin(means, batch), "at": batch["number"]}
        rows = hm.gather_valid(tree, mask, to=0)
        if rows is not None:
            margins[rows["at"]] = rows["margin"]
if me == 0:
    print(
        f"process 0: the least sure is example {margins.argmin()}, {np.isnan(margins).sum()} lack"
    )
