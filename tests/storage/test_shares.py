"""Who writes what: every element once, by a holder, and evenly; against brute force."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import oracle
from hostmesh._storage import _boxes, _shares
from hostmesh._storage._runs import runs
from hostmesh._storage._shares import Box, Piece, Tensor


def whole(shape, holders, file=0, start=0, itemsize=4):
    place = tuple((0, size) for size in shape)
    boxes = (Box(place, tuple(holders)),) if math.prod(shape) else ()
    return Tensor(tuple(shape), itemsize, file, start, boxes)


def loads_of(tensors, shares):
    return {
        process: sum(_boxes.elements(p.place) * tensors[p.tensor].itemsize for p in own)
        for process, own in shares.items()
    }


def assert_each_element_once(tensors, shares):
    seen = [np.zeros(tensor.shape, int) for tensor in tensors]
    for process, own in shares.items():
        assert [piece.tensor for piece in own] == sorted(piece.tensor for piece in own)
        for piece in own:
            holding = [
                box
                for box in tensors[piece.tensor].boxes
                if process in box.holders
                and all(
                    a <= c and d <= b for (a, b), (c, d) in zip(box.place, piece.place, strict=True)
                )
            ]
            assert len(holding) == 1
            seen[piece.tensor][(*(slice(*cut) for cut in piece.place), ...)] += 1
    for counts in seen:
        assert (counts == 1).all()


boxes = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=4).map(
    lambda cuts: tuple((start, start + size) for start, size in cuts)
)


@given(box=boxes, data=st.data())
def test_runs_of_elements_are_places_in_their_order(box, data):
    size = _boxes.elements(box)
    first = data.draw(st.integers(0, size))
    last = data.draw(st.integers(first, size))
    expected = list(itertools.product(*(range(*cut) for cut in box)))[first:last]
    found = [
        at
        for place in _shares.within(box, first, last)
        for at in itertools.product(*(range(*cut) for cut in place))
    ]
    assert found == expected
    most = data.draw(st.integers(1, 100))
    parts = list(_shares.batches(box, most))
    assert sum(map(_boxes.elements, parts)) == size
    assert max(map(_boxes.elements, parts)) <= most


@given(box=boxes, data=st.data())
def test_bytes_of_a_place_lie_where_numpy_says(box, data):
    shape = tuple(stop + data.draw(st.integers(0, 2)) for _, stop in box)
    itemsize = data.draw(st.sampled_from([1, 2, 8]))
    length, starts = runs(Tensor(shape, itemsize, 0, 100, ()), Piece(0, box))
    numbers = oracle.ids(shape)[(*(slice(*cut) for cut in box), ...)].reshape(-1)
    expected = (100 + numbers[:, None] * itemsize + np.arange(itemsize)).reshape(-1)
    found = (starts[:, None] + np.arange(length)).reshape(-1)
    np.testing.assert_array_equal(found, expected)
    gaps = np.count_nonzero(np.diff(expected) != 1) + 1
    assert len(starts) == gaps  # runs are as long as they can be


def test_places_that_touch_are_joined_along_rows_first():
    columns = [((0, 4), (y, y + 2)) for y in range(0, 8, 2)]
    assert _shares.merged(columns) == [((0, 4), (0, 8))]
    diagonal = [((0, 2), (0, 2)), ((2, 4), (2, 4))]
    assert _shares.merged(diagonal) == diagonal
    assert _shares.merged([()]) == [()]
    assert _shares.merged([]) == []


def test_boxes_of_every_layout_cover_the_array_and_name_who_holds_them():
    # One process: the mesh's kind is told by who it says the devices belong to.
    for _, kind, spec, layout in oracle.layouts():
        shape = (16, 8, 8)
        held = {}
        for at in np.ndindex(*kind.devices.shape):
            index = _index(layout, shape, at)
            held.setdefault(index, set()).add(int(kind.owners[at]))
        together = {}
        for place, who in held.items():
            together.setdefault(tuple(sorted(who)), []).append(place)
        found = [
            Box(place, who) for who, places in together.items() for place in _shares.merged(places)
        ]
        tensors = [Tensor(shape, 4, 0, 0, tuple(found))]
        shares = _shares.share_out(tensors)
        assert_each_element_once(tensors, shares)
        loads = loads_of(tensors, shares)
        assert max(loads.values()) <= 1.1 * sum(loads.values()) / 4, (kind, spec, loads)


def _index(layout, shape, at):
    numbers = oracle.ids(shape)
    piece = layout.piece(numbers, at)
    low = np.unravel_index(piece.min(), shape)
    high = np.unravel_index(piece.max(), shape)
    return tuple((int(a), int(b) + 1) for a, b in zip(low, high, strict=True))


@pytest.mark.parametrize(
    "shape",
    [(997,), (1, 997), (997, 1), (13, 7, 11), (3, 333_333), (4096, 129), (2, 2, 2, 2, 2, 125)],
)
@pytest.mark.parametrize("processes", [2, 3, 4, 7])
def test_a_replicated_tensor_is_split_evenly_whatever_its_size(shape, processes):
    tensors = [whole(shape, range(processes))]
    shares = _shares.share_out(tensors)
    assert_each_element_once(tensors, shares)
    loads = loads_of(tensors, shares)
    mean = sum(loads.values()) / processes
    assert max(loads.values()) <= 1.1 * mean
    # Each process's part lies together in the file, but for the ends of rows.
    assert all(len(own) <= 2 * len(shape) + 1 for own in shares.values())


def test_scalars_and_empty_tensors_are_written_by_one_and_by_nobody():
    tensors = [whole((), range(4)), whole((0, 3), range(4)), whole((1,), (2,)), whole((3,), (3, 1))]
    shares = _shares.share_out(tensors)
    assert_each_element_once(tensors, shares)
    assert 1 not in {piece.tensor for own in shares.values() for piece in own}


def test_who_holds_much_alone_writes_less_of_what_others_hold_too():
    tensors = [whole((1000,), (0,)), whole((3000,), range(4))]
    loads = loads_of(tensors, _shares.share_out(tensors))
    assert loads == {0: 4000, 1: 4000, 2: 4000, 3: 4000}
    tensors = [whole((9000,), (0,)), whole((1000,), (0, 1))]  # nothing to be done about it
    assert loads_of(tensors, _shares.share_out(tensors)) == {0: 36000, 1: 4000}


def test_chains_of_replicas_are_levelled_too():
    """Each total touches only its neighbours': water runs on from one to the next."""
    tensors = [whole((10**6,), holders) for holders in [(0, 1), (1, 2), (2, 3), (3, 4)]]
    loads = loads_of(tensors, _shares.share_out(tensors))
    assert max(loads.values()) <= 1.1 * sum(loads.values()) / 5


@given(st.dictionaries(
    st.sets(st.integers(0, 5), min_size=1, max_size=4).map(lambda s: tuple(sorted(s))),
    st.integers(0, 1000), min_size=1, max_size=6,
))  # fmt: skip
def test_the_largest_load_is_the_least_that_can_be(totals):
    taken = _shares.level(totals)
    loads = dict.fromkeys(range(6), 0)
    for holders, amounts in taken.items():
        assert sum(amounts) == totals[holders]
        assert min(amounts) >= 0
        for process, amount in zip(holders, amounts, strict=True):
            loads[process] += amount
    # By Hall's theorem the least maximum is the densest set of processes.
    processes = range(6)
    best = max(
        sum(total for holders, total in totals.items() if set(holders) <= set(chosen)) / len(chosen)
        for count in range(1, 7)
        for chosen in itertools.combinations(processes, count)
    )
    assert max(loads.values()) <= best * 1.02 + 6


@pytest.mark.parametrize("seed", range(30))
def test_mixtures_of_layouts_are_even_and_complete(seed):
    random = np.random.default_rng(seed)
    tensors, start = [], 0
    for _ in range(20):
        shape = tuple(int(n) for n in random.integers(0, 40, random.integers(0, 4)))
        holders = [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3)][random.integers(5)]
        tensors.append(whole(shape, holders, start=start))
        start += math.prod(shape) * 4
    shares = _shares.share_out(tensors)
    assert_each_element_once(tensors, shares)
    loads = loads_of(tensors, shares)
    assert shares == _shares.share_out(tensors)  # the same wherever it is planned
    best = max(
        sum(
            math.prod(t.shape) * 4 for t in tensors if t.boxes and set(t.boxes[0].holders) <= chosen
        )
        / len(chosen)
        for count in range(1, 5)
        for chosen in map(set, itertools.combinations(range(4), count))
    )
    assert max(loads.values()) <= 1.1 * best + 16


def test_real_shardings_of_one_process():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "x")
    sharding = NamedSharding(mesh, P("x"))
    assert _shares.boxes_of(sharding, (3, 2)) == (Box(((0, 3), (0, 2)), (0,)),)
    assert _shares.boxes_of(sharding, (0, 2)) == ()
    assert _shares.boxes_of(NamedSharding(mesh, P()), ()) == (Box((), (0,)),)
