"""Agreement: the pure parts, the tree of posts on real processes, and what rounds leave behind."""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostmesh import _rounds
from hostmesh._verdict import Call, Post, Verdict, decide, name_processes

ROUNDS = int(os.environ.get("HOSTMESH_TEST_ROUNDS", "300"))
EIGHT = pytest.mark.multiprocess(processes=8, devices=1)

calls = st.builds(Call, st.sampled_from("ab"), st.sampled_from(("x.py:1", "x.py:2")))


@given(st.sets(st.integers(0, 5000), min_size=1))
def test_process_names_tell_each_process_once(numbers: set[int]) -> None:
    word, _, listed = name_processes(numbers).partition(" ")
    assert word == ("process" if len(numbers) == 1 else "processes")
    found: list[int] = []
    for part in listed.split(", "):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(numbers)


@given(st.lists(st.tuples(calls, st.binary(max_size=9)), min_size=1, max_size=40))
def test_posts_and_verdicts_survive_their_journey(posted: list[tuple[Call, bytes]]) -> None:
    together = Post()
    for rank, (call, data) in enumerate(posted):
        together.add(Post.unpacked(Post({call: [rank]}, {rank: data}).packed()))
    assert Post.unpacked(together.packed()) == together
    verdict = decide(together, range(len(posted)))
    assert Verdict.unpacked(verdict.packed()) == verdict
    if len({call for call, _ in posted}) > 1:
        assert verdict.kind == "diverged"
        for rank, (call, _) in enumerate(posted):
            whole = [
                group
                for group in verdict.rule.split("; ")
                if group.endswith(f"{call.what} at {call.site}")
            ]
            assert len(whole) == 1
            same = [p for p, (other, _) in enumerate(posted) if other == call]
            assert rank in same
            assert whole[0].startswith(f"{name_processes(same)}: ")
    else:
        assert verdict.kind == "agreed"
        assert verdict.data in (tuple(data for _, data in posted), ())
        assert bool(verdict.data) == any(data for _, data in posted)


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        (Call("reduce(sum) of float32[4]", "a.py:3"), "values"),
        (Call("reduce(sum) of float32[3]", "a.py:4"), "lines"),
        (Call("reduce(sum) of float32[4]", "a.py:4"), "order"),
        (Call("reduce(max) of float32[3]", "a.py:3"), "order"),
        (Call("barrier 'eval'", "a.py:3"), "order"),
    ],
)
def test_a_divergence_tells_how_the_calls_are_apart(other: Call, apart: str) -> None:
    here = Call("reduce(sum) of float32[3]", "a.py:3")
    assert decide(Post({here: [0, 2], other: [1]}), [0, 1, 2]).apart == apart


def test_a_failure_counts_before_a_divergence_and_members_have_their_own_numbers() -> None:
    failed = Call("gather", "a.py:3", "ValueError: no")
    verdict = decide(Post({Call("barrier", "b.py:1"): [0, 1], failed: [2]}), [1, 4, 6])
    assert verdict == Verdict("failed", "process 6: gather at a.py:3 failed: ValueError: no")


@given(st.integers(1, 5000), st.integers(1, 40))
def test_the_tree_reaches_every_rank_once(count: int, fan_in: int) -> None:
    before, _rounds.FAN_IN = _rounds.FAN_IN, fan_in
    try:
        children = [rank for parent in range(count) for rank in _rounds._children(parent, count)]
        assert children == list(range(1, count))
        for parent in range(min(count, 50)):
            assert all((r - 1) // fan_in == parent for r in _rounds._children(parent, count))
    finally:
        _rounds.FAN_IN = before


@pytest.mark.private_names
@EIGHT
def test_a_tree_of_processes_that_come_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import numpy as np

    import hostmesh as hm

    monkeypatch.setattr(_rounds, "FAN_IN", 2)  # 0 <- 1, 2; 1 <- 3, 4; 2 <- 5, 6; 3 <- 7
    me = jax.process_index()
    for number in range(20):
        # A permutation of arrivals, the same on all; sometimes slow enough for an inner node to
        # say that it waits.
        order = random.Random(number).sample(range(8), 8)
        time.sleep(order.index(me) * (0.06 if number % 5 == 0 else 0.003))
        assert hm.allgather(me * 100 + number).tolist() == [p * 100 + number for p in range(8)]
    for who in ([1, 3, 4, 7], [0, 2, 3, 5, 6, 7]):
        if me in who:
            assert hm.allgather(me, processes=who).tolist() == who
    big = np.arange(5000) + me
    assert [row[0] for row in hm.allgather(big)] == list(range(8))
    # A divergence of one leaf reaches all by the tree.
    with pytest.raises(hm.DivergenceError) as diverged:
        hm.barrier("stray" if me == 7 else "usual", timeout=20)
    assert "processes 0-6: barrier 'usual'" in str(diverged.value)
    assert "process 7: barrier 'stray'" in str(diverged.value)
    # An inner node that is late is named, and not those who have posted to it; so is a leaf.
    for late in (1, 7):
        if me == late:
            time.sleep(3)
        with pytest.raises(hm.StragglerError) as stray:
            hm.barrier("late", timeout=1.5)
        assert f"process {late} did not come within 1.5 s" in str(stray.value)
        assert "HOSTMESH_WATCHDOG=60 in the environment reports it" in str(stray.value)
        came = name_processes(set(range(8)) - {late})
        assert f"came: {came}: barrier 'late'" in str(stray.value)
        hm.barrier("again", timeout=30)
    # A failure of a leaf does not wait for the tree.
    with pytest.raises(hm.HostmeshError) as failed:
        hm.allgather("text" if me == 6 else np.float32(0), timeout=20)
    assert me == 6 or "process 6: allgather" in str(failed.value)
    assert hm.allgather(me).tolist() == list(range(8))


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=1, timeout=60 + ROUNDS // 20)
def test_rounds_leave_the_store_as_it_was() -> None:
    import jax
    import numpy as np
    from jax.experimental.multihost_utils import sync_global_devices

    import hostmesh as hm
    from hostmesh import _jax

    store = _jax.store()
    assert store is not None
    me = jax.process_index()

    def keys() -> list[str]:
        sync_global_devices("quiet")  # nobody posts while all count
        found = sorted(store.list("hostmesh/"))
        sync_global_devices("counted")
        return [key for key in found if "/rounds/" in key]

    with hm.channel("rounds"):
        for number in range(ROUNDS):
            hm.allgather(np.full((0, 1, 700)[number % 3], me))
            if number % 50 == 0:
                with pytest.raises(hm.DivergenceError):
                    hm.barrier("a" if me == number // 50 % 4 else "b")
        if ROUNDS == 300:  # rounds that end badly leave nothing either
            if me == 2:
                time.sleep(1.5)
            with pytest.raises(hm.StragglerError):
                hm.barrier("late", timeout=0.7)
            with pytest.raises(hm.HostmeshError):
                hm.allgather("text" if me == 3 else 1)
        hm.barrier("last")
        left = keys()
    # Of all rounds only the last block of 16 is there: of each round the posts of the three others
    # to the root, the verdict, and perhaps the root's word that it waits.
    blocks = {key.split("/")[3] for key in left}
    assert len(blocks) == 1, left
    assert 4 <= len(left) <= 16 * 5, left


@pytest.mark.private_names
@pytest.mark.multiprocess(processes=4, devices=1)
def test_calls_without_data_meet_and_post_only_where_that_fails() -> None:
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    import hostmesh as hm
    from hostmesh import _jax, _rounds

    store = _jax.store()
    assert store is not None

    def rounds() -> set[str]:
        sync_global_devices("quiet")  # nobody posts while all count
        found = store.list("hostmesh/agree/meet/all/")
        sync_global_devices("counted")
        return {key.split("/")[1] for key in found}

    def meet() -> None:
        hm.barrier("here")  # on one line: another one is another call

    with hm.channel("meet"):
        for _ in range(3):
            meet()
        assert rounds() == set()
        if jax.process_index() == 3:
            time.sleep(1.5)  # longer than the others wait at the barrier
        meet()
        assert rounds() == {"3"}
        meet()
        assert rounds() == {"3"}
        channel = _rounds.channel_of("meet", (0, 1, 2, 3))
        channel.named.update(map(str, range(_rounds._NAMES - len(channel.named))))
        meet()
        hm.barrier("a name too many")
        assert rounds() == {"3", "6"}
