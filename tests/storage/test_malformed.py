"""Malformed files end in our error or in the right result: no other exception, hang, or much memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import malformed
import pytest
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes

MOST = 64 * 2**20


def test_300_files_in_a_process_of_their_own() -> None:
    """`python tests/storage/malformed.py 17` tries one of them alone."""
    command = [sys.executable, malformed.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == malformed.COUNT == 300
    assert [x for x in found if x["outcome"].startswith("WRONG") or x["peak"] > MOST] == []
    refused = Counter(x["file"] for x in found if x["outcome"] == "StorageError")
    same = Counter(x["file"] for x in found if x["outcome"] in ("the same", "loaded"))
    files = {"m.safetensors", "m.safetensors.index.json", "m.npy", "m.npz", "m.zarr", "dump"}
    assert set(refused) == set(same) == files
    said = [x for x in found if x["outcome"] == "StorageError"]
    assert [x for x in said if x["said"].count("\n") != 3] == []


def cut(name: str, shape: tuple[int, ...], dtype: Any) -> P:
    return P(("x", "y")) if shape and shape[0] % 8 == 0 else P()


@pytest.mark.multiprocess
def test_what_one_process_refuses_all_do(tmp_path: Path) -> None:
    mesh = meshes.KINDS["block"].mesh()
    makers = malformed.MAKERS[:-1]  # load_local asks nobody
    outcomes = Counter[bool]()
    for number in range(60):
        folder = tmp_path / str(number)
        if jax.process_index() == 0:
            folder.mkdir()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = makers[number % len(makers)](folder, random.Random(number)).name
        path = folder / hm.broadcast_object(made if jax.process_index() == 0 else "")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                malformed.load(path, mesh, cut)
                ended = True
            except hm.HostmeshError:
                ended = False
        assert len(set(hm.allgather_object(ended))) == 1, (number, path, ended)
        outcomes[ended] += 1
    assert min(outcomes.values()) > 9
