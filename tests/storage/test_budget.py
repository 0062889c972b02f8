"""The budget of host memory: what is read ahead stays within a process's share, whatever the sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from hostmesh._storage import _budget


def array_on(platform: str) -> Any:
    return SimpleNamespace(
        sharding=SimpleNamespace(addressable_devices=[SimpleNamespace(platform=platform)])
    )


@given(
    st.lists(st.integers(0, 150), max_size=30),
    st.integers(0, 3),
    st.sampled_from([1, 4]),
    st.sampled_from(["cpu", "gpu"]),
)
def test_what_is_under_way_is_within_the_share(
    sizes: list[int], ahead: int, processes: int, platform: str
) -> None:
    held: dict[int, int] = {}  # read, or on its way to a device
    ended: list[int] = []
    arrays: dict[int, int] = {}
    budget = _budget.Budget(100 * processes, processes)

    def begin(number: int) -> int:
        held[number] = sizes[number]
        assert sum(held.values()) <= 100 or list(held.values()).count(0) == len(held) - 1, held
        return number

    def end(number: int, state: int) -> Any:
        assert number == state
        ended.append(number)
        array = array_on(platform)
        arrays[id(array)] = number
        kept.append(array)
        if platform == "cpu":  # the memory is the array's now
            del held[number]
        return [array]

    def arrive(found: Any) -> None:
        for array in found:
            del held[arrays[id(array)]]

    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_budget, "jax", SimpleNamespace(block_until_ready=arrive, Array=object))
        numbers = list(range(len(sizes)))
        _budget.pipelined(numbers, sizes.__getitem__, begin, end, budget, ahead)
    assert ended == numbers


@pytest.mark.multiprocess
def test_processes_of_a_host_share_it(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    tensors = {f"w{i:02d}": oracle.noise((256, 512), np.float32, i) for i in range(12)}
    if jax.process_index() == 0:
        safetensors.numpy.save_file(tensors, file)
    hm.barrier("written")
    steps: list[int] = []
    mesh = meshes.KINDS["block"].mesh()

    def load() -> Any:
        steps.clear()
        return hm.load_safetensors(file, mesh, P(), progress=lambda done, _: steps.append(done))

    load()
    assert len(steps) == 1  # 6 MiB at once
    with hm.config.set(staging_bytes=8 * 2**20):  # 2 MiB a process: one is read, one on its way
        arrays = load()
    assert len(steps) == 6
    for name, array in arrays.items():
        oracle.assert_bits_equal(np.asarray(array.addressable_data(0)), tensors[name], name)
    with hm.config.set(staging_bytes=1):  # each tensor alone
        load()
    assert len(steps) == 12
