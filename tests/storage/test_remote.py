"""Files at a URL: a server on this machine that is slow, and one that fails, counting what it sends."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from hostmesh._storage import _remote

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TENSORS = {
    "split": np.arange(2**18, dtype=np.float32).reshape(128, 2048) / 7,
    "cut": np.arange(2**19, dtype=np.float32).reshape(1024, 512),
    "every": np.arange(2**18, dtype=np.float32).reshape(256, 1024) / 3,
    "one": np.full((), 7, np.float32),
    "small": np.arange(24, dtype=np.int8),
}
SPECS = {"split": P(None, "y"), "cut": P(("x", "y")), "*": P()}
DATA = safetensors.numpy.save(TENSORS)
HEADER = 8 + int.from_bytes(DATA[:8], "little")


@pytest.fixture
def server_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("aiohttp")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _server

    yield _server.Server
    del sys.modules["_server"]


@contextlib.contextmanager
def served(server_of: Any, name: str, **options: Any) -> Generator[tuple[str, Any]]:
    """The URL on all processes, and on process 0 the server."""
    server = server_of(DATA, **options) if jax.process_index() == 0 else None
    with server.running() if server else contextlib.nullcontext():
        yield hm.broadcast_object(server.url(name) if server else ""), server
        hm.barrier("served")


def check(arrays: dict[str, jax.Array]) -> None:
    assert sorted(arrays) == sorted(TENSORS)
    for name, array in arrays.items():
        for shard in array.addressable_shards:
            oracle.assert_bits_equal(np.asarray(shard.data), TENSORS[name][shard.index], name)


@pytest.mark.multiprocess
def test_replicas_come_over_a_slow_wire_once(server_of: Any) -> None:
    mesh = meshes.KINDS["block"].mesh()
    sent = {}
    for replicas in ("read", "once", "auto"):
        with served(server_of, replicas, rate=200e6) as (url, server):
            check(hm.load_safetensors(url, mesh, SPECS, replicas=replicas))
            hm.barrier("loaded")
            if server:
                sent[replicas] = server.nbytes[replicas]
                assert server.requests[replicas] <= 4 * 8
    if sent:
        rest = len(DATA) - HEADER - TENSORS["cut"].nbytes
        assert sent["read"] == len(DATA) + 3 * (HEADER + rest)
        # What lies between two ranges, and is nearer than a request is worth, may come along.
        assert len(DATA) + 3 * HEADER <= sent["once"] <= len(DATA) + 3 * HEADER + 2 * _remote._GAP
        assert sent["auto"] == sent["once"]


@pytest.mark.parametrize("way", ["drop", "short", "cut", "elsewhere", "whole"])
def test_what_fails_is_asked_for_again(
    server_of: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remote, "_PAUSE", 0.001)
    mesh = Mesh(jax.devices()[:1], "x")
    specs = {"*": P()}

    def twice(name: str, start: int, number: int) -> str | None:
        return way if number < 2 and (start > 0 or way in ("drop", "cut")) else None

    with server_of(DATA, 0.0, 1e9, twice).running() as server:
        check(hm.load_safetensors(server.url("m"), mesh, specs))
        assert server.requests["m"] >= 7

    def always(name: str, start: int, number: int) -> str | None:
        return way if start >= HEADER else None

    with server_of(DATA, 0.0, 1e9, always).running() as server:
        url = server.url("m")
        with pytest.raises(hm.StorageError) as caught:
            hm.load_safetensors(url, mesh, specs)
    words = str(caught.value)
    assert words.startswith(url)
    assert f"bytes {HEADER} to {len(DATA)}" in words
    assert "it failed 5 times" in words
    if way == "short":
        assert f" of {len(DATA) - HEADER} from byte {HEADER} on" in words
    if way == "elsewhere":
        assert f"bytes {HEADER - 8}-{len(DATA) - 9}/{len(DATA)} came where" in words
    if way == "whole":
        assert f"all {len(DATA)} bytes came" in words
        assert f"bytes={HEADER}-{len(DATA) - 1} was asked for" in words
    assert ("does the server know ranges?" in words) == (way in ("elsewhere", "whole"))


def test_files_of_an_index_are_opened_several_at_a_time(server_of: Any) -> None:
    files = {
        f"{i}.safetensors": safetensors.numpy.save({f"w{i}": np.full(8, i, np.int32)})
        for i in range(12)
    }
    index = {"weight_map": {f"w{i}": f"{i}.safetensors" for i in range(12)}}
    files["m.safetensors.index.json"] = json.dumps(index).encode()
    together = threading.Barrier(12, timeout=20)

    def fault(name: str, start: int, number: int) -> str | None:
        if start == 8:  # a header: all are asked for before one is answered
            together.wait()
        return None

    with server_of(DATA, 0.0, 1e9, fault, files).running() as server:
        url = f"{server.url('m')}.index.json"
        found = hm.load_safetensors(url, Mesh(jax.devices()[:1], "x"), P())
    assert list(found) == sorted(index["weight_map"], key=index["weight_map"].__getitem__)
    assert all((np.asarray(x) == int(name[1:])).all() for name, x in found.items())


def test_a_server_that_is_not_there_and_a_file_that_is_not(
    server_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remote, "_PAUSE", 0.001)
    with server_of(DATA, fault=lambda name, start, number: "drop").running() as server:
        url = server.url("m")
        with pytest.raises(hm.StorageError, match="failed 5 times"):
            hm.load_safetensors(url, None, P())
    with pytest.raises(hm.StorageError, match="failed 5 times"):
        hm.load_safetensors(url, None, P())
    with server_of(DATA, fault=lambda name, start, number: "missing").running() as server:
        with pytest.raises(hm.StorageError, match=r"FileNotFoundError.*\n.*it failed at once"):
            hm.load_safetensors(server.url("m"), None, P())
        assert server.requests["m"] == 2  # with and without a body
    with pytest.raises(hm.SpecError, match="fsspec has a file system"):
        hm.load_safetensors("nosuch://m.safetensors", None, P())


@pytest.mark.multiprocess
def test_what_one_process_does_not_get_all_are_told_of(
    server_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remote, "_PAUSE", 0.001)
    mesh = meshes.KINDS["block"].mesh()

    def fault(name: str, start: int, number: int) -> str | None:
        return "drop" if start >= HEADER + TENSORS["cut"].nbytes * 3 // 4 else None

    with served(server_of, "m", delay=0.0, rate=1e9, fault=fault) as (url, _):
        kind = hm.StorageError if jax.process_index() == 3 else hm.ClusterError
        with pytest.raises(kind, match="5 times") as caught:
            hm.load_safetensors(url, mesh, {"cut": P(("x", "y"))}, select="cut")
        assert "process 3" in str(caught.value) or jax.process_index() == 3
        hm.barrier("told")


def test_options_of_fsspecs_own_configuration_stay(
    server_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec.config

    own = {"client_kwargs": {"headers": {"X-Key": "secret"}}}
    monkeypatch.setitem(fsspec.config.conf, "http", own)
    with server_of(DATA, 0.0, 1e9).running() as server:
        check(hm.load_safetensors(server.url("m"), Mesh(jax.devices()[:1], "x"), P()))
        assert server.headers["X-Key"] == "secret"


@pytest.mark.parametrize("name", ["%2e%2e/out", "in?side", "a#b", "../out", "http://host/x"])
def test_an_index_at_a_url_names_files_beside_it(name: str) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    index = {"weight_map": {"w": f"{name}.safetensors"}}
    files.pipe_file("/model/m.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(hm.StorageError, match="an index that names the file"):
        hm.load_safetensors("memory://model/m.safetensors.index.json", None, P())
    index["weight_map"]["w"] = "in/side.safetensors"
    files.pipe_file("/model/m.safetensors.index.json", json.dumps(index).encode())
    files.pipe_file("/model/in/side.safetensors", safetensors.numpy.save({"w": TENSORS["cut"]}))
    mesh = Mesh(jax.devices()[:1], "x")
    for url in ("memory://model/m.safetensors.index.json", "memory://model"):
        array = hm.load_safetensors(url, mesh, P())["w"]
        oracle.assert_bits_equal(np.asarray(array), TENSORS["cut"])
