"""`Feeder` on real processes: every mode of ending, errors, hangs, buffers, threads."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from apis import both
from meshes import KINDS


def mine(array: Any) -> np.ndarray:
    """This process's rows, as they lie in its host-local value."""
    return hm.to_local(array, numpy=True)


def numbered(process: int, examples: int, rows: int) -> list[np.ndarray]:
    """Batches of examples that are all different, also between processes."""
    numbers = np.arange(examples, dtype=np.int32) + 10_000 * (process + 1)
    return [numbers[start : start + rows] for start in range(0, examples, rows)]


def expected(counts: list[int], rows: int, ends: str) -> list[list[np.ndarray]]:
    """What each process's part of each batch holds, by the words of the issue."""
    batches = [numbered(process, count, rows) for process, count in enumerate(counts)]
    length = max(map(len, batches))
    filled = [own + [np.empty(0, np.int32)] * (length - len(own)) for own in batches]
    steps = [[own[step] for own in filled] for step in range(length)]
    if ends == "pad":
        return steps
    full = [all(len(own) == rows for own in step) for step in steps]
    return steps[: full.index(False)] if False in full else steps


def check_ends(counts: list[int], rows: int, ends: Any, prefetch: int) -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    steps = expected(counts, rows, ends)
    capacity = rows
    whole = capacity * jax.process_count()
    source = iter(numbered(me, counts[me], rows))
    feeder = hm.Feeder(source, mesh, P("x"), ends=ends, global_batch=whole, prefetch=prefetch)
    uneven = ends == "error" and (len(set(counts)) > 1 or counts[0] % rows)
    got = 0
    try:
        for step, batch in zip(steps, feeder, strict=False):
            data, mask = batch if ends == "pad" else (batch, None)
            assert data.shape == (whole,)
            local = mine(data)
            np.testing.assert_array_equal(local[: len(step[me])], step[me])
            assert not local[len(step[me]) :].any()
            if mask is not None:
                assert mask.shape == (whole,)
                assert mask.sharding.is_equivalent_to(data.sharding, 1)
                assert mine(mask).tolist() == [i < len(step[me]) for i in range(capacity)]
                total = sum(map(len, step))
            else:
                total = whole
            got += total
        assert feeder.state()["examples"] == got
        if uneven:
            shortest = min(counts)
            with pytest.raises(hm.FeedError, match="ended after") as caught:
                next(feeder)
            words = str(caught.value)
            assert f"batch {len(steps)}" in words
            assert f"{shortest} examples" in words
        else:
            with pytest.raises(StopIteration):
                next(feeder)
    finally:
        feeder.close()


def mixes(processes: int, count: int) -> list[tuple[list[int], int, str, int]]:
    chosen = random.Random(processes)
    found: list[tuple[list[int], int, str, int]] = []
    for number in range(count):
        rows = 2 * chosen.choice((1, 2, 4))
        counts = [chosen.choice((0, chosen.randrange(40), 24)) for _ in range(processes)]
        if number % 4 == 0:
            counts = [24] * processes
        found.append((counts, rows, ("drop", "pad", "error")[number % 3], chosen.choice((0, 1, 3))))
    return found


# HOSTMESH_TEST_MIXES=9 tries that many mixes on each number of processes from 1 to 8.
MIXES = int(os.environ.get("HOSTMESH_TEST_MIXES", "9"))
COUNTS = range(2, 9) if "HOSTMESH_TEST_MIXES" in os.environ else (3, 8)


def check_mixes() -> None:
    for counts, rows, ends, prefetch in mixes(jax.process_count(), MIXES):
        if any(counts):
            check_ends(counts, rows, ends, prefetch)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_every_example_as_often_as_the_mode_promises() -> None:
    check_mixes()


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(n, marks=pytest.mark.multiprocess(processes=n, devices=1, timeout=120))
        for n in COUNTS
    ],
)
def test_every_example_as_often_as_the_mode_promises_on(processes: int) -> None:
    assert jax.process_count() == processes
    check_mixes()


def test_every_example_as_often_as_the_mode_promises_alone() -> None:
    check_mixes()


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_masks_are_in_global_order_on_any_mesh(name: str) -> None:
    """Replica groups feed the same; masks and rows are those of the plan on every device."""
    me = jax.process_index()
    mesh = KINDS[name].mesh()
    for spec in (P("x"), P(("x", "y")) if len(mesh.axis_names) > 1 else P(None)):
        plan = hm.plan(mesh, spec, global_shape=(24,), process=me)
        whole = np.arange(1, 25)
        index = [np.arange(24)[plan.global_index(chunk)] for chunk in plan.chunks()]
        rows = np.concatenate(index)
        feeder = hm.Feeder(
            [{"a": whole[rows], "b": whole[rows] * 2.0}] * 2, mesh, spec, ends="pad", check="always"
        )
        for data, mask in feeder:
            assert data["a"].shape == mask.shape == (24,)
            for shard in data["a"].addressable_shards:
                np.testing.assert_array_equal(shard.data, whole[shard.index])
            for shard in mask.addressable_shards:
                assert np.asarray(shard.data).all()


@pytest.mark.multiprocess(processes=4, devices=2)
def test_masks_of_short_batches_on_an_interleaved_mesh() -> None:
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2).T.reshape(-1), "x")
    plan = hm.plan(mesh, P("x"), global_shape=(16,), process=me)
    rows = np.concatenate([np.arange(16)[plan.global_index(c)] for c in plan.chunks()])
    own = 4 - me  # of 4
    feeder = hm.Feeder([rows, rows[:own]], mesh, P("x"), ends="pad")
    next(feeder)
    data, mask = next(feeder)
    real = np.zeros(16, bool)
    for process in range(4):
        other = hm.plan(mesh, P("x"), global_shape=(16,), process=process)
        held = np.concatenate([np.arange(16)[other.global_index(c)] for c in other.chunks()])
        real[held[: 4 - process]] = True
    np.testing.assert_array_equal(hm.allgather(mask), real)
    np.testing.assert_array_equal(hm.allgather(data), np.where(real, np.arange(16), 0))
    assert feeder.state()["examples"] == 16 + 4 + 3 + 2 + 1


@pytest.mark.multiprocess(processes=4, devices=2)
def test_processes_without_rows_learn_what_batches_are_made_of() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    batch = {"x": np.full((1, 3), me, np.float16), "n": [np.arange(1, dtype=np.uint8), None]}
    feeder = hm.Feeder([batch] if me < 2 else [], mesh, P("x"), ends="pad", global_batch=2)
    ((data, mask),) = list(feeder)
    assert data["x"].shape == (8, 3)
    assert data["x"].dtype == np.float16
    assert data["n"][0].dtype == np.uint8
    assert np.flatnonzero(hm.allgather(mask)).tolist() == [0, 2]


def raised(feeder: hm.Feeder) -> tuple[int, Exception]:
    count = 0
    try:
        for _ in feeder:
            count += 1
    except Exception as error:
        return count, error
    raise AssertionError("it ended")


@both
def test_what_a_source_raises_comes_out_everywhere_in_order(public: bool) -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")

    def source() -> Any:
        for _ in range(5):
            yield np.arange(2) + 2 * me
        if me == 2:
            raise ValueError("disk gone")
        while True:
            yield np.arange(2) + 2 * me

    count, error = raised(hm.Feeder(source(), mesh, P("x")))
    assert count == 5
    assert isinstance(error, hm.FeedError)
    for part in ("batch 5", "process 2", "ValueError: disk gone", "in source"):
        assert part in str(error)
    assert isinstance(error.__cause__, ValueError if me == 2 else type(None))
    hm.barrier("all go on")
    if public:
        return

    for kind, words in {
        "structure": "structure",
        "dtype": "float32",
        "shape": "[3]",
        "rows": "5 rows",
    }.items():

        def strange(kind: str = kind) -> Any:
            yield {"a": np.zeros((2, 2)) + me}
            other = {
                "structure": {"b": np.zeros((2, 2))},
                "dtype": {"a": np.zeros((2, 2), np.int8)},
                "shape": {"a": np.zeros((2, 3))},
                "rows": {"a": np.zeros((5, 2))},
            }
            yield other[kind] if me == 3 else {"a": np.zeros((2, 2))}

        count, error = raised(hm.Feeder(strange(), mesh, P("x"), ends="pad"))
        assert (count, type(error)) == (1, hm.FeedError), error
        assert "process 3" in str(error)
        assert "batch 1" in str(error)
        assert words in str(error)
    first = {"a": np.zeros((2, 2), np.int8 if me == 1 else np.int16)}
    count, error = raised(hm.Feeder([first], mesh, P("x"), check=None))
    assert (count, type(error)) == (0, hm.FeedError)
    assert "process 1: a: int8[rows, 2]" in str(error)
    assert "processes 0, 2-3: a: int16[rows, 2]" in str(error)
    for options in ({"ends": "drop" if me else "pad"}, {"pad_to": {"a": {1: 2 + me}}}):
        count, error = raised(hm.Feeder([first], mesh, P("x"), **options))
        assert (count, type(error)) == (0, hm.DivergenceError)
    # A source that cannot even begin.
    count, error = raised(hm.Feeder(7 if me == 2 else [first], mesh, P("x")))
    assert (count, type(error)) == (0, TypeError if me == 2 else hm.FeedError)
    assert me == 2 or "process 2: Feeder(" in str(error)
    assert "'int' object is not iterable" in str(error)
    hm.barrier("all go on")


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=2)
def test_a_source_that_hangs_is_named_everywhere_in_time() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    go_on = threading.Event()

    def source() -> Any:
        for _ in range(3):
            yield np.arange(2) + 2 * me
        if me == 1:
            go_on.wait(60)
        yield np.arange(2) + 2 * me

    began = time.monotonic()
    count, error = raised(hm.Feeder(source(), mesh, P("x"), timeout=1.0))
    assert time.monotonic() - began < 15
    assert (count, type(error)) == (3, hm.StragglerError), error
    for part in ("batch 3", "process 1", "1 s"):
        assert part in str(error)
    go_on.set()
    # One that does not come at all.
    feeder = hm.Feeder([np.arange(2) + 2 * me] * 3, mesh, P("x"), timeout=1.0)
    if me != 2:
        count, error = raised(feeder)
        assert (count, type(error)) == (0, hm.StragglerError)
        assert "process 2 did not come within 1 s" in str(error)
    hm.barrier("all go on")
    if me == 2:
        assert isinstance(raised(feeder)[1], hm.StragglerError)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_a_pause_of_the_step_is_no_failure() -> None:
    me = jax.process_index()
    feeder = hm.Feeder(
        [np.arange(2) + 2 * me + i for i in range(9)],
        Mesh(jax.devices(), "x"),
        P("x"),
        timeout=1.0,
        buffers=2,
    )
    for number, _ in enumerate(feeder):
        if number == 3:
            time.sleep(2.5 if me == 0 else 1.8)
    assert number == 8


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=2)
def test_who_closes_early_leaves_no_thread_and_nobody_hanging() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    before = threading.active_count()

    def endless() -> Any:
        while True:
            yield np.arange(2) + 2 * me

    # All leave the loop; the feeder is dropped.
    for _ in zip(range(3), hm.Feeder(endless(), mesh, P("x")), strict=False):
        pass
    gc.collect()
    # All close; then an exception in the step.
    with hm.Feeder(endless(), mesh, P("x")) as feeder:
        next(feeder)
    with pytest.raises(StopIteration):
        next(feeder)
    with pytest.raises(KeyError), hm.Feeder(endless(), mesh, P("x")) as feeder:
        raise KeyError(next(feeder) is None)
    # One closes, or fails in its step: the others learn of it.
    feeder = hm.Feeder(endless(), mesh, P("x"))
    if me == 1:
        next(feeder)
        feeder.close()
    else:
        _, error = raised(feeder)
        assert isinstance(error, hm.FeedError)
        assert "process 1" in str(error)
        assert "closed its feeder after 1 batches" in str(error)
    feeder = hm.Feeder(endless(), mesh, P("x"))
    if me == 3:
        with pytest.raises(ZeroDivisionError), feeder:
            print(1 / 0, next(feeder))
    else:
        _, error = raised(feeder)
        assert "ZeroDivisionError: division by zero" in str(error) or "process 3" in str(error)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == before
    hm.barrier("all go on")


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=2)
def test_many_feeders_leave_nothing_in_the_store() -> None:
    from hostmesh import _jax, _rounds

    me = jax.process_index()
    store = _jax.store()
    assert store is not None
    mesh = Mesh(jax.devices(), "x")
    hm.barrier("begin")
    channels = len(_rounds._channels)  # this process has run other tests
    sizes: list[int] = []
    for number in range(12):
        feeder = hm.Feeder([np.arange(2) + 2 * me] * 3, mesh, P("x"), prefetch=number % 3)
        assert len(list(feeder)) == 3
        hm.barrier("all ended")
        sizes.append(len(store.list("hostmesh/")))
        hm.barrier("all counted")
    assert max(sizes[4:]) <= max(sizes[:4]) + 4, sizes
    assert len(_rounds._channels) <= channels


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=2)
def test_several_feeders_at_once_and_in_threads() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    results: dict[int, list[int]] = {}

    def work(thread: int) -> None:
        with hm.channel(f"thread {thread}"):
            source = [np.full(2, 100 * thread + i) + 1000 * me for i in range(20)]
            with hm.Feeder(source, mesh, P("x")) as feeder:
                results[thread] = [int(mine(batch)[0]) for batch in feeder]

    threads = [threading.Thread(target=work, args=(t,)) for t in range(3)]
    for thread in threads:
        thread.start()
    one = hm.Feeder([np.full(2, i) + 2 * me for i in range(9)], mesh, P("x"))
    two = hm.Feeder([np.full(2, -i) - 2 * me for i in range(9)], mesh, P("x"))
    for i, (a, b) in enumerate(zip(one, two, strict=True)):
        assert mine(a)[0] == i + 2 * me
        assert mine(b)[0] == -i - 2 * me
    for thread in threads:
        thread.join()
    assert results == {t: [100 * t + i + 1000 * me for i in range(20)] for t in range(3)}


@pytest.mark.multiprocess(processes=4, devices=2)
def test_what_replicas_feed_is_compared() -> None:
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    group = me // 2
    rows = np.arange(8.0).reshape(4, 2) + 10 * group
    assert len(list(hm.Feeder([rows, rows + 1], mesh, P("data"), check="always"))) == 2
    other = rows + (me == 3)
    count, error = raised(hm.Feeder([other, rows], mesh, P("data")))
    assert (count, type(error)) == (0, hm.FeedError)
    assert "processes 2 and 3 hold the same chunk" in str(error)
    # Later batches only with "always"; never with None.
    assert len(list(hm.Feeder([rows, other], mesh, P("data")))) == 2
    count, error = raised(hm.Feeder([rows, other], mesh, P("data"), check="always"))
    assert (count, type(error)) == (1, hm.FeedError)
    assert len(list(hm.Feeder([other], mesh, P("data"), check=None))) == 1
    # Rows that only one of two replicas has.
    count, error = raised(
        hm.Feeder([rows, rows[: 3 + (me == 0)]], mesh, P("data"), ends="pad", check=None)
    )
    assert (count, type(error)) == (1, hm.FeedError)
    assert "process 0: 4 rows; process 1: 3 rows" in str(error)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_a_data_set_that_was_not_split_is_a_warning() -> None:
    mesh = Mesh(jax.devices(), "x")
    me = jax.process_index()
    feeder = hm.Feeder([np.arange(4), np.arange(4)], mesh, P("x"))
    with pytest.warns(UserWarning, match="processes 0-3 feed equal rows in the first batch"):
        next(feeder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(feeder)
        assert len(list(hm.Feeder([np.zeros(4)], mesh, P("x")))) == 1  # all rows alike: no sign
        assert len(list(hm.Feeder([np.arange(4)], mesh, P("x"), check=None))) == 1
        assert len(list(hm.Feeder([np.arange(4)], mesh, P()))) == 1
        assert len(list(hm.Feeder([np.arange(4) + me], mesh, P("x")))) == 1


@pytest.mark.multiprocess(processes=4, devices=2)
def test_parts_of_an_example() -> None:
    """The spec cuts a second dimension over processes: each reads its own part of examples."""
    me = jax.process_index()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "seq"))
    whole = np.arange(4 * 16 * 3).reshape(4, 16, 3)
    plan = hm.plan(mesh, P("data", "seq"), global_shape=whole.shape, process=me)
    local = np.zeros(plan.local_shape(), whole.dtype)
    for chunk in plan.chunks():
        local[plan.local_index(chunk)] = whole[plan.global_index(chunk)]
    for data, mask in hm.Feeder([local, local[:1]], mesh, P("data", "seq"), ends="pad"):
        assert data.shape == whole.shape
        for shard in data.addressable_shards:
            there = whole.copy()
            there[~hm.allgather(mask)] = 0
            np.testing.assert_array_equal(shard.data, there[shard.index])
    # Processes with unequal numbers of devices.
    devices = jax.devices()
    mesh = Mesh(
        np.array([devices[0], devices[2], devices[3], devices[4], devices[6], devices[7]]), "x"
    )
    plan = hm.plan(mesh, P("x"), global_shape=(12,), process=me)
    rows = np.concatenate([np.arange(12)[plan.global_index(c)] for c in plan.chunks()])
    for batch in hm.Feeder([rows, rows], mesh, P("x")):
        np.testing.assert_array_equal(hm.allgather(batch), np.arange(12))


@pytest.mark.multiprocess(processes=4, devices=2)
def test_ragged_axes_get_a_size_that_all_agree_on() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")

    def source() -> Any:
        lengths = random.Random(me)
        for _ in range(6):
            sizes = [lengths.randrange(1, 20) for _ in range(2)]
            yield {"tokens": [np.full(n, n, np.int32) for n in sizes], "id": np.array(sizes)}

    feeder = hm.Feeder(source(), mesh, P("x"), pad_to={"tokens": {1: (4, 12, 20)}})
    shapes: set[tuple[int, ...]] = set()
    for batch in feeder:
        tokens, ids = batch["tokens"], hm.allgather(batch["id"])
        assert hm.allgather(tokens.lengths).tolist() == ids.tolist()
        needed = int(ids.max())
        assert tokens.values.shape == (8, next(n for n in (4, 12, 20) if n >= needed))
        rows = hm.allgather(tokens.values)
        for row, n in zip(rows, ids, strict=True):
            assert row.tolist() == [n] * n + [0] * (len(row) - n)
        shapes.add(tokens.values.shape)
    assert feeder.stats().shapes == len(shapes)
    long = [{"tokens": [np.zeros(30 if me == 1 else 3)] * 2}]
    _, error = raised(hm.Feeder(long, mesh, P("x"), pad_to={"tokens": {1: range(8, 25, 8)}}))
    assert isinstance(error, hm.FeedError)
    assert "an example of length 30" in str(error)
    assert "process 1" in str(error)


@pytest.mark.multiprocess(processes=2, devices=2)
def test_buffers_that_the_source_uses_again() -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    buffer = np.empty((64, 512), np.float32)  # large enough to be taken without a copy

    def reused() -> Any:
        for number in range(12):
            buffer[...] = number + 100 * me
            yield buffer
        buffer[...] = -1

    kept = list(hm.Feeder(reused(), mesh, P("x"), check=None))
    buffer[...] = -2
    for number, batch in enumerate(kept):
        assert (mine(batch) == number + 100 * me).all()
    # Of one memory map: what is written into it later is not seen.
    with tempfile.TemporaryDirectory() as folder:
        rows = np.memmap(f"{folder}/rows", np.float32, "w+", shape=(12 * 64, 512))
        rows[...] = (np.arange(12 * 64) + 1000 * me)[:, None]
        kept = list(hm.Feeder((rows[i : i + 64] for i in range(0, 12 * 64, 64)), mesh, P("x")))
        rows[...] = -1
    for number, batch in enumerate(kept):
        assert (mine(batch)[:, 7] == np.arange(64) + 64 * number + 1000 * me).all()


@pytest.mark.multiprocess(processes=2, devices=2)
def test_stats_name_the_slowest_process() -> None:
    me = jax.process_index()

    def source() -> Any:
        for number in range(8):
            time.sleep(0.03 * me)
            yield np.arange(4) + number + 100 * me

    with hm.Feeder(source(), Mesh(jax.devices(), "x"), P("x"), transform=lambda x: x * 2) as feeder:
        assert feeder.stats().batches == 0
        for _ in feeder:
            pass
        stats = feeder.stats(everywhere=True)
    assert stats.slowest == 1
    assert [one.process for one in stats.others] == [0, 1]
    assert (stats.batches, stats.examples, stats.nbytes) == (8, 32, 8 * 4 * 4)
    assert stats.others[1].source >= 0.2
    assert "8 batches" in stats.line()


def test_what_cannot_be() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    for options, words in (
        ({"ends": "stop"}, "'drop', 'pad' or 'error'"),
        ({"check": "no"}, "'first', 'always' or None"),
        ({"prefetch": -1}, "0 or more"),
        ({"global_batch": 0}, "a multiple of the 1 chunks"),
        ({"buffers": 0}, "above 0"),
        ({"pad_to": {"x": {0: 3}}}, "an axis from 1 on"),
    ):
        with pytest.raises(hm.SpecError, match=words):
            hm.Feeder([], mesh, P("x"), **options)
    with pytest.raises(hm.SpecError, match="alike"):
        hm.Feeder([], mesh, {"a": P("x"), "b": P()})
    with pytest.raises(hm.SpecError):
        hm.Feeder([], mesh, None)
    with pytest.raises(hm.FeedError, match="the first axis of all leaves"):
        next(hm.Feeder([{"a": np.zeros(2), "b": np.zeros(3)}], mesh, P("x")))
    with pytest.raises(hm.FeedError, match="pad_to for y"):
        next(hm.Feeder([{"x": [np.zeros(2)]}], mesh, P("x"), pad_to={"y": {1: 3}}))


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    assert len(list(hm.Feeder([[1, 2]] * 7, mesh, P("x"), progress=True))) == 7
    shown = capsys.readouterr().err.strip().splitlines()
    assert len(shown) == 1
    assert "7 batches, " in shown[0]


@pytest.mark.multiprocess(processes=3, devices=1)
def test_the_first_process_says_what_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    me = jax.process_index()
    mesh = Mesh(jax.devices(), "x")
    source = [np.arange(4), np.arange(4 if me == 1 else 3)]
    assert len(list(hm.Feeder(source, mesh, P("x"), check=None))) == 1
    words = "batch 1, and dropped what there is of it: processes 0, 2: 3 rows; process 1: 4 rows;"
    assert [words in record.getMessage() for record in caplog.records] == [True] * (me == 0)
    assert "a whole batch has 12" in caplog.text or me


def test_alone() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    before = threading.active_count()
    feeder = hm.Feeder([[1, 2], [3, 4]], mesh, P("x"))
    assert [batch.tolist() for batch in feeder] == [[1, 2], [3, 4]]
    assert list(feeder) == []
    feeder.reset()
    assert [batch.tolist() for batch in feeder] == [[1, 2], [3, 4]]
    assert threading.active_count() == before
    feeder = hm.Feeder(iter([{"a": np.int8([1])}]), mesh, P("x"), prefetch=0)
    assert next(feeder)["a"].dtype == np.int8
    assert list(feeder) == []


@pytest.mark.parametrize("prefetch", [1, 3])
def test_devices_hold_a_few_batches(prefetch: int) -> None:
    def source() -> Any:
        while True:
            yield np.zeros((7, 11), np.float32)

    with hm.Feeder(source(), Mesh(jax.devices()[:1], "x"), P("x"), prefetch=prefetch) as feeder:
        most = 0
        for number, _ in enumerate(feeder):
            time.sleep(0.02)
            most = max(most, sum(array.shape == (7, 11) for array in jax.live_arrays()))
            if number == 10:
                break
    assert prefetch + 1 <= most <= prefetch + 2


def test_ctrl_c_in_the_step_and_in_next() -> None:
    program = """
import signal, sys, time, jax, numpy as np, hostmesh as hm
from jax.sharding import Mesh, PartitionSpec as P
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where pytest runs with it ignored
def source():
    for number in range(100):
        time.sleep(30 * (number == 3 and sys.argv[1] == "next"))
        yield np.ones(4)
for number, batch in enumerate(hm.Feeder(source(), Mesh(jax.devices()[:1], "x"), P("x"))):
    if number == 2:
        print("here", flush=True)
        time.sleep(30 * (sys.argv[1] == "step"))
"""
    for where in ("step", "next"):
        process = subprocess.Popen(
            [sys.executable, "-c", program, where], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT, errors.decode()
        assert errors.decode().rstrip().endswith("KeyboardInterrupt")


def test_a_program_waits_for_the_thread_that_drops_the_last_of_a_feeder() -> None:
    # An array that a thread drops while the interpreter is being taken down aborts the process.
    program = """
import os, time, jax, numpy as np, hostmesh as hm
from jax.sharding import Mesh, PartitionSpec as P
class Source:
    def __iter__(self):
        return self
    def __next__(self):
        return np.ones(4)
    def __del__(self):
        time.sleep(1)
        os.write(1, b"dropped")
feeder = hm.Feeder(Source(), Mesh(jax.devices()[:1], "x"), P("x"))
next(feeder)
del feeder
time.sleep(0.3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"dropped"), done.stderr.decode()


@pytest.mark.private_names
def test_a_process_that_ends_without_a_word_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import jax, numpy as np, hostmesh as hm
from jax.sharding import Mesh, PartitionSpec as P
hm.initialize()
me = jax.process_index()
feeder = hm.Feeder((np.arange(2) + 2 * me + i for i in range(10**9)), Mesh(jax.devices(), "x"), P("x"))
for number, batch in enumerate(feeder):
    if me == 1 and number == 5:
        break
""")
    command = [
        str(Path(sys.executable).with_name("hostmesh")),
        "run",
        "-n",
        "3",
        "-d",
        "1",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "process 1: Feeder(" in done.stdout + done.stderr
    assert "its program ended" in done.stdout + done.stderr
