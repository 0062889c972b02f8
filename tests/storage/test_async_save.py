"""`async_save`: copies are written in the background, and what fails comes out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
from apis import both
from hostmesh._storage import _together


def array(fill: float) -> jax.Array:
    sharding = NamedSharding(meshes.KINDS["interleaved"].mesh(), P("x"))
    value = np.full((400, 1000), fill, np.float32)
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)


def found(path: Path) -> float:
    value = safetensors.numpy.load_file(path)["w"]
    assert (value == value[0, 0]).all()
    return float(value[0, 0])


@both
def test_what_is_saved_is_what_was_there_at_the_call(public: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    w = array(1)
    handle = hm.async_save(path, {"w": w, "step": 7})
    w.delete()  # as a step does that is given it
    handle.wait()
    assert handle.done()
    assert found(path) == 1
    handle.wait()  # again
    hm.barrier("read")
    handles = [hm.async_save(path, {"w": array(fill)}) for fill in (2, 3)]
    assert handles[0].done()  # one at a time
    handles[1].wait()
    assert found(path) == 3
    hm.barrier("read")
    hm.async_save(path, {"w": array(4)})
    hm.save_safetensors(tmp_path / "other", {"w": 1})
    assert found(path) == 4
    hm.barrier("read")


@pytest.mark.private_names
@pytest.mark.multiprocess
def test_the_caller_goes_on_while_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collectives of the main thread among it, in whatever order."""
    go = threading.Event()
    write = _together.write

    def held(*args: Any) -> int:
        assert go.wait(30)
        return write(*args)

    monkeypatch.setattr(_together, "write", held)
    path = tmp_path / "m"
    handle = hm.async_save(path, {"w": array(1)})
    for number in range(5):
        assert hm.allgather(number).shape == (4,)
    assert not handle.done()
    assert not path.exists()
    hm.barrier("looked")
    go.set()
    handle.wait()
    assert found(path) == 1
    hm.barrier("read")


@pytest.mark.private_names
@pytest.mark.multiprocess
def test_errors_come_out_at_wait_or_at_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    hm.save_safetensors(path, {"w": array(0)})
    write = _together.write

    def full(*args: Any) -> int:
        if jax.process_index() == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*args)

    words = "process 2: No space left on device"
    with monkeypatch.context() as patched:
        patched.setattr(_together, "write", full)
        handle = hm.async_save(path, {"w": array(1)})
        with pytest.raises(hm.StorageError, match=words):
            handle.wait()
        handle.wait()  # told once
        hm.async_save(path, {"w": array(2)})
        with pytest.raises(hm.StorageError, match=words):
            hm.async_save(path, {"w": array(3)})
        hm.async_save(path, {"w": array(2)})
        with pytest.raises(hm.StorageError, match=words):
            hm.save_safetensors(path, {"w": array(3)})
    assert found(path) == 0
    hm.barrier("read")
    # Heard of by some, and by others at the next save only: an error on all, and no hang.
    with monkeypatch.context() as patched:
        patched.setattr(_together, "write", full)
        handle = hm.async_save(path, {"w": array(1)})
        if jax.process_index() == 1:
            with pytest.raises(hm.StorageError, match=words):
                handle.wait()
        expected = hm.ClusterError if jax.process_index() == 1 else hm.StorageError
        with pytest.raises(expected):
            hm.save_safetensors(path, {"w": array(2)})
    hm.save_safetensors(path, {"w": array(5)})
    assert found(path) == 5
    assert os.listdir(tmp_path) == ["m"]
    hm.barrier("read")


@pytest.mark.multiprocess
def test_its_memory_is_one_copy_of_own_chunks(tmp_path: Path) -> None:
    from hostmesh import _staging

    w = array(1)
    plan = hm.save_safetensors(tmp_path / "m", {"w": w}, explain=True)
    mine = plan.written[jax.process_index()]
    sizes: list[int] = []
    lease = _staging._POOL.lease

    def counted(nbytes: int) -> Any:
        sizes.append(nbytes)
        return lease(nbytes)

    _staging._POOL.lease = counted
    try:
        hm.async_save(tmp_path / "m", {"w": w}).wait()
    finally:
        _staging._POOL.lease = lease
    assert mine <= sum(sizes) <= 1.01 * mine + 2**20
    hm.barrier("read")


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_program_waits_for_it(tmp_path: Path, fails: bool) -> None:
    path = tmp_path / "m"
    program = f"""
import os, time, numpy as np, hostmesh as hm
from hostmesh._storage import _together
write = _together.write
def slow(*args):
    time.sleep(0.5)
    if {fails}:
        raise OSError(28, "No space left on device")
    return write(*args)
_together.write = slow
hm.async_save({str(path)!r}, {{"w": np.ones(3)}})
assert not os.path.exists({str(path)!r})
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert os.listdir(tmp_path) == ([] if fails else ["m"])
    assert ("failed in the background" in ended.stderr) == fails
