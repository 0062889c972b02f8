"""The order of global batches, on any processes; resuming; PyTorch and Grain."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import oracle
from test_independence import random_layouts

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def samplers(processes: int, order: Any, spec: Any, n: int, **options: Any) -> list[Any]:
    """One for each process of a cluster that is not there: 8 devices, axes x=4 and y=2."""
    topology = hm.Topology.build({"x": 4, "y": 2}, processes, order)
    return [
        hm.ShardedSampler(n, shard=hm.data_shard(topology, spec, process=process), **options)
        for process in range(processes)
    ]


def assembled(parts: list[hm.ShardedSampler], batch: int, global_batch: int) -> list[int]:
    """A global batch, put together of what each process reads; -1 where there is no row."""
    rows = np.full(global_batch, -1)
    for part in parts:
        own = part.indices(batch)
        at = part.shard.rows(global_batch)[: len(own)]
        assert ((rows[at] == -1) | (rows[at] == own)).all(), (
            "two processes read other examples for one row"
        )
        rows[at] = own
    return rows.tolist()


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, Any, Any]:
    processes = draw(st.sampled_from([1, 2, 4, 8]))
    shuffled = draw(st.permutations([i % processes for i in range(8)]))
    order = draw(st.sampled_from(["block", "interleaved", shuffled]))
    return processes, order, draw(st.sampled_from([("x",), ("y",), (("x", "y"),), (("y", "x"),)]))


@quick
@given(clusters(), st.integers(16, 300), st.integers(1, 2), st.booleans(), st.integers(0, 2**40))
def test_the_global_order_depends_on_no_process(
    cluster: Any, n: int, times: int, shuffle: bool, seed: int
) -> None:
    size = 8 * times
    parts = samplers(*cluster, n=n, global_batch=size, shuffle=shuffle, seed=seed)
    whole = hm.ShardedSampler(n, global_batch=size, shuffle=shuffle, seed=seed)
    orders = []
    for epoch in range(3):
        batches = range(epoch * (n // size), (epoch + 1) * (n // size))
        order = [i for batch in batches for i in assembled(parts, batch, size)]
        assert order == [i for batch in batches for i in whole.indices(batch).tolist()]
        assert len(set(order)) == len(order) == n - n % size
        assert 0 <= min(order) <= max(order) < n
        orders.append(order)
        assert [list(part) for part in parts] == [
            [i for batch in batches for i in part.indices(batch).tolist()] for part in parts
        ]
    assert (orders[0] == orders[1] == orders[2]) is not shuffle or n < 20


@quick
@given(st.data())
def test_it_goes_on_exactly_on_other_processes_with_other_batch_sizes(data: st.DataObject) -> None:
    """Any number of stops: the examples read are the epochs' orders, none twice, none left out."""
    n, seed = data.draw(st.integers(1, 200)), data.draw(st.integers(0, 99))
    read: list[int] = []
    state: Any = None
    while len(read) < 3 * n:
        size = 8 * data.draw(st.integers(1, 4))
        parts = samplers(*data.draw(clusters()), n=n, global_batch=size, seed=seed, ends="short")
        if state is not None:
            for part in parts:
                part.restore(msgpack.unpackb(msgpack.packb(state)))
        steps = data.draw(st.integers(0, 12))
        for batch in range(steps):
            read += [i for i in assembled(parts, batch, size) if i >= 0]
        states = [part.state(steps) for part in parts]
        assert all(other == states[0] for other in states)
        state = states[0]
    whole = hm.ShardedSampler(n, global_batch=n, seed=seed)
    expected = [i for epoch in range(len(read) // n + 1) for i in whole.indices(epoch).tolist()]
    assert read == expected[: len(read)]
    assert divmod(len(read), n) in ((state["epoch"], state["examples"]), (state["epoch"] + 1, 0))


@pytest.mark.parametrize("ends", ["drop", "pad", "short"])
def test_ends(ends: Any) -> None:
    parts = samplers(4, "interleaved", ("x",), n=21, global_batch=8, ends=ends, epochs=2)
    whole = hm.ShardedSampler(21, global_batch=21)
    count = 2 if ends == "drop" else 3
    assert [len(part.batches) for part in parts] == [count] * 4
    for epoch in range(2):
        order = whole.indices(epoch).tolist()
        for batch in range(2):
            assert assembled(parts, epoch * count + batch, 8) == order[8 * batch : 8 * batch + 8]
            assert all(part.mask(epoch * count + batch).all() for part in parts)
        if ends != "drop":
            rest = order[:3] if ends == "pad" else [-1] * 3
            assert assembled(parts, epoch * count + 2, 8) == order[16:] + rest
            masks = np.zeros(8, bool)
            for part in parts:
                masks[part.shard.rows(8)] = part.mask(epoch * count + 2)
            assert masks.tolist() == [True] * 5 + [False] * 3
    for part in parts:
        with pytest.raises(IndexError, match=f"^global batch {2 * count} of {2 * count}$"):
            part.indices(2 * count)
        for epoch in range(2):
            assert part.epoch == epoch
            assert len(part) == len(list(part))
        assert part.epoch == 2
        assert len(part) == len(part.batches) == 0
        assert list(part) == list(part.batches) == []


def test_a_batch_larger_than_the_data() -> None:
    whole = hm.ShardedSampler(3, global_batch=8, ends="pad")
    order = hm.ShardedSampler(3, global_batch=3).indices(0).tolist()
    assert whole.indices(0).tolist() == (3 * order)[:8]
    assert whole.mask(0).tolist() == [True] * 3 + [False] * 5
    one = hm.ShardedSampler(1, global_batch=1)
    assert [one.indices(k).tolist() for k in range(3)] == [[0]] * 3
    parts = samplers(8, "block", (("x", "y"),), n=3, global_batch=8, ends="short")
    assert sorted(i for part in parts for i in part) == [0, 1, 2]
    assert [list(part.batches) for part in parts[3:]] == [[[]]] * 5


def test_huge_data_sets() -> None:
    n = 10**10 + 7
    parts = samplers(4, "interleaved", ("x",), n=n, global_batch=1024)
    last = n // 1024 - 1
    state = parts[0].state(last + 1)
    assert state["examples"] == n // 1024 * 1024
    rows = assembled(parts, last, 1024)
    assert len(set(rows)) == 1024
    resumed = hm.ShardedSampler(n, global_batch=n % 1024)
    resumed.restore(state)  # a smaller batch takes up what the larger one would have dropped
    assert not set(resumed.indices(0).tolist()) & set(rows)
    assert resumed.state(1)["examples"] == n
    assert resumed.state(2)["epoch"] == 1


def test_iterations_as_users_of_distributed_sampler_expect() -> None:
    sampler = hm.ShardedSampler(20, global_batch=4, shard=(1, 2))
    batches = sampler.batches
    assert (len(sampler), len(batches), sampler.local_batch) == (10, 5, 2)
    first = list(sampler)
    second = list(batches)  # goes on to the next epoch by itself
    assert first != [i for batch in second for i in batch]
    sampler.set_epoch(0)
    assert list(sampler) == first
    sampler.set_epoch(1)  # is there already
    assert list(batches) == second
    assert sampler.epoch == 2
    batches.set_epoch(0)
    for _ in itertools.islice(batches, 3):
        pass
    assert list(sampler) == first  # a broken-off iteration starts again
    # State by state through an iteration, and where it is after a restored one.
    sampler.set_epoch(0)
    seen = []
    for batch in batches:
        seen.append(batch)
        other = hm.ShardedSampler(20, global_batch=4, shard=(1, 2))
        other.restore(sampler.state())
        assert sampler.state() == sampler.state(len(seen))
        assert len(other.batches) == 5 - len(seen) or len(seen) == 5
        left = list(other.batches) if len(seen) < 5 else []
        assert [i for rows in seen + left for i in rows] == first
    # Within an epoch a place stays; with no batch left in it, the next one begins.
    sampler.restore({**sampler.state(0), "epoch": 3, "examples": 12})
    sampler.set_epoch(3)
    assert (sampler.epoch, len(batches), len(sampler)) == (3, 2, 4)
    for examples in (17, 20):
        sampler.restore({**sampler.state(0), "epoch": 3, "examples": examples})
        assert (sampler.epoch, len(batches), len(sampler)) == (4, 5, 10)
    # An iteration from before does not move what was restored.
    stale = iter(batches)
    next(stale)
    sampler.restore({**sampler.state(0), "epoch": 7})
    list(stale)
    assert sampler.epoch == 7
    assert sampler.state()["examples"] == 0


def test_what_a_process_without_devices_reads() -> None:
    topology = hm.Topology({"x": 2}, [0, 2])
    sampler = hm.ShardedSampler(
        8, global_batch=4, shard=hm.data_shard(topology, "x", process=1), ends="short"
    )
    assert list(sampler.batches) == [[], []]
    assert (len(sampler), sampler.local_batch, list(sampler)) == (0, 0, [])
    assert sampler.state(1)["examples"] == 4


KILLED = """
import json, os, signal, sys, time, hashlib, random
import numpy as np
import hostmesh as hm

log, n = sys.argv[1], 4321
rng = random.Random(0)

def train():
    state, lines = None, open(log).read().split("\\n")
    if len(lines) > 1:
        state = json.loads(lines[-2])["state"]
        os.truncate(log, len("\\n".join(lines[:-1])) + 1)
    processes, size = rng.choice([1, 2, 4, 8]), rng.choice([8, 24, 64])
    order = [i % processes for i in range(8)]
    rng.shuffle(order)
    topology = hm.Topology.build({"x": 8}, processes, order)
    shards = [hm.data_shard(topology, "x", process=p) for p in range(processes)]
    samplers = [
        hm.ShardedSampler(n, global_batch=size, shard=s, seed=9, ends="short") for s in shards
    ]
    for sampler in samplers:
        if state: sampler.restore(state)
    with open(log, "a", buffering=1) as out:
        step = 0
        while True:
            rows = np.full(size, -1)
            for sampler, shard in zip(samplers, shards):
                own = sampler.indices(step)
                rows[shard.rows(size)[:len(own)]] = own
            step += 1
            line = {"read": rows[rows >= 0].tolist(), "state": samplers[0].state(step)}
            out.write(json.dumps(line) + "\\n")
            time.sleep(0.001)

open(log, "w").close()
for _ in range(21):
    rng.random()
    if not (child := os.fork()):
        train()
    time.sleep(rng.uniform(0.05, 0.2))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
assert not {"grain", "torch"} & set(sys.modules)
"""


def test_killed_twenty_times_and_restored_on_other_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", KILLED, str(log)], check=True, timeout=120)
    lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
    read = [i for line in lines for i in line["read"]]
    whole = hm.ShardedSampler(4321, global_batch=4321, seed=9)
    epochs = len(read) // 4321 + 1
    assert read == np.concatenate([whole.indices(k) for k in range(epochs)])[: len(read)].tolist()
    assert len(read) > 4321


def table(n: int) -> np.ndarray:
    return np.arange(n * 64, dtype=np.int32).reshape(n, 8, 8)


def columns(value: np.ndarray, shard: hm.DataShard) -> np.ndarray:
    """Of each example, what the shard's ranges say."""
    for axis, spans in enumerate(shard.ranges((24 * 8, 8, 8))[1:], 1):
        value = value.take([i for start, stop in spans for i in range(start, stop)], axis)
    return value


def check_batches(mesh: Mesh, spec: Any, layout: oracle.Layout, global_batch: int) -> None:
    data = table(100)
    whole = hm.ShardedSampler(100, global_batch=global_batch, seed=4)
    sampler = hm.ShardedSampler(100, global_batch=global_batch, seed=4, mesh=mesh, spec=P(*spec))
    for batch in range(2):
        expected = data[whole.indices(batch)]
        local: Any = jax.ShapeDtypeStruct(expected.shape, data.dtype)
        if sampler.shard.index is not None:
            local = columns(data[sampler.indices(batch)], sampler.shard)
        array = hm.to_global(local, mesh, P(*spec))
        oracle.assert_shards(array, mesh, layout, expected)


@pytest.mark.multiprocess
def test_row_i_of_the_order_is_row_i_of_the_global_array() -> None:
    for _, kind, spec, layout in oracle.layouts():
        check_batches(kind.mesh(), spec, layout, 16)


@pytest.mark.multiprocess(devices=[1, 3, 2, 2])
def test_rows_on_unequal_and_missing_devices() -> None:
    for mesh, spec, layout in random_layouts(40, seed=6):
        if all(8 % n == 0 for n in layout.counts[1:]):
            check_batches(mesh, spec, layout, 24)


EIGHT_DEVICES = [
    pytest.param(n, marks=pytest.mark.multiprocess(processes=n, devices=8 // n), id=str(n))
    for n in (1, 2, 4, 8)
]


@pytest.mark.parametrize("processes", EIGHT_DEVICES)
def test_the_same_global_order_on_real_processes(processes: int) -> None:
    assert jax.process_count() == processes
    mesh = Mesh(np.random.default_rng(processes).permutation(jax.devices()), "x")
    sampler = hm.ShardedSampler(1000, global_batch=16, mesh=mesh, spec=P("x"))
    sampler.restore({"n": 1000, "seed": 0, "shuffle": True, "epoch": 2, "examples": 500})
    whole = jax.jit(lambda x: x, out_shardings=jax.NamedSharding(mesh, P()))
    read = [whole(hm.to_global(sampler.indices(k).astype(np.int32), mesh, P("x"))) for k in (0, 1)]
    assert np.concatenate([hm.to_numpy(x) for x in read]).tolist() == GOLDEN


# Examples 500 to 531 of epoch 2.
GOLDEN = [
    *(216, 546, 91, 974, 235, 706, 0, 705, 609, 731, 185, 628, 259, 693, 761, 941),
    *(48, 769, 319, 393, 814, 999, 603, 837, 459, 569, 885, 925, 572, 427, 127, 579),
]


def test_the_golden_order_is_that_of_one_process() -> None:
    sampler = hm.ShardedSampler(1000, global_batch=20)
    sampler.set_epoch(2)
    assert np.concatenate([sampler.indices(25), sampler.indices(26)])[:32].tolist() == GOLDEN


def refused(kind: type[Exception], match: str, *args: Any, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        hm.ShardedSampler(*args, **options)


def test_errors() -> None:
    refused(hm.SpecError, r"^ShardedSampler\n.*n=0\n.*whole number from 1 to 92", 0, global_batch=1)
    refused(hm.SpecError, r"global_batch=2.0\n.*whole number from 1 on", 9, global_batch=2.0)
    refused(hm.SpecError, r"seed=-1\n.*whole number from 0 to 18", 9, global_batch=1, seed=-1)
    refused(hm.SpecError, r"ends='stop'\n.*'drop', 'pad'", 9, global_batch=1, ends="stop")
    refused(hm.SpecError, r"index of shard=2\n.*from 0 to 1", 9, global_batch=2, shard=(2, 2))
    refused(hm.SpecError, r"both shard and mesh", 9, global_batch=2, shard=(0, 2), spec=P("x"))
    mesh = Mesh(np.array(jax.local_devices()[:1]), "x")
    refused(hm.SpecError, r"a mesh without spec", 9, global_batch=2, mesh=mesh)
    refused(hm.SpecError, r"mesh=None\n.*no mesh is set", 9, global_batch=2, spec=P("x"))
    refused(hm.ShapeError, r"n=9, global_batch=10.*\n.*9 examples has no whole", 9, global_batch=10)
    match = r"9 examples to the end of epoch 0, global_batch=4\n.*9 % 4 = 1"
    refused(hm.ShapeError, match, 9, global_batch=4, ends="error")
    refused(
        hm.ShapeError, r"size 5.*\n.*2 equal chunks: 5 % 2 = 1", 9, global_batch=5, shard=(0, 2)
    )

    sampler = hm.ShardedSampler(12, global_batch=4, ends="error", seed=3)
    with pytest.raises(hm.SpecError, match=r"a state with n=13, seed=1\n.*n=12, seed=3 here\n"):
        sampler.restore({**sampler.state(), "n": 13, "seed": 1})
    with pytest.raises(hm.SpecError, match=r"examples=13\n.*from 0 to 12"):
        sampler.restore({**sampler.state(), "examples": 13})
    with pytest.raises(hm.ShapeError, match=r"6 examples to the end of epoch 5.*\n.*6 % 4 = 2"):
        sampler.restore({**sampler.state(), "epoch": 5, "examples": 6})
    assert sampler.state() == hm.ShardedSampler(12, global_batch=6, seed=3).state()
    with pytest.raises(IndexError):
        sampler.indices(-1)
    with pytest.raises(hm.SpecError, match=r"None batches for 1 Grain workers"):
        hm.ShardedSampler(9, global_batch=4, ends="short").for_grain()
    with pytest.raises(hm.SpecError, match=r"3 batches for 2 Grain workers\n.*as many in each"):
        hm.ShardedSampler(12, global_batch=4, epochs=1).for_grain(2)


def test_the_mesh_of_the_context() -> None:
    mesh = Mesh(np.array(jax.local_devices()[:1]), "x")
    with jax.set_mesh(mesh):
        assert hm.ShardedSampler(9, global_batch=2, spec=P("x")).shard.of_chunks == 1


def test_pytorch() -> None:
    data = pytest.importorskip("torch.utils.data")
    numbers = [10 * i for i in range(26)]
    ours, pure, plan = (hm.ShardedSampler(26, global_batch=8, shard=(1, 2)) for _ in range(3))
    by_batch = data.DataLoader(numbers, batch_sampler=ours.batches, collate_fn=list)
    by_index = data.DataLoader(numbers, sampler=pure, batch_size=pure.local_batch, collate_fn=list)
    for epoch in range(3):
        expected = [(10 * plan.indices(3 * epoch + k)).tolist() for k in range(3)]
        for loader, sampler in ((by_batch, by_batch.batch_sampler), (by_index, by_index.sampler)):
            sampler.set_epoch(epoch)
            assert len(loader) == 3
            assert list(loader) == expected


def test_pytorch_with_workers_that_read_ahead() -> None:
    data = pytest.importorskip("torch.utils.data")
    numbers = [10 * i for i in range(80)]
    sampler, plan = (hm.ShardedSampler(80, global_batch=8, shard=(1, 2)) for _ in range(2))
    loader = data.DataLoader(
        numbers,
        batch_sampler=sampler.batches,
        collate_fn=list,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="forkserver",  # JAX forbids forks of its process
    )
    expected = [(10 * plan.indices(k)).tolist() for k in range(20)]
    assert list(loader) == expected[:10]
    used = list(itertools.islice(loader, 3))
    assert used == expected[10:13]
    assert sampler.state() == plan.state(10 + 3 + 4) != sampler.state(13)  # two for each worker
    sampler.restore(sampler.state(13))
    assert list(loader) == expected[13:]


class Numbers:
    """A Grain source of `n` numbers, ten times their index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> np.int64:
        return np.int64(10 * index)

    def __repr__(self) -> str:
        return f"Numbers({self.n})"


def grain_loader(sampler: hm.ShardedSampler, workers: int = 0) -> Any:
    import grain

    return grain.DataLoader(
        data_source=Numbers(50),
        sampler=sampler.for_grain(workers),
        operations=[grain.transforms.Batch(sampler.local_batch)],
        shard_options=grain.sharding.NoSharding(),
        worker_count=workers,
    )


SHARD = hm.data_shard(hm.Topology.build({"x": 4}, 2, "interleaved"), "x", process=1)
FOR_GRAIN: Any = {"global_batch": 8, "shard": SHARD, "epochs": 2}


def test_grain() -> None:
    plan = hm.ShardedSampler(50, **FOR_GRAIN)
    expected = [(10 * plan.indices(k)).tolist() for k in range(12)]
    iterator = iter(grain_loader(plan))
    read = [next(iterator).tolist() for _ in range(5)]
    kept, state = iterator.get_state(), plan.state(5)
    assert read + [batch.tolist() for batch in iterator] == expected
    again = iter(grain_loader(plan))
    again.set_state(kept)  # Grain's own state, for the same loader
    assert [batch.tolist() for batch in again] == expected[5:]
    resumed = hm.ShardedSampler(50, **FOR_GRAIN)
    resumed.restore(state)  # ours, also for others
    assert [batch.tolist() for batch in grain_loader(resumed)] == expected[5:]


def test_grain_with_workers() -> None:
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain's workers are set by flags, which absl.app would parse
    plan = hm.ShardedSampler(50, **FOR_GRAIN)
    expected = [(10 * plan.indices(k)).tolist() for k in range(12)]
    assert [batch.tolist() for batch in grain_loader(plan, workers=2)] == expected
    # As the workers see it: worker w reads every third record from w on, and batches come in turn.
    plan = hm.ShardedSampler(50, global_batch=8, shard=SHARD)
    records = plan.for_grain(3)
    size = plan.local_batch
    for k in range(30):
        turn, worker = divmod(k, 3)
        own = [records[worker + 3 * i] for i in range(turn * size, (turn + 1) * size)]
        assert [record.record_key for record in own] == plan.indices(k).tolist()


def test_randomness_for_grain_goes_by_example() -> None:
    import grain

    one, two = (hm.ShardedSampler(40, global_batch=8, shard=(0, count)) for count in (1, 2))
    with pytest.raises(TypeError):
        one[0]  # type: ignore[index]
    records = [one.for_grain()[i] for i in range(80)]
    assert all(type(record) is grain.RecordMetadata for record in records)
    drawn = {(i // 40, r.record_key): r.rng.integers(2**63) for i, r in enumerate(records)}
    assert len(set(drawn.values())) == 80
    for i in range(40):
        record = two.for_grain()[i]
        assert record.rng.integers(2**63) == drawn[i // 20, record.record_key]
    with pytest.raises(IndexError):
        hm.ShardedSampler(40, global_batch=8, epochs=1).for_grain()[40]
    assert len(hm.ShardedSampler(40, global_batch=8, epochs=1, shard=(1, 4)).for_grain()) == 10


def test_short_batches_with_grain_by_batch_numbers() -> None:
    import grain

    plan = hm.ShardedSampler(50, global_batch=8, shard=(1, 2), epochs=1, ends="short")
    source = Numbers(50)
    batches = grain.MapDataset.range(7).map(lambda k: [source[i] for i in plan.indices(k)])
    read = list(batches.to_iter_dataset())
    assert read == [(10 * plan.indices(k)).tolist() for k in range(7)]
    assert len(read[-1]) == 0
