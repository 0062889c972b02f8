"""Planning, against the brute-force oracle."""

from __future__ import annotations

import itertools
import math
import os
import pickle
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import oracle

LETTERS = "abcd"
# How many layouts; the mutation tests make do with fewer, a long run tries more.
EXAMPLES = int(os.environ.get("HOSTMESH_TEST_FUZZ", "2000"))


@dataclass(frozen=True)
class Case:
    layout: oracle.Layout
    shape: tuple[int, ...]
    spec: tuple[Any, ...]

    @property
    def topology(self) -> hm.Topology:
        return hm.Topology(self.layout.axes, self.layout.owners)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 4 mesh axes, devices of any process in any order, rank 0 to 4, empty arrays too.

    Process numbers have gaps, so that there are processes without devices; processes have unequal
    numbers of devices, as on a mesh of a part of the cluster.
    """
    sizes = draw(st.lists(st.integers(1, 4), max_size=4).filter(lambda s: math.prod(s) <= 48))
    axes = tuple(zip(LETTERS, sizes, strict=False))
    size = math.prod(sizes)
    kind = draw(st.sampled_from(["any", "block", "interleaved", "shuffled"]))
    processes = draw(st.integers(1, 6))
    if kind == "any":
        owners = draw(st.lists(st.integers(0, processes - 1), min_size=size, max_size=size))
    else:
        numbers = np.arange(size)
        owners = numbers * processes // size if kind == "block" else numbers % processes
        if kind == "shuffled":
            owners = np.array(draw(st.permutations(owners.tolist())), np.int64)
    owners = np.asarray(owners, np.int64).reshape(sizes) * draw(st.integers(1, 2))

    rank = draw(st.integers(0, 4))
    cuts: list[list[str]] = [[] for _ in range(rank)]
    if rank:
        for name, _ in draw(st.permutations(axes)):
            place = draw(st.integers(0, rank))
            if place < rank:
                cuts[place].append(name)
    layout = oracle.Layout(axes, owners, tuple(map(tuple, cuts)))
    shape = tuple(n * draw(st.integers(0 if n < 3 else 1, 2)) for n in layout.counts)
    # A spec may write an uncut dimension as None or (), an axis alone or in a tuple, and may stop
    # after the last cut.
    spec = [
        draw(st.sampled_from([None, ()]))
        if not cut
        else draw(st.sampled_from([cut[0], tuple(cut)]))
        if len(cut) == 1
        else tuple(cut)
        for cut in cuts
    ]
    while spec and not spec[-1] and draw(st.booleans()):
        spec.pop()
    return Case(layout, shape, tuple(spec))


everything, half = (
    settings(
        max_examples=count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    for count in (EXAMPLES, -(-EXAMPLES // 2))
)


@everything
@given(cases())
def test_every_device_of_random_layouts(case: Case) -> None:
    layout, value = case.layout, oracle.ids(case.shape)
    plan = hm.plan(case.topology, case.spec, global_shape=case.shape)
    assert plan.global_shape == case.shape
    assert plan.chunk_counts == layout.counts
    placed = {}
    for process in range(int(layout.owners.max()) + 2):
        devices = layout.devices(process)
        placements = plan.placements(process)
        assert [p.position for p in placements] == [position for position, _ in devices]
        local = layout.local(value, process) if devices else None
        for (_, at), placement in zip(devices, placements, strict=True):
            shard = layout.piece(value, at)
            assert placement.chunk == layout.chunk(at)
            assert shard.shape == plan.shard_shape
            assert np.array_equal(value[placement.global_index], shard)
            assert local is not None
            assert np.array_equal(local[placement.local_index], shard)
            assert local[placement.local_index].shape == shard.shape
        placed[process] = placements
        assert plan.local_shape(process) == (None if local is None else local.shape)
        assert list(plan.chunks(process)) == layout.chunks(process)
        missing = sorted(set(layout.product(process)) - set(layout.chunks(process)))
        if not devices:
            missing = []
        assert list(plan.missing(process)) == missing
        assert plan.is_product(process) == (not missing)
        assert plan.is_subcube(process) == layout.is_subcube(process)
        nbytes = sum(layout.piece(value, at).nbytes for _, at in devices)
        assert plan.process_nbytes(np.int64, process) == nbytes
    assert sum(map(len, placed.values())) == plan.topology.size


@half
@given(cases(), st.data())
def test_from_local_shapes_of_random_layouts(case: Case, data: st.DataObject) -> None:
    """Each process's own shape gives back the global one; dimensions may be given whole."""
    layout, value = case.layout, oracle.ids(case.shape)
    shapes = set()
    for process in layout.processes:
        local = layout.local(value, process)
        shapes.add(local.shape)
        plan = hm.plan(case.topology, case.spec, local_shape=local.shape, process=process)
        assert plan.global_shape == case.shape
        assert plan.local_shape() == local.shape

        whole = data.draw(st.sets(st.integers(0, 3))) & set(range(layout.rank))
        given_whole = layout.local(value, process, whole)
        plan = hm.plan(
            case.topology,
            case.spec,
            local_shape=given_whole.shape,
            global_shape=case.shape,
            process=process,
        )
        assert plan.local_shape() == given_whole.shape
        for placement, (_, at) in zip(plan.placements(), layout.devices(process), strict=True):
            assert np.array_equal(given_whole[placement.local_index], layout.piece(value, at))
        for chunk in plan.chunks():
            assert np.array_equal(
                given_whole[plan.local_index(chunk)], value[plan.global_index(chunk)]
            )
    plan = hm.plan(case.topology, case.spec, global_shape=case.shape)
    assert plan.is_uniform == (len(shapes) == 1)
    held = {tuple(map(len, layout.held(process))) for process in layout.processes}
    if len(held) == 1:
        assert hm.plan(case.topology, case.spec, local_shape=shapes.pop()).global_shape == (
            case.shape
        )
    else:
        with pytest.raises(hm.ShapeError, match="different numbers of chunks"):
            hm.plan(case.topology, case.spec, local_shape=shapes.pop())


@half
@given(cases())
def test_replica_groups_of_random_layouts(case: Case) -> None:
    layout = case.layout
    plan = hm.plan(case.topology, case.spec, global_shape=case.shape)
    chunks = list(itertools.product(*map(range, layout.counts)))
    groups = {chunk: tuple(layout.replica_group(chunk)) for chunk in chunks}
    assert plan.replica_groups == groups
    assert plan.is_replicated == any(len(group) > 1 for group in groups.values())


def test_equal_questions_share_a_plan() -> None:
    topology = hm.Topology.build({"x": 2, "y": 2}, processes=2)
    first = hm.plan(topology, P("x"), local_shape=(4, 4), process=0)
    again = hm.Topology.build({"x": 2, "y": 2}, processes=2)
    assert hm.plan(again, P("x"), local_shape=[4, np.int64(4)], process=0) is first
    assert hm.plan(again, P("x"), local_shape=(4, 4), process=1) != first
    same = pickle.loads(pickle.dumps(first))
    assert same == first
    assert hash(same) == hash(first)


def test_plans_do_not_change_and_sizes_go_by_name() -> None:
    topology = hm.Topology.build({"x": 2}, processes=2)
    plan = hm.plan(topology, "x", global_shape=(4,), process=0)
    with pytest.raises(FrozenInstanceError):
        plan.process = 1  # pyright: ignore
    with pytest.raises(FrozenInstanceError):
        plan.placements()[0].chunk = (1,)  # pyright: ignore
    with pytest.raises(TypeError, match="positional"):
        hm.plan(topology, "x", (4,))  # pyright: ignore


def test_specs_may_be_written_as_partition_spec_tuple_list_or_name() -> None:
    topology = hm.Topology.build({"x": 2, "y": 2}, processes=2)
    for spec in (P("x"), ("x",), ["x"], "x", P(("x",)), (["x"],), P("x", None)):
        assert hm.plan(topology, spec, global_shape=(4, 4)).axes == (("x",), ())


def test_a_plan_costs_time_in_its_own_devices_only() -> None:
    """A process of a mesh of 2**20 devices is planned from its own: no walk over the mesh."""
    topology = hm.Topology.build({"x": 1024, "y": 1024}, processes=2**17)
    plan = hm.plan(topology, (("x", "y"), None), local_shape=(8, 3), process=5)
    assert plan.global_shape == (2**20, 3)
    assert [p.global_index[0].start for p in plan.placements()] == list(range(40, 48))


def test_plan_of_a_mesh_takes_its_devices_processes() -> None:
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    plan = hm.plan(mesh, jax.sharding.PartitionSpec("x"), global_shape=(4,))
    assert plan.topology == hm.Topology({"x": 1}, [jax.devices()[0].process_index])


def test_bounds_and_places_in_words() -> None:
    from hostmesh._plan import abridged, bounds

    assert bounds((slice(None), slice(2, 4)), (3, 8)) == ((0, 3), (2, 4))
    places = [((i, i + 1),) for i in range(7)]
    assert abridged(places[:4]) == "[0:1], [1:2], [2:3], [3:4]"
    assert abridged(places[:5]) == "[0:1], [1:2], [2:3], [3:4] and 1 more"
    assert abridged(places) == "[0:1], [1:2], [2:3], [3:4] and 3 more"


def test_errors_show_the_spec_as_it_is_written_and_what_does_not_fit() -> None:
    topology = hm.Topology.build({"data": 4, "model": 2}, processes=4)
    for spec, words in (
        (P("data", None), "spec P('data', None)"),
        (P(("data", "model"), None), "spec P(('data', 'model'), None)"),
    ):
        with pytest.raises(hm.ShapeError) as refused:
            hm.plan(topology, spec, global_shape=(9, 3))
        assert f"global shape (9, 3), {words}" in str(refused.value)
    with pytest.raises(hm.ShapeError, match="-1"):
        hm.plan(topology, P(), global_shape=(-1,))
    uneven = hm.Topology.build({"x": 10}, processes=4, order=[0, 1, 1, 2, 2, 2, 3, 3, 3, 3])
    with pytest.raises(hm.ShapeError, match=r"such as \[\(1,\), \(2,\), \(3,\)\]\n"):
        hm.plan(uneven, P("x"), local_shape=(12,))


def test_the_local_shape_of_a_process_without_devices_says_nothing() -> None:
    topology = hm.Topology.build({"x": 4}, processes=3, order=[0, 0, 1, 1])
    made = hm.plan(topology, P("x"), local_shape=(5,), global_shape=(8,), process=2)
    assert (made.global_shape, made.whole) == ((8,), (False,))
    with pytest.raises(AttributeError):  # plans are shared
        made.process = 1  # pyright: ignore[reportAttributeAccessIssue]
