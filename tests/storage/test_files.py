"""Names of files and of tensors, and what an index says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hostmesh as hm
from hostmesh._storage import _files
from hostmesh._storage._leaves import named


def test_groups_follow_hugging_faces_rule():
    sizes = {"a": 4, "b": 4, "c": 4, "huge": 100, "d": 4, "e": 0}
    assert _files.split(sizes, 8) == [["a", "b"], ["huge"], ["c", "d", "e"]]
    assert _files.split(sizes, None) == [list(sizes)]
    assert _files.split({}, 8) == [[]]


def test_names_that_are_taken_are_left_alone():
    path = Path("x/model.safetensors")
    names = _files.shard_names(path, 12, ())
    assert names[0] == "model-00001-of-00012.safetensors"
    assert names[-1] == "model-00012-of-00012.safetensors"
    assert _files.shard_names(path, 12, names[5:6])[0] == "model.g2-00001-of-00012.safetensors"
    assert _files.index_path(path) == Path("x/model.safetensors.index.json")


def test_an_index_names_what_is_ours_only():
    path = Path("model.safetensors")
    words = _files.index([["b"], ["a"]], _files.shard_names(path, 2, ()), 7)
    assert json.loads(words) == {
        "metadata": {"total_size": 7},
        "weight_map": {
            "a": "model-00002-of-00002.safetensors",
            "b": "model-00001-of-00002.safetensors",
        },
    }
    assert len(_files.named_by(words, path)) == 2
    for other in ("../model-00001-of-00002.safetensors", "other.safetensors", "/etc/passwd"):
        spoilt = json.dumps({"weight_map": {"a": other}}).encode()
        assert _files.named_by(spoilt, path) == set()
    for spoilt in (b"", b"[]", b"\xff", b'{"weight_map": 3}', b"[" * 10_000):
        assert _files.named_by(spoilt, path) == set()


def test_names_of_leaves():
    tree = {"layer": [{"w": 1}, (2, 3)], "b.c": 4, "": {"x": 5}, 7: None}
    tree.pop(7)
    assert named(tree, "f") == {".x": 5, "b.c": 4, "layer.0.w": 1, "layer.1.0": 2, "layer.1.1": 3}
    assert named({}, "f") == {}
    assert named({"a": None}, "f") == {}
    with pytest.raises(hm.StorageError) as caught:
        named({"a": {"b": 1}, "a.b": 2}, "save")
    assert "['a']['b'] and ['a.b']" in str(caught.value)
    assert "'a.b'" in str(caught.value)
    with pytest.raises(hm.StorageError, match="single ndarray"):
        named(np.zeros(3), "save")
