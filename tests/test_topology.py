"""Which process each device belongs to."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh

import hostmesh as hm


@st.composite
def topologies(draw: st.DrawFn) -> hm.Topology:
    sizes = draw(st.lists(st.integers(1, 3), max_size=4))
    owners = st.lists(st.integers(0, 5), min_size=math.prod(sizes), max_size=math.prod(sizes))
    return hm.Topology(zip("abcd", sizes, strict=False), draw(owners))


@given(topologies())
def test_positions_of_all_processes_are_all_positions(topology: hm.Topology) -> None:
    flat = topology.process_indices.ravel()
    assert topology.processes == tuple(sorted(set(flat.tolist())))
    for process in range(7):
        positions = topology.positions(process)
        assert positions.tolist() == [i for i, p in enumerate(flat) if p == process]
        assert topology.holds(process) == bool(len(positions))
        for position, at in zip(positions, topology.coordinates(positions), strict=True):
            assert topology.process_indices[tuple(at)] == process
            assert np.ravel_multi_index(tuple(at), topology.process_indices.shape) == position


@given(topologies())
def test_saved_copied_and_pickled_topologies_are_equal(topology: hm.Topology) -> None:
    for other in (
        hm.Topology.from_dict(json.loads(json.dumps(topology.to_dict()))),
        pickle.loads(pickle.dumps(topology)),
        hm.Topology(dict(topology.axes), topology.process_indices.ravel()),
    ):
        assert other == topology
        assert hash(other) == hash(topology)


def test_build_shares_devices_out_by_rule() -> None:
    axes = {"x": 2, "y": 4}
    block = hm.Topology.build(axes, processes=4)
    assert block.process_indices.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    dealt = hm.Topology.build(axes, processes=4, order="interleaved")
    assert dealt.process_indices.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    given = hm.Topology.build(axes, processes=8, order=[7, 6, 5, 4, 3, 2, 1, 0])
    assert given.process_indices.tolist() == [[7, 6, 5, 4], [3, 2, 1, 0]]
    assert hm.Topology.build(AbstractMesh((2, 4), ("x", "y")), processes=4) == block


def test_an_order_names_only_processes_that_there_are() -> None:
    alone = hm.Topology.build({"x": 2}, 1, order=[0, 0])
    assert alone.process_indices.tolist() == [0, 0]
    for processes in (1, 4):
        with pytest.raises(hm.SpecError) as caught:
            hm.Topology.build({"x": 2}, processes, order=[0, processes])
        assert f"process number {processes} with processes={processes}" in str(caught.value)
        assert f"process numbers lie between 0 and {processes - 1}" in str(caught.value)
    with pytest.raises(hm.SpecError, match=r"process numbers of shape \(0,\)"):
        hm.Topology.build({"x": 2}, 1, order=np.zeros(0, int))


def test_what_differs_is_not_equal() -> None:
    topology = hm.Topology({"x": 2, "y": 2}, [0, 0, 1, 1])
    assert topology != hm.Topology({"y": 2, "x": 2}, [0, 0, 1, 1])
    assert topology != hm.Topology({"x": 4, "y": 1}, [0, 0, 1, 1])
    assert topology != hm.Topology({"x": 2, "y": 2}, [0, 1, 0, 1])
    assert topology != "topology"
    same = topology
    assert topology == same


def test_subcubes_of_many_devices() -> None:
    large = hm.Topology.build({"x": 64, "y": 32}, processes=2)
    assert large.is_subcube(0)
    assert not large.is_subcube(2)
    assert not hm.Topology.build({"x": 64, "y": 32}, 2, order="interleaved").is_subcube(0)


def test_process_numbers_are_of_32_bits() -> None:
    assert hm.Topology({"x": 1}, [2**31 - 1]).processes == (2**31 - 1,)
    with pytest.raises(hm.SpecError, match="whole numbers from 0 to 2147483647"):
        hm.Topology({"x": 1}, [2**31])


def test_no_processes_share_nothing_out() -> None:
    for processes in (0, -2):
        with pytest.raises(hm.SpecError, match=f"4 devices for processes={processes}"):
            hm.Topology.build({"x": 4}, processes)


def test_no_process_numbers_are_too_few() -> None:
    with pytest.raises(hm.SpecError, match="process numbers of shape"):
        hm.Topology({"x": 1}, np.zeros(0, int))


def test_contents_cannot_change_under_the_hash() -> None:
    owners = np.array([0, 0, 1, 1])
    topology = hm.Topology({"x": 4}, owners)
    owners[:] = 7
    assert topology.processes == (0, 1)
    with pytest.raises(ValueError, match="read-only"):
        topology.process_indices[0] = 1
    with pytest.raises(AttributeError, match="immutable"):
        topology.axes = ()  # type: ignore[misc]


def test_repr_and_who_are_short() -> None:
    topology = hm.Topology.build({"x": 64}, processes=64)
    assert repr(topology) == "Topology(x=64; 64 devices of 64 processes)"
    assert topology.who() == "processes 0, 1, 2, 3, 4, 5, 6, 7 and 56 more"
    assert hm.Topology.build({"x": 9}, 9).who() == "processes 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert hm.Topology({}, [3]).who() == "processes 3"


def test_the_most_devices_of_a_process() -> None:
    assert hm.Topology({"x": 5}, [3, 0, 3, 3, 0]).most_devices == 3
    assert hm.Topology({}, [4]).most_devices == 1
    assert hm.Topology.build({"x": 4}, 1).processes == (0,)
    assert hm.Topology.build({"x": 8}, 8).who() == "processes 0, 1, 2, 3, 4, 5, 6, 7"
