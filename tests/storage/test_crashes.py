"""Saves that do not end: whoever dies, and whatever the disk says, the file is whole, old or new."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import crash
import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes

SCRIPT = Path(__file__).with_name("crash.py")


def run_cluster(path: Path, last: list[int], several: bool = False) -> list[tuple[int, str]]:
    """Saves in a cluster of its own, and gives each process's end: return code and words."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)]
            + [str(x) for x in (port, process, len(last), path, at, int(several))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for process, at in enumerate(last)
    ]
    try:
        words = [child.communicate(timeout=60)[0] for child in children]  # no hang
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, said.strip()) for child, said in zip(children, words, strict=True)]


def saved(path: Path, seed: int) -> bytes:
    hm.save_safetensors(path, crash.value(seed))
    return path.read_bytes()


# A save is 14 calls of process 0, of which the tenth renames, and 4 of another.
MOMENTS = [
    *((f"process 0 at {at}", [at, 0]) for at in (1, 2, 4, 7, 9, 10, 11, 13)),
    *((f"process 1 at {at}", [0, at]) for at in range(1, 5)),
    *((f"both at {seed}", seed) for seed in range(8)),
]
LATER = [1, 11, 27, 28, 32, 33]
# Of a store: process 0 makes it, fills it, and gives it its name.
STORES = [
    [160, 0],
    [1, 0],
    [40, 0],
    [60, 0],
    [100, 0],
    [140, 0],
    [149, 0],
    [0, 1],
    [0, 20],
    [0, 70],
]
if int(os.environ.get("HOSTMESH_TEST_KILLS", "0")) < len(MOMENTS):  # each waits for a heartbeat
    MOMENTS, LATER = [MOMENTS[i] for i in (2, 5, 7, 9, 12)], [27, 32]
    STORES = STORES[:1]


@pytest.mark.private_names
@pytest.mark.parametrize("last", [m for _, m in MOMENTS], ids=[name for name, _ in MOMENTS])
def test_killed_at_any_moment_the_file_is_whole(tmp_path: Path, last: Any) -> None:
    path = tmp_path / "m.safetensors"
    new = saved(path, 2)
    old = saved(path, 1)
    if isinstance(last, int):
        draw = random.Random(last)
        last = [draw.randint(1, 14), draw.randint(1, 4)]
    ends = run_cluster(path, last)
    assert -signal.SIGKILL in [code for code, _ in ends]
    for (code, words), at in zip(ends, last, strict=True):
        if not at and code == 0:
            assert words in ("saved", "StragglerError", "ClusterError", "JaxRuntimeError")
    found = path.read_bytes()
    assert found in (old, new)
    if any(words == "saved" for _, words in ends):
        assert found == new
    hm.save_safetensors(path, crash.value(3))
    assert os.listdir(tmp_path) == [path.name]
    assert safetensors.numpy.load_file(path)["w0"].tobytes() == crash.value(3)["w0"].tobytes()


@pytest.mark.private_names
@pytest.mark.parametrize("at", LATER)
def test_killed_at_any_moment_several_files_are_whole(tmp_path: Path, at: int) -> None:
    path = tmp_path / "m.safetensors"
    index = tmp_path / "m.safetensors.index.json"
    hm.save_safetensors(path, crash.value(1), max_file_bytes=10**6)

    def load() -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        weights = json.loads(index.read_text())["weight_map"]
        for file in set(weights.values()):
            found |= {
                name: value.tobytes()
                for name, value in safetensors.numpy.load_file(tmp_path / file).items()
            }
        assert set(found) == set(weights)
        return found

    run_cluster(path, [at, 0], several=True)
    assert load() in [{k: v.tobytes() for k, v in crash.value(seed).items()} for seed in (1, 2)]
    hm.save_safetensors(path, crash.value(3), max_file_bytes=10**6)
    assert load() == {name: value.tobytes() for name, value in crash.value(3).items()}
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.private_names
@pytest.mark.parametrize("last", STORES, ids=str)
def test_killed_at_any_moment_a_zarr_store_is_whole(tmp_path: Path, last: list[int]) -> None:
    import zarr

    path = tmp_path / "m.zarr"
    hm.save_zarr(path, crash.value(1))

    def load() -> dict[str, bytes]:
        return {
            name: each[...].tobytes() for name, each in zarr.open_group(path, mode="r").arrays()
        }

    ends = run_cluster(path, last)
    assert -signal.SIGKILL in [code for code, _ in ends]
    assert load() in [{k: v.tobytes() for k, v in crash.value(seed).items()} for seed in (1, 2)]
    hm.save_zarr(path, crash.value(3))
    assert load() == {name: value.tobytes() for name, value in crash.value(3).items()}
    assert os.listdir(tmp_path) == [path.name]


def failing(path: Path, words: str, process: int) -> None:
    """A save fails alike on all, naming the process, and leaves all as it was."""
    before = path.read_bytes()
    array = hm.to_global(np.arange(8_000_000.0), meshes.KINDS["flat"].mesh(), P())
    with pytest.raises(hm.StorageError) as caught:
        hm.save_safetensors(path, {"w": array})
    assert f"process {process}: {words}" in str(caught.value)
    assert f"on process {jax.process_index()}" in str(caught.value)
    hm.barrier("failed")
    assert os.listdir(path.parent) == [path.name]
    assert path.read_bytes() == before
    hm.barrier("looked")


@pytest.mark.multiprocess
@pytest.mark.parametrize("process", [0, 2])
def test_a_file_larger_than_the_limit_is_an_error_on_all(tmp_path: Path, process: int) -> None:
    path = tmp_path / "m"
    hm.save_safetensors(path, {"w": np.arange(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if jax.process_index() == process:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        failing(path, os.strerror(errno.EFBIG), process)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    hm.save_safetensors(path, {"w": np.arange(4)})
    assert safetensors.numpy.load_file(path)["w"].shape == (4,)
    hm.barrier("read")


@pytest.mark.multiprocess
def test_a_full_disk_is_an_error_on_all(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    if jax.process_index() == 0:
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        code = subprocess.run(mount, capture_output=True).returncode
    else:
        code = 0
    if hm.any_process(code):
        pytest.skip("cannot mount a tmpfs here")
    try:
        path = folder / "m"
        hm.save_safetensors(path, {"w": np.arange(3)})
        before = path.read_bytes()
        array = hm.to_global(np.arange(4_000_000.0), meshes.KINDS["flat"].mesh(), P())
        with pytest.raises(hm.StorageError, match=os.strerror(errno.ENOSPC)) as caught:
            hm.save_safetensors(path, {"w": array})
        assert "make room" in str(caught.value)
        hm.barrier("failed")
        assert os.listdir(folder) == ["m"]
        assert path.read_bytes() == before
        hm.barrier("looked")
        hm.save_safetensors(path, {"w": np.arange(9)})
    finally:
        hm.barrier("done")
        if jax.process_index() == 0:
            subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.multiprocess
@pytest.mark.parametrize("process", [0, 3])
def test_no_permission_is_an_error_on_all(
    tmp_path: Path, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    hm.save_safetensors(path, {"w": np.arange(3)})
    original = os.open

    def refuse(name: Any, *args: Any, **options: Any) -> int:
        if str(name).endswith(".tmp"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
        return original(name, *args, **options)

    if jax.process_index() == process:
        monkeypatch.setattr(os, "open", refuse)
    failing(path, os.strerror(errno.EACCES), process)


@pytest.mark.multiprocess
def test_a_folder_that_is_not_shared_is_an_error_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = jax.process_index()
    own = tmp_path / ("other" if me == 2 else "one")
    hm.barrier("begin")
    own.mkdir(exist_ok=True)
    monkeypatch.chdir(own)
    with pytest.raises(hm.StorageError, match="process 2: does not see the file") as caught:
        hm.save_safetensors("m", {"w": np.arange(3)})
    assert "all hosts share" in str(caught.value)
    hm.barrier("failed")
    assert os.listdir(own) == []


@pytest.mark.private_names
@pytest.mark.multiprocess
def test_a_process_that_stays_away_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m"
    hm.save_safetensors(path, {"w": np.arange(3)})
    before = path.read_bytes()
    if jax.process_index() == 3:
        time.sleep(2.5)
    with hm.config.set(timeout=1.0), pytest.raises(hm.StragglerError, match="process 3 did not"):
        hm.save_safetensors(path, {"w": np.arange(4)})
    hm.barrier("go on")
    assert os.listdir(tmp_path) == ["m"]
    assert path.read_bytes() == before
    hm.barrier("read")
