"""`hostmesh.testing.run` on real processes."""

import os
import signal
import time

import jax
import numpy as np
import pytest

from hostmesh import ClusterError, SpecError
from hostmesh.testing import run, run_doctests
from hostmesh.testing._pool import Pool, Shape


def test_results_come_in_process_order():
    assert run(jax.process_index, 2, 1) == [0, 1]


def test_devices_may_be_uneven_and_the_environment_extended():
    def counts(name):
        return jax.local_device_count(), jax.device_count(), os.environ[name]

    found = run(counts, 2, [1, 3], ("HM_EXTRA",), env={"HM_EXTRA": "here"})
    assert found == [(1, 4, "here"), (3, 4, "here")]


def test_a_cluster_stays_warm_and_large_arrays_travel():
    def double(array):
        return os.getpid(), 2 * array

    array = np.arange(1 << 20)
    first, second = run(double, 2, 1, (array,)), run(double, 2, 1, (array,))
    assert [pid for pid, _ in first] == [pid for pid, _ in second]
    np.testing.assert_array_equal(second[1][1], 2 * array)


def test_processes_share_one_mesh():
    def total():
        mesh = jax.make_mesh((jax.device_count(),), ("x",))
        sharding = jax.NamedSharding(mesh, jax.P("x"))
        array = jax.make_array_from_callback((2,), sharding, lambda index: np.arange(2.0)[index])
        return float(jax.jit(lambda a: a.sum())(array))

    assert run(total, 2, 1) == [1.0, 1.0]


def test_what_a_function_changes_is_put_back():
    def change():
        jax.config.update("jax_enable_x64", True)
        os.environ["HM_LEFT"] = "1"
        os.chdir("/")
        jax.set_mesh(jax.make_mesh((jax.device_count(),), ("x",)))
        return os.getpid()

    def look():
        left = "HM_LEFT" in os.environ
        return jax.config.jax_enable_x64, left, jax.sharding.get_mesh().empty, os.getpid()

    pids = run(change, 2, 1)
    assert run(look, 2, 1) == [(False, False, True, pid) for pid in pids]


def test_a_function_that_leaves_the_cluster_gets_the_next_one_a_new_one():
    before = run(os.getpid, 2, 1)
    run(jax.distributed.shutdown, 2, 1)
    assert not set(before) & set(run(os.getpid, 2, 1))


def test_an_exception_is_told_once_with_its_processes_and_their_output():
    def fail():
        print("from", jax.process_index())
        if jax.process_index() > 0:
            raise ValueError(f"process {jax.process_index()} has 3 rows")

    with pytest.raises(ClusterError) as info:
        run(fail, 3, 1)
    text = str(info.value)
    assert "fail in 3 processes" in text.splitlines()[0]
    assert "given: processes 1, 2:\n         Traceback" in text
    assert text.count("ValueError: process") == 1
    assert "output of process 2:\n         from 2\n" in text


def test_a_result_that_cannot_be_sent_is_an_error():
    with pytest.raises(ClusterError, match="cannot pickle"):
        run(lambda: (x for x in "a"), 2, 1)


def test_the_waiting_are_told_after_the_failed_and_soon():
    def wait():
        if jax.process_index() == 1:
            raise KeyError("first")
        time.sleep(100)

    begin = time.monotonic()
    with pytest.raises(ClusterError) as info:
        run(wait, 2, 1)
    assert time.monotonic() - begin < 20
    text = str(info.value)
    assert 0 < text.index("KeyError: 'first'") < text.index("process 0 had not ended 3 s after")
    assert "time.sleep(100)" in text


def test_a_death_is_told_at_once_with_its_signal_and_the_cluster_is_new_afterwards():
    def die():
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)

    before = run(os.getpid, 2, 1)
    begin = time.monotonic()
    with pytest.raises(ClusterError, match=r"process 1 died: SIGKILL \(signal 9\)"):
        run(die, 2, 1)
    assert time.monotonic() - begin < 5
    assert not set(before) & set(run(os.getpid, 2, 1))


def test_a_stopped_process_is_told_at_the_time_out():
    def stop():
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(
        ClusterError, match=r"process 1 had not ended after 1 s(.|\n)*itself stopped"
    ):
        run(stop, 2, 1, timeout=1)


def test_an_environment_that_jax_refuses_is_told_with_its_output():
    with pytest.raises(ClusterError, match="HM_NO_SUCH_FLAG") as info:
        run(os.getpid, 1, 1, env={"XLA_FLAGS": "--HM_NO_SUCH_FLAG"})
    assert "died" in str(info.value)


@pytest.mark.parametrize(("processes", "devices"), [(0, 1), (2, [1]), (2, [1, 0]), (2, 0)])
def test_counts_that_cannot_be(processes, devices):
    with pytest.raises(SpecError, match=f"processes={processes}"):
        run(os.getpid, processes, devices)


def test_the_least_recently_used_cluster_makes_room():
    pool = Pool()
    a, b, c, d = (Shape((1,), (("HM_N", str(n)),)) for n in range(4))

    class Stub:
        closed = False

        def alive(self):
            return True

        def close(self):
            self.closed = True

    stubs = {shape: Stub() for shape in (a, b, c)}
    pool._clusters.update(stubs)
    pool._clusters.move_to_end(a)
    pool._make_room(len(d.devices))
    assert [stubs[shape].closed for shape in (a, b, c)] == [False, True, False]
    pool._make_room(16)
    assert all(stub.closed for stub in stubs.values())


def documented():
    """An example whose result is the number of processes.

    >>> import jax
    >>> jax.process_count()
    2
    """


def wrongly_documented():
    """An example that fails.

    >>> 1 + 1
    3
    """


def test_doctests_run_in_every_process():
    assert run_doctests(documented, processes=2, devices=1) == 2


def test_a_doctest_that_fails_is_told():
    with pytest.raises(ClusterError, match=r"processes 0, 1:(.|\n)*Expected:\n\s+3\n\s+Got:\n\s+2"):
        run_doctests(documented, wrongly_documented, processes=2, devices=1)
