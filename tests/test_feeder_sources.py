"""Sources of real packages on real processes, and going on where a state says."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import msgpack
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def sequence(feeder: hm.Feeder, count: int | None = None) -> list[list[int]]:
    """The global batches, as every process sees them whole."""
    return [hm.allgather(batch["id"]).tolist() for batch in itertools.islice(feeder, count)]


def check_resume(make: Any, **options: Any) -> None:
    """A feeder of `make()`, stopped after any batch, goes on there with another feeder."""
    mesh = Mesh(jax.devices(), "x")
    with hm.Feeder(make(), mesh, P("x"), **options) as feeder:
        whole = sequence(feeder)
    assert len(whole) > 3
    for stop in (0, 1, len(whole) - 2):
        with hm.Feeder(make(), mesh, P("x"), **options) as feeder:
            begun = sequence(feeder, stop)
            state = msgpack.unpackb(msgpack.packb(feeder.state()))
        assert state["batches"] == stop
        assert state["examples"] == sum(map(len, begun))
        with hm.Feeder(make(), mesh, P("x"), **options) as feeder:
            feeder.restore(state)
            assert feeder.state() == state
            rest = sequence(feeder)
            assert feeder.state()["batches"] == len(whole)
        assert begun + rest == whole, stop


def mine(n: int) -> np.ndarray:
    """This process's share of n examples."""
    return np.arange(n) * jax.process_count() + jax.process_index()


@pytest.mark.multiprocess(processes=4, devices=2)
def test_a_generator() -> None:
    def make() -> Any:
        return ({"id": ids} for ids in mine(24).reshape(6, 4))

    check_resume(make)
    check_resume(make, prefetch=0)


@pytest.mark.multiprocess(processes=4, devices=2, timeout=120)
def test_grain() -> None:
    import grain.python as grain

    ids = mine(22)

    def dataset() -> Any:
        return (
            grain.MapDataset.source(ids)
            .shuffle(seed=3)
            .map(lambda i: {"id": np.asarray(i), "square": np.float32(i) ** 2})
            .batch(4, drop_remainder=True)
        )

    check_resume(dataset)
    check_resume(lambda: dataset().to_iter_dataset())

    def loader() -> Any:
        return grain.DataLoader(
            data_source=[{"id": int(i)} for i in ids],
            sampler=grain.IndexSampler(22, grain.NoSharding(), shuffle=True, num_epochs=1, seed=1),
            operations=[grain.Batch(4, drop_remainder=True)],
            worker_count=0,
        )

    check_resume(loader)
    mesh = Mesh(jax.devices(), "x")
    with hm.Feeder(dataset(), mesh, P("x")) as feeder:
        state = next(feeder) and feeder.state()
    assert state["source"] is not None
    with hm.Feeder(dataset().to_iter_dataset(), mesh, P("x"), ends="pad") as feeder:
        seen = [int(i) for data, m in feeder for i in hm.gather_valid(data["id"], m)]
    assert len(seen) == len(set(seen)) == 4 * 20


@pytest.mark.multiprocess(processes=4, devices=2, timeout=120)
def test_datasets() -> None:
    import datasets

    made = datasets.Dataset.from_dict({"id": mine(22).tolist(), "x": [[1.0, 2.0]] * 22})

    check_resume(lambda: made, global_batch=16)
    check_resume(lambda: made.with_format("numpy").iter(4, drop_last_batch=True))
    mesh = Mesh(jax.devices(), "x")
    with hm.Feeder(made, mesh, P("x"), ends="pad", global_batch=16) as feeder:
        batches = [hm.gather_valid(*batch) for batch in feeder]
    assert sorted(i for batch in batches for i in batch["id"]) == list(range(88))
    assert batches[0]["x"].shape == (16, 2)
    with pytest.raises(hm.FeedError, match="global_batch="):
        next(hm.Feeder(made, mesh, P("x")))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch, of a gigabyte, is not installed")
@pytest.mark.multiprocess(processes=4, devices=2, timeout=120)
def test_pytorch() -> None:
    import torch
    from torch.utils.data import DataLoader

    ids = mine(24)
    data = [
        {"id": torch.tensor(i), "half": torch.tensor([i, 0.5], dtype=torch.bfloat16)} for i in ids
    ]

    def make() -> Any:
        shuffled = torch.Generator().manual_seed(5)
        return DataLoader(data, batch_size=4, shuffle=True, generator=shuffled)

    check_resume(make)
    for batch in hm.Feeder(make(), Mesh(jax.devices(), "x"), P("x")):
        assert batch["half"].dtype == jax.numpy.bfloat16
        near = np.asarray(batch["id"].addressable_data(0), jax.numpy.bfloat16)
        half = np.asarray(batch["half"].addressable_data(0))
        np.testing.assert_array_equal(half[:, 0], near)
        assert (half[:, 1] == 0.5).all()
    tensor = torch.ones(4, 2, requires_grad=True)
    (batch,) = hm.Feeder([tensor + jax.process_index()], Mesh(jax.devices(), "x"), P("x"))
    assert batch.shape == (16, 2)


@pytest.mark.skipif(find_spec("torchdata") is None, reason="torchdata is not installed")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own call
@pytest.mark.multiprocess(processes=4, devices=2, timeout=120)
def test_torchdata_goes_on_by_its_own_state() -> None:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = [{"id": torch.tensor(i)} for i in mine(24)]

    def make() -> Any:
        return StatefulDataLoader(data, batch_size=4)

    check_resume(make)
    with hm.Feeder(make(), Mesh(jax.devices(), "x"), P("x")) as feeder:
        state = next(feeder) and feeder.state()
    assert state["source"] is not None


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="tensorflow is not installed")
@pytest.mark.multiprocess(processes=4, devices=2, timeout=120)
def test_tf_data() -> None:
    import tensorflow

    def make() -> Any:
        ids = tensorflow.data.Dataset.from_tensor_slices({"id": mine(24)})
        return ids.shuffle(24, seed=3).batch(4, drop_remainder=True)

    check_resume(lambda: make().as_numpy_iterator())
    check_resume(make)


def test_no_package_of_loaders_is_imported_unless_used() -> None:
    program = (
        "import sys, hostmesh, jax, numpy as np; from jax.sharding import Mesh, PartitionSpec as P;"
        "list(hostmesh.Feeder([np.ones(1)], Mesh(jax.devices()[:1], 'x'), P('x')));"
        "print([name for name in ('grain', 'torch', 'datasets', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Going on with another number of processes, after SIGKILL.

EXAMPLES, GLOBAL_BATCH = 240, 24


def sampler_on(mesh: Mesh | None) -> hm.ShardedSampler:
    """The order of the global batches: of this process's rows, or without a mesh of all."""
    layout: Any = {} if mesh is None else {"mesh": mesh, "spec": P("x")}
    return hm.ShardedSampler(EXAMPLES, global_batch=GLOBAL_BATCH, seed=7, epochs=1, **layout)


def run_on(folder: str, kill_after: int) -> None:
    """Goes on where the folder says, and notes each batch; all processes die at once on the way."""
    notes = Path(folder)
    saved = notes / "state"
    mesh = Mesh(jax.devices(), "x")
    sampler = sampler_on(mesh)
    done = 0
    if saved.exists():
        state = msgpack.unpackb(saved.read_bytes())
        sampler.restore(state["sampler"])
        done = state["batches"]
    source = ({"id": np.array(indices)} for indices in sampler.batches)
    for steps, batch in enumerate(feeder := hm.Feeder(source, mesh, P("x")), 1):
        ids = hm.allgather(batch["id"])
        if jax.process_index() == 0:
            digest = hashlib.sha256(ids.astype(np.int64).tobytes()).hexdigest()
            (notes / f"batch {done + steps - 1}").write_text(digest)
            # What was handed out counts, and not what was read ahead.
            own = sampler.state(feeder.state()["batches"])
            (notes / "new").write_bytes(msgpack.packb({"batches": done + steps, "sampler": own}))
            (notes / "new").replace(saved)
        hm.barrier("saved")
        if steps == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)


def check_kills(folder: Path, kills: list[int]) -> None:
    import hostmesh.testing

    for number, kill_after in enumerate([*kills, 0]):
        processes = (4, 2, 8, 3, 1, 6)[number]
        try:
            hostmesh.testing.run(run_on, processes, 1, (str(folder), kill_after), timeout=60)
        except hm.ClusterError:
            assert kill_after
    whole = sampler_on(None)
    for number in range(EXAMPLES // GLOBAL_BATCH):
        expected = hashlib.sha256(whole.indices(number).astype(np.int64).tobytes()).hexdigest()
        assert (folder / f"batch {number}").read_text() == expected


def test_killed_and_restored_on_other_numbers_of_processes(tmp_path: Path) -> None:
    """HOSTMESH_TEST_KILLS=20 kills at 20 random steps."""
    kills = int(os.environ.get("HOSTMESH_TEST_KILLS", "2"))
    for run in range(max(1, kills // 2)):
        folder = tmp_path / str(run)
        folder.mkdir()
        steps = np.random.default_rng(run).integers(1, 4, size=min(kills, 2)).tolist()
        check_kills(folder, steps)


@pytest.mark.multiprocess(processes=2, devices=1)
def test_a_state_of_another_number_of_processes_needs_a_source() -> None:
    feeder = hm.Feeder([], Mesh(jax.devices(), "x"), P("x"))
    state = {**feeder.state(), "processes": 3}
    with pytest.raises(hm.FeedError, match="a state of 3 processes, on 2"):
        feeder.restore(state)
    feeder.restore(state, source=[np.arange(2) + jax.process_index()])
    assert feeder.state() == {**state, "processes": 2}
    assert len(list(feeder)) == 1
    assert feeder.state()["batches"] == 1
    one_pass = iter([np.arange(2) + jax.process_index()] * 3)
    feeder = hm.Feeder(one_pass, Mesh(jax.devices(), "x"), P("x"))
    next(feeder)
    with pytest.raises(hm.FeedError, match="read only once"):
        feeder.restore(feeder.state())
    feeder.close()


def test_the_example_trains_with_grain() -> None:
    example = Path(__file__).resolve().parent.parent / "examples" / "train.py"
    assert len(example.read_text().splitlines()) < 60
    hostmesh = str(Path(sys.executable).with_name("hostmesh"))
    command = [hostmesh, "run", "-n", "2", "-d", "1", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = re.findall(r"process (\d): (\d+) of 360 right", done.stdout)
    assert sorted(p for p, _ in found) == ["0", "1"]
    assert len({right for _, right in found}) == 1
    assert int(found[0][1]) > 300
