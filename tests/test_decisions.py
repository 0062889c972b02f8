"""Decisions that all processes make alike, and blocks that all leave or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import hostmesh as hm
from apis import both


@both
def test_decisions_are_the_same_everywhere(public: bool) -> None:
    me = jax.process_index()
    for flags in np.ndindex(2, 2, 2, 2):
        assert hm.any_process(flags[me]) is any(flags)
        assert hm.all_processes(np.bool_(flags[me])) is all(flags)
    assert hm.any_process(jax.device_put(np.bool_(me == 2))) is True
    assert hm.same_choice(("lr", me, {1.5})) == ("lr", 0, {1.5})
    odd = [1, 3] if me % 2 else [0, 2]
    assert hm.same_choice(me, processes=odd) == odd[0]
    assert hm.any_process(me == 3, processes=odd) is bool(me % 2)
    array = hm.same_choice(np.arange(3) + me)
    assert array.tolist() == [0, 1, 2]


@both
def test_seeds_and_keys_are_the_same_everywhere(public: bool) -> None:
    me = jax.process_index()
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()
    seeds: list[int] = []
    for source in (0, 3, None):
        seed = hm.agreed_seed(source=source)
        assert set(hm.allgather_object(seed)) == {seed}
        assert 0 <= seed < 2**32
        seeds.append(seed)
    assert len(set(seeds)) == 3
    assert np.random.get_state()[1].tolist() == before
    with jax.transfer_guard("disallow"):
        key, rbg = hm.agreed_key(), hm.agreed_key(source=None, impl="rbg")
    hm.assert_equal([key, rbg])
    assert str(jax.random.key_impl(rbg)) == "rbg"
    assert hm.agreed_seed(processes=[me], source=me) != hm.agreed_seed(processes=[me], source=me)
    with pytest.raises(hm.SpecError, match=r"process 7\n.*processes 0-3 take part"):
        hm.agreed_seed(source=7)


@pytest.mark.multiprocess
def test_a_seed_of_all_depends_on_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostmesh import _decisions

    def drawn(changed: int) -> Callable[[int], bytes]:
        return lambda count: bytes([jax.process_index() == changed]) * count

    seeds: list[int] = []
    for changed in range(-1, 4):
        monkeypatch.setattr(_decisions.secrets, "token_bytes", drawn(changed))
        seeds.append(hm.agreed_seed(source=None))
    assert len(set(seeds)) == 5


@both
def test_what_cannot_be_decided(public: bool) -> None:
    me = jax.process_index()
    with pytest.raises(hm.SpecError if me == 0 else hm.ClusterError, match="at most 65536 bytes"):
        hm.same_choice("x" * 70_000 if me == 0 else "small")
    with pytest.raises(hm.ShapeError if me == 0 else hm.ClusterError, match=r"value\[0\]"):
        hm.same_choice([threading.Lock()])
    with pytest.raises(ValueError if me == 1 else hm.ClusterError, match="ambiguous"):
        hm.any_process(np.zeros(2) if me == 1 else False)
    with pytest.raises(hm.DivergenceError, match="process 2: all_processes at"):
        (hm.all_processes if me == 2 else hm.any_process)(True)
    assert hm.any_process(False) is False


def raised(block: Callable[[], None]) -> Exception | None:
    try:
        block()
    except Exception as error:
        return error
    return None


@both
def test_a_block_is_left_by_all_or_by_none(public: bool) -> None:
    """Wherever one process raises: outside a collective, while others wait in one, within one."""
    me = jax.process_index()

    def outside() -> None:
        with hm.together("save"):
            if me == 2:
                raise ValueError("disk full")

    def before_a_collective() -> None:
        with hm.together("save"):
            if me == 2:
                raise ValueError("disk full")
            hm.allgather(me)

    def before_the_second_of_two() -> None:
        with hm.together("save"):
            hm.allgather(np.zeros(1000))
            with hm.together("inner"):
                if me == 2:
                    raise ValueError("disk full")
                hm.barrier("never")

    for block in (outside, before_a_collective, before_the_second_of_two):
        error = raised(block)
        assert type(error) is (ValueError if me == 2 else hm.ClusterError)
        if me != 2:
            for part in (
                *("process 2: together '", "' at ", "test_decisions.py:", "Traceback (most recent"),
                *(f"in {block.__name__}", 'raise ValueError("disk full")', "ValueError: disk full"),
            ):
                assert part in str(error)
            assert "in together\n" not in str(error)  # of the traceback, the user's part
        hm.barrier("all go on")  # in step

    def within_a_collective() -> None:
        with hm.together("save"):
            hm.allgather("text" if me == 2 else 1)

    error = raised(within_a_collective)
    assert type(error) is (hm.ShapeError if me == 2 else hm.ClusterError)
    hm.barrier("all go on")

    def wrapped() -> None:
        with hm.together("save"):
            try:
                before_a_collective()
            except Exception as error:
                raise RuntimeError("while saving") from error

    assert type(raised(wrapped)) is RuntimeError
    hm.barrier("all go on")

    def wrapped_by_those_who_wait() -> None:
        with hm.together("save"):
            if me == 2:
                raise ValueError("disk full")
            try:
                hm.allgather(me)
            except hm.ClusterError as error:
                raise RuntimeError("while saving") from error

    error = raised(wrapped_by_those_who_wait)
    assert type(error) is (ValueError if me == 2 else RuntimeError)
    hm.barrier("all go on")

    def raised_again_by_one() -> None:
        with hm.together("save"):
            if me == 2:
                assert error is not None
                raise error  # all know of it from another block, but not that it was raised in this

    again = raised(raised_again_by_one)
    assert type(again) is (ValueError if me == 2 else hm.ClusterError)
    hm.barrier("all go on")

    def two_fail() -> None:
        with hm.together("save"):
            if me in (1, 2):
                raise KeyError(me)

    error = raised(two_fail)
    assert type(error) is (KeyError if me in (1, 2) else hm.ClusterError)
    hm.barrier("all go on")

    def handled() -> None:
        with hm.together("save"):
            assert raised(lambda: hm.allgather("text" if me == 2 else 1)) is not None
            hm.barrier("after it")

    assert raised(handled) is None

    def new_failure_after_one_that_was_handled() -> None:
        with hm.together("save"):
            assert raised(lambda: hm.allgather("text" if me == 2 else 1)) is not None
            if me == 1:
                raise ValueError("another")

    error = raised(new_failure_after_one_that_was_handled)
    assert type(error) is (ValueError if me == 1 else hm.ClusterError)
    assert "another" in str(error)
    hm.barrier("all go on")


@both
def test_a_block_among_some_processes(public: bool) -> None:
    me = jax.process_index()

    def inner_of_two() -> None:
        with hm.together("all"):
            if me in (0, 2):
                with hm.together("two", processes=[0, 2]):
                    if me == 2:
                        raise ValueError("only two know")

    error = raised(inner_of_two)
    assert type(error) is (ValueError if me == 2 else hm.ClusterError)
    assert "only two know" in str(error) or me in (1, 3)
    hm.barrier("all go on")
    if me in (0, 2):
        hm.barrier("two go on", processes=[0, 2])


@pytest.mark.private_names
@pytest.mark.multiprocess
def test_leaving_a_block_is_a_barrier_and_compared() -> None:
    me = jax.process_index()
    began = time.monotonic()
    with hm.together("slow"):
        time.sleep(0.5 * (me == 1))
    assert time.monotonic() - began >= 0.4
    name: Any = "train" if me == 3 else "eval"
    with (
        pytest.raises(hm.DivergenceError, match="process 3: together 'train' at "),
        hm.together(name),
    ):
        pass
    with pytest.raises(hm.StragglerError, match=r"process 1 did not come within 0.5 s"):  # noqa: PT012, SIM117
        with hm.together("late", timeout=0.5):
            if me == 1:
                time.sleep(1.5)
    hm.barrier("all go on")


def test_alone_a_block_is_just_a_block() -> None:
    with hm.together("save"):
        assert hm.same_choice(3) == 3
    with pytest.raises(ValueError, match=r"^disk full$"), hm.together("save"):
        raise ValueError("disk full")
