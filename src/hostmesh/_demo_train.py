"""The training of `hostmesh demo`: a program as a user would write it, run in every process.

    python -m hostmesh._demo_train JOB

where JOB is a `Job` as JSON. Each process reads its own rows of the data, of which a `Feeder` makes
global batches, trains under `jax.jit`, and takes results back with `to_local`. Process 0
prints what happens, one line of `MARK` and JSON for each event; `_demo` draws it.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hostmesh

Params: TypeAlias = dict[str, jax.Array]
Batch: TypeAlias = dict[str, jax.Array]

MARK = "hostmesh-demo "
PIXELS, HIDDEN, CLASSES = 64, 256, 10
BATCHES = 5  # in the training set; what is left over is the test set
RATE = 0.2
LEAVES, ROUNDS = 300, 9  # of the timed conversions

SPECS = {
    "w1": PartitionSpec(None, "model"),
    "b1": PartitionSpec("model"),
    "w2": PartitionSpec("model", None),
    "b2": PartitionSpec(),
}
SHAPES = {"w1": (PIXELS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, CLASSES), "b2": (CLASSES,)}


@dataclass(frozen=True)
class Job:
    """What all processes of a demo are told. `data` is the folder with the arrays of `save`."""

    data: str
    processes: int
    devices: int
    order: Literal["block", "interleaved"]
    steps: int

    def command(self, *, alone: bool = False) -> list[str]:
        """The command of each process; `alone` is the plain one that the others are held to."""
        what = {**asdict(self), "alone": alone}
        return [sys.executable, "-m", "hostmesh._demo_train", json.dumps(what)]

    def topology(self) -> hostmesh.Topology:
        """Axes `data` and `model`: `model` is 2 where each process still holds only some rows."""
        total = self.processes * self.devices
        if total % 2 == 0:
            both = hostmesh.Topology.build(
                {"data": total // 2, "model": 2}, self.processes, self.order
            )
            if self.processes == 1 or len(own_rows(both, total // 2, 0)) < total // 2:
                return both
        return hostmesh.Topology.build({"data": total, "model": 1}, self.processes, self.order)

    def batch(self) -> int:
        """Rows of a global batch: a multiple of the chunks that it is cut in."""
        chunks = self.topology().shape["data"]
        return 256 // chunks * chunks


def save(folder: str, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
    """Writes the data in a fixed random order, so that each process can read single rows."""
    order = np.random.default_rng(0).permutation(len(images))
    np.save(Path(folder, "image.npy"), (images[order] / 16).astype(np.float32))
    np.save(Path(folder, "label.npy"), labels[order].astype(np.int32))


def own_rows(topology: hostmesh.Topology, rows: int, process: int) -> npt.NDArray[np.intp]:
    """The rows, of `rows` that are cut over `data`, in a process's host-local value, in order."""
    held = hostmesh.plan(topology, ("data",), global_shape=(rows,), process=process)
    return np.concatenate([np.r_[held.global_index(chunk)] for chunk in held.chunks()])


def mesh_of(topology: hostmesh.Topology) -> Mesh:
    """The mesh of this program's devices that has a topology: each process's in ascending order."""
    devices: list[Any] = sorted(jax.devices(), key=lambda device: device.id)
    mine = {
        process: iter([device for device in devices if device.process_index == process])
        for process in topology.processes
    }
    grid = np.empty(topology.process_indices.shape, object)
    for place, process in np.ndenumerate(topology.process_indices):
        grid[place] = next(mine[int(process)])
    return Mesh(grid, topology.axis_names)


def initial() -> dict[str, npt.NDArray[np.float32]]:
    """The parameters before the first step, the same in every process."""
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32)
        if len(shape) == 2
        else np.zeros(shape, np.float32)
        for name, shape in SHAPES.items()
    }


def predict(params: Params, images: jax.Array) -> jax.Array:
    """Logits of shape (images, 10)."""
    hidden = jnp.tanh(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss(params: Params, batch: Batch) -> jax.Array:
    """Mean cross-entropy of a batch."""
    logs = jax.nn.log_softmax(predict(params, batch["image"]))
    return -jnp.mean(jnp.take_along_axis(logs, batch["label"][:, None], axis=1))


def step(params: Params, batch: Batch) -> tuple[Params, jax.Array]:
    """One step of gradient descent; returns the new parameters and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), value


def is_right(params: Params, test: Batch) -> jax.Array:
    """Which images get their label."""
    return predict(params, test["image"]).argmax(axis=1) == test["label"]


def together(job: Job) -> None:
    """The training over all processes: each holds its own rows and its part of the parameters."""
    topology, rows = job.topology(), job.batch()
    mesh, process = mesh_of(topology), jax.process_index()
    by_row = PartitionSpec("data")
    whole = NamedSharding(mesh, PartitionSpec())

    own = own_rows(topology, rows, process)
    train = {
        name: values[: BATCHES * rows].reshape(BATCHES, rows, *values.shape[1:])[:, own]
        for name, values in _open(job).items()
    }
    params = hostmesh.to_global(initial(), mesh, SPECS, global_shape=SHAPES)
    placed = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    jitted = jax.jit(step, out_shardings=(placed, whole), donate_argnums=0)
    batches = ({n: values[i % BATCHES] for n, values in train.items()} for i in range(job.steps))
    with hostmesh.Feeder(batches, mesh, by_row, global_batch=rows) as feeder:
        for batch in feeder:
            params, value = jitted(params, batch)
            _tell(loss=float(hostmesh.to_local(value, numpy=True)))
        _tell(fed=feeder.stats().line())

    test = _own_test_rows(job, topology, process)
    hits = hostmesh.evaluate(is_right, [test], params, mesh=mesh, specs=by_row)
    _tell(correct=int(hits.sum))
    _tell(milliseconds=_speed(mesh, topology, process))


def alone(job: Job) -> None:
    """The same training in one process on one device with all of the data: JAX and no hostmesh."""
    rows, data = job.batch(), _open(job)
    params = jax.tree.map(jnp.asarray, initial())
    jitted = jax.jit(step, donate_argnums=0)
    for i in range(job.steps):
        first = i % BATCHES * rows
        params, value = jitted(params, {n: v[first : first + rows] for n, v in data.items()})
        _tell(loss=float(value))
    test = {name: jnp.asarray(values[BATCHES * rows :]) for name, values in data.items()}
    _tell(correct=int(jax.jit(is_right)(params, test).sum()))


def _open(job: Job) -> dict[str, npt.NDArray[Any]]:
    """The arrays on disk: only the rows that are asked for are read."""
    return {n: np.load(Path(job.data, f"{n}.npy"), mmap_mode="r") for n in ("image", "label")}


def _own_test_rows(
    job: Job, topology: hostmesh.Topology, process: int
) -> dict[str, npt.NDArray[Any]]:
    """This process's test rows: fewer than its chunks have room for where the data ends."""
    data, first = _open(job), BATCHES * job.batch()
    rows, chunks = len(data["label"]) - first, topology.shape["data"]
    own = own_rows(topology, -(-rows // chunks) * chunks, process)
    return {name: values[first + own[own < rows]] for name, values in data.items()}


def _speed(mesh: Mesh, topology: hostmesh.Topology, process: int) -> dict[str, float]:
    """Median times of making global arrays of many small leaves, with JAX and with hostmesh.

    Without "jax" where JAX refuses the mesh.
    """
    chunks = topology.shape["data"]
    most = max(len(own_rows(topology, chunks, p)) for p in topology.processes)
    rows = max(1, 64 // most) * chunks
    own, rng = own_rows(topology, rows, process), np.random.default_rng(2)
    # Of one whole on all: some processes hold a chunk together.
    leaves = [rng.random((rows, 32), np.float32)[own] for _ in range(LEAVES)]
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    ways: dict[str, Callable[[], Any]] = {
        "jax": lambda: [jax.make_array_from_process_local_data(sharding, leaf) for leaf in leaves],
        "hostmesh": lambda: hostmesh.to_global(leaves, mesh, sharding.spec),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in list(ways.items()):  # in turn: both meet the machine in the same state
            start = time.perf_counter()
            try:
                jax.block_until_ready(way())
            except ValueError:
                if name != "jax":
                    raise
                del ways[name], times[name]  # JAX refuses this mesh
            else:
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def _tell(**event: object) -> None:
    if jax.process_index() == 0:
        # One write: what JAX's C++ threads print cannot come between.
        sys.stdout.write(f"{MARK}{json.dumps(event)}\n")
        sys.stdout.flush()


def main() -> None:
    """Runs the job of the command line."""
    what = json.loads(sys.argv[1])
    on_its_own = what.pop("alone")
    hostmesh.initialize()
    (alone if on_its_own else together)(Job(**what))


if __name__ == "__main__":
    main()
