"""Who reads what, against the brute-force oracle."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import oracle
from meshes import KINDS
from test_plan import Case, cases


def read(value: np.ndarray, ranges: Any) -> np.ndarray:
    """The product of the ranges of each dimension."""
    for dimension, spans in enumerate(ranges):
        kept = [i for start, stop in spans for i in range(start, stop)]
        value = value.take(kept, axis=dimension)
    return value


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(cases().filter(lambda case: case.layout.rank > 0), st.data())
def test_every_process_of_random_layouts(case: Case, data: st.DataObject) -> None:
    layout, value = case.layout, oracle.ids(case.shape)
    axis = data.draw(st.integers(0, layout.rank - 1))
    held = {process: tuple(layout.held(process)[axis]) for process in layout.processes}
    distinct = sorted(set(held.values()))
    disjoint = sum(map(len, distinct)) == len({chunk for own in distinct for chunk in own})
    for process in range(int(layout.owners.max()) + 2):
        shard = hm.data_shard(case.topology, case.spec, process=process, axis=axis)
        assert shard.count == len(distinct)
        assert shard.of_chunks == layout.counts[axis]
        assert shard.even == (disjoint and len(set(map(len, distinct))) == 1)
        assert hash(pickle.loads(pickle.dumps(shard))) == hash(shard)
        if process not in held:
            assert shard.index is None
            assert shard.chunks == shard.processes == shard.replicas == ()
            assert shard.ranges(case.shape) == ((),) * layout.rank
            assert shard.rows(shard.of_chunks).size == 0
            continue
        assert shard.chunks == held[process] == distinct[shard.index]
        same = [p for p in layout.processes if held[p] == held[process]]
        assert list(shard.processes) == same
        assert list(shard.replicas) == [p for p in same if layout.held(p) == layout.held(process)]
        ranges = shard.ranges(case.shape)
        assert all(a < b for spans in ranges for (_, a), (b, _) in itertools.pairwise(spans))
        np.testing.assert_array_equal(read(value, ranges), layout.local(value, process))
        rows = np.arange(case.shape[axis])
        spans = [list(range(start, stop)) for start, stop in ranges[axis]]
        np.testing.assert_array_equal(
            rows[shard.rows(len(rows))], [i for span in spans for i in span]
        )


SHARDS = {
    # kind, spec: even, and for each process its index and chunks.
    ("block", ("x",)): (True, [(0, (0,)), (1, (1,)), (2, (2,)), (3, (3,))]),
    ("interleaved", ("x",)): (True, [(0, (0, 2)), (0, (0, 2)), (1, (1, 3)), (1, (1, 3))]),
    ("interleaved", ("y",)): (True, [(0, (0,)), (1, (1,)), (0, (0,)), (1, (1,))]),
    # Some process shares a chunk with a second one, and another chunk with a third.
    ("permuted", ("x",)): (False, [(0, (0, 2)), (2, (1, 2)), (1, (0, 3)), (3, (1, 3))]),
    ("diagonal", ("y",)): (False, [(0, (0, 1)), (2, (1, 2)), (3, (2, 3)), (1, (0, 3))]),
    ("flat", ()): (True, [(0, (0,))] * 4),
}


@pytest.mark.parametrize(("name", "spec"), SHARDS)
def test_shards_of_known_meshes(name: str, spec: Any) -> None:
    even, expected = SHARDS[name, spec]
    topology = hm.Topology(KINDS[name].axes, KINDS[name].owners)
    found = [hm.data_shard(topology, spec, process=process) for process in range(4)]
    assert [(shard.index, shard.chunks) for shard in found] == expected
    assert {shard.count for shard in found} == {len(set(expected))}
    assert {shard.even for shard in found} == {even}


def test_unequal_numbers_of_devices_are_not_even() -> None:
    topology = hm.Topology({"x": 6}, [0, 0, 0, 1, 2, 2])
    shards = [hm.data_shard(topology, "x", process=process) for process in range(4)]
    assert [(shard.index, shard.count, shard.even) for shard in shards] == [
        *((0, 3, False), (1, 3, False), (2, 3, False), (None, 3, False))
    ]
    assert [shard.ranges((12, 7)) for shard in shards] == [
        *((((0, 6),), ((0, 7),)), (((6, 8),), ((0, 7),)), (((8, 12),), ((0, 7),)), ((), ()))
    ]


def test_errors() -> None:
    topology = hm.Topology.build({"x": 4, "y": 2}, processes=4)
    with pytest.raises(hm.SpecError, match=r"^data_shard\n.*no process\n.*\n.*pass process="):
        hm.data_shard(topology, "x")
    with pytest.raises(hm.SpecError, match=r"^data_shard\n.*'z'.*\n.*'z' is no axis of the mesh"):
        hm.data_shard(topology, ("z",), process=0)
    with pytest.raises(hm.SpecError, match=r"^data_shard\n.*None\n.*says nothing of a layout"):
        hm.data_shard(topology, None, process=0)
    with pytest.raises(hm.SpecError, match=r"^data_shard\n.*axis=-1\n.*from the first dimension"):
        hm.data_shard(topology, ("x",), process=0, axis=-1)
    shard = hm.data_shard(topology, ("x", "y"), process=3)
    with pytest.raises(
        hm.ShapeError,
        match=r"^data shard of process 3\n.*size 6 of dimension 0\n.*4 equal chunks: 6 % 4 = 2\n"
        r".*make it 4 or 8",
    ):
        shard.rows(6)
    with pytest.raises(hm.ShapeError, match=r"size 1 of dimension 1\n.*1 % 2 = 1\n.*make it 2$"):
        shard.ranges((4, 1))
    with pytest.raises(hm.ShapeError, match=r"global shape \(4,\)\n.*2 dimensions or more"):
        shard.ranges((4,))


@pytest.mark.multiprocess
def test_a_mesh_tells_this_process_its_shard() -> None:
    for kind in KINDS.values():
        topology = hm.Topology(kind.axes, kind.owners)
        mesh = kind.mesh()
        own = hm.data_shard(mesh, P("x"))
        assert own == hm.data_shard(topology, ("x",), process=jax.process_index())
        assert hm.data_shard(mesh, P("x"), process=2) == hm.data_shard(topology, "x", process=2)
