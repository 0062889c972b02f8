"""Values between processes come out as they went in, to the bit, on whatever processes need them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from apis import both

INTS = ("int2", "int4", "int8", "int16", "int32", "int64")
UINTS = ("uint2", "uint4", "uint8", "uint16", "uint32", "uint64")
FLOATS = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    *("bfloat16", "float16", "float32", "float64"),
)
DTYPES = ("bool", *INTS, *UINTS, *FLOATS, "complex64", "complex128")


def noise(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits that the dtype has: NaNs of all payloads, subnormals, both zeros, infinities."""
    kind = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    if dtype == "bool":
        raw &= 1
    if dtype in ("int2", "int4", "uint2", "uint4", "float4_e2m1fn"):
        return rng.integers(0, 2, shape).astype(kind)
    return raw.view(kind).reshape(shape)


def everything(seed: int, rows: int) -> dict[str, Any]:
    """A leaf of every dtype and of unusual shapes; large with many `rows`."""
    return {
        "dtypes": {name: noise(name, (rows, 3), seed) for name in DTYPES},
        "0-d": [noise(name, (), seed) for name in DTYPES],
        "empty": (np.zeros((0, 3), np.int16), np.zeros((4, 0))),
        "zeros": np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 5e-324]),
        "strided": noise("float32", (rows, 8), seed)[:, ::-2].T,
        "big-endian": np.arange(rows, dtype=">i4") + seed,
        "numbers": (seed, -1.5 * seed, bool(seed % 2), None, 2**40 + seed, np.int8(seed)),
        "on a device": jax.device_put(noise("bfloat16", (rows,), seed)),
        "keys": keys("threefry2x32", noise("uint32", (3, 2), seed)),
        "one key": keys("rbg", noise("uint32", (4,), seed)),
    }


def keys(impl: str, data: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jax.device_put(data), impl=impl)


def host(leaf: Any) -> np.ndarray:
    """A leaf as plain NumPy, keys as their data."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.device_get(jax.random.key_data(leaf))
    array = np.asarray(jax.device_get(leaf) if isinstance(leaf, jax.Array) else leaf)
    return array.astype(array.dtype.newbyteorder("="))


def assert_same_bits(result: Any, expected: Any) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for got, wanted in zip(
        map(host, jax.tree.leaves(result)), jax.tree.leaves(expected), strict=True
    ):
        wanted = host(wanted)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(list(map(host, leaves))), *trees)


class Pair(NamedTuple):
    """A node that does not travel as a structure."""

    first: Any
    second: Any


@both
def test_every_value_comes_out_bit_for_bit(public: bool) -> None:
    """By the agreement, in one part, and in many; with x64 off and on; whatever else is set."""
    me, count = jax.process_index(), jax.process_count()
    cases = [(False, 0, 4 << 20), (True, 1, 4 << 20), (True, 300, 4 << 20), (False, 300, 32768)]
    for x64, rows, part_bytes in cases:
        with contextlib.ExitStack() as stack:
            for context in (
                jax.enable_x64(x64),
                jax.transfer_guard("disallow"),
                jax.debug_nans(True),
                hm.config.set(part_bytes=part_bytes),
                jax.set_mesh(Mesh(np.array(jax.devices())[::-1], "x")),
            ):
                stack.enter_context(context)
            trees = [everything(10 + p, rows) for p in range(count)]
            mine = trees[me]
            whole = stacked(trees)
            assert_same_bits(stacked([hm.allgather(mine)]), stacked([whole]))
            gathered = hm.gather(mine, to=2)
            assert (gathered is None) == (me != 2)
            if gathered is not None:
                assert_same_bits(stacked([gathered]), stacked([whole]))
            assert_same_bits(hm.broadcast(mine if me == 1 else None, source=1), trees[1])
            pieces = [{"for": p, "all": tree} for p, tree in enumerate(trees)]
            scattered = hm.scatter(pieces if me == 3 else None, source=3)
            assert_same_bits(scattered, pieces[me])
            # Pieces of any structure and size, from each to each.
            sent = [[mine] * (p == me) + [noise("uint16", (rows * me, p), p)] for p in range(count)]
            for source, piece in enumerate(hm.exchange(sent)):
                expected = [noise("uint16", (rows * source, me), me)]
                assert_same_bits(piece, [mine, *expected] if source == me else expected)


@both
def test_results_are_arrays_where_asked_for(public: bool) -> None:
    me = jax.process_index()
    value = {"x": np.full(3, me, np.float32), "key": jax.random.key(me)}
    for result in (
        hm.scatter([value] * 4, as_jax=True),
        hm.exchange([value] * 4, as_jax=True)[0],
        hm.reduce(value["x"], as_jax=True),
    ):
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(result))
    with pytest.raises(hm.ShapeError, match="int32"):
        hm.reduce(np.int64(2**40), "max", as_jax=True)  # too large without x64, on all


@both
def test_pieces_of_own_types_need_them_on_every_process(public: bool) -> None:
    me = jax.process_index()
    pairs = [Pair(np.int32(p), me) for p in range(4)]
    for source, piece in enumerate(hm.exchange(pairs)):
        assert type(piece) is Pair
        assert (piece.first, piece.second) == (me, source)
    assert hm.scatter(pairs).first == me
    errors: list[Callable[[], Any]] = [
        lambda: hm.scatter(pairs if me == 0 else None),
        lambda: hm.exchange(pairs if me != 1 else [None] * 4),
    ]
    for call, process in zip(errors, (1, 1), strict=True):
        with pytest.raises(hm.SpecError, match=f"Pair.*process {process} passes no tree of"):
            call()


@both
def test_pieces_that_cannot_be_sent_are_an_error_on_all(public: bool) -> None:
    me = jax.process_index()
    short: Any = [1, 2] if me == 1 else [1, 2, 3, 4]
    text: Any = ["a" if me == 2 else 1] * 4
    cases: list[tuple[Callable[[], Any], int, type[Exception], str]] = [
        (lambda: hm.exchange(short), 1, hm.SpecError, r"list of 2\n.*a list of 4, one for each"),
        (lambda: hm.scatter(short, source=1), 1, hm.SpecError, "one for each of processes 0-3"),
        (lambda: hm.scatter(None, source=1), 1, hm.SpecError, "NoneType"),
        (lambda: hm.exchange(text), 2, hm.ShapeError, r"piece 0 of exchange\)\n  given: str 'a'"),
        (lambda: hm.exchange([{"k": t} for t in text]), 2, hm.ShapeError, r"leaf \['k'\]"),
    ]
    for call, process, kind, match in cases:
        mine = kind if me == process else hm.ClusterError
        with pytest.raises(
            mine, match=match if me == process else f"process {process}: .*{kind.__name__}"
        ):
            call()
    for call in (lambda: hm.scatter([1] * 4, source=7), lambda: hm.reduce(1, to=7)):
        with pytest.raises(hm.SpecError, match=r"process 7\n.*processes 0-3 take part"):
            call()


def folded(function: Callable[[Any, Any], Any], values: list[np.ndarray], dtype: Any) -> np.ndarray:
    return functools.reduce(
        lambda a, b: np.asarray(function(a, b)).astype(dtype),
        [value.astype(dtype) for value in values],
    )


def wide(dtype: np.dtype) -> Any:
    """The dtype of NumPy's sums."""
    if jnp.issubdtype(dtype, np.inexact):
        return dtype
    return np.uint64 if jnp.issubdtype(dtype, np.unsignedinteger) else np.int64


@np.errstate(all="ignore")
def assert_reduced(trees: list[Any], results: dict[str, Any], accumulated: Any) -> None:
    for name in DTYPES:
        values = [tree[name] for tree in trees]
        dtype = values[0].dtype
        inexact = jnp.issubdtype(dtype, np.inexact)
        mean = dtype if inexact else np.float64
        summed = np.float32 if inexact and dtype.itemsize < 4 else mean
        expected = {
            "sum": folded(np.add, values, wide(dtype)),
            "prod": folded(np.multiply, values, wide(dtype)),
            "mean": (folded(np.add, values, summed) / len(trees)).astype(mean),
            "min": folded(np.minimum, values, dtype),
            "max": folded(np.maximum, values, dtype),
            "any": np.any([v != 0 for v in values], axis=0),
            "all": np.all([v != 0 for v in values], axis=0),
        }
        for op, value in expected.items():
            assert_same_bits(results[op][name], value)
        if inexact:
            value = folded(np.add, values, np.result_type(dtype, np.float64))
            assert_same_bits(accumulated[name], value)


@both
def test_reduce_folds_in_process_order(public: bool) -> None:
    """Every operation on every dtype, small and in several parts, against a fold in plain NumPy.

    NumPy warns of NaNs and overflows in the fold; reduce does not.
    """
    me, count = jax.process_index(), jax.process_count()
    for rows, part_bytes in ((2, 4 << 20), (500, 16384)):
        trees = [{name: noise(name, (rows, 3), 50 + p) for name in DTYPES} for p in range(count)]
        with hm.config.set(part_bytes=part_bytes):
            results = {
                op: hm.reduce(trees[me], op)
                for op in ("sum", "prod", "mean", "min", "max", "any", "all")
            }
            last = hm.reduce(trees[me], lambda a, b: b)
            accumulated = hm.reduce(trees[me], "sum", accumulate=np.float64)
            only = hm.reduce(trees[me], "sum", to=1)
        assert (only is None) == (me != 1)
        if only is not None:
            assert_same_bits(only, results["sum"])
        assert_same_bits(last, trees[-1])
        assert_reduced(trees, results, accumulated)


@both
def test_reduce_keeps_to_the_order_of_processes(public: bool) -> None:
    """Where the order of a float sum shows."""
    me = jax.process_index()
    values = [np.float32(v) for v in (1e8, 1, -1e8, 1)]
    assert hm.reduce(values[me]) == 1  # (((1e8 + 1) - 1e8) + 1), and not 2
    assert hm.reduce(values[me], accumulate=np.float64) == 2
    assert hm.reduce(values[me], "mean") == 0.25
    assert hm.reduce(values[me], lambda a, b: a) == 1e8
    assert np.signbit(hm.reduce(np.float32(-0.0)))
    assert hm.reduce(np.float16(60000)) == np.inf  # without a warning
    assert hm.reduce(me, "sum", processes=[1, 3] if me % 2 else [0, 2]) == (4 if me % 2 else 2)
    assert hm.reduce(me, "max", to=3) == (3 if me == 3 else None)


@both
def test_what_cannot_be_reduced(public: bool) -> None:
    me = jax.process_index()
    everywhere: list[tuple[Callable[[], Any], str]] = [
        (lambda: hm.reduce({"k": jax.random.key(0)}), r"leaf \['k'\].*\n.*PRNG keys: key<"),
        (lambda: hm.reduce(1, "median"), "op='median'\n.*sum, mean, min"),
        (lambda: hm.reduce(1.0, "max", accumulate=np.float64), "accumulate=.*op='max'"),
        (lambda: hm.reduce(1.0, accumulate=np.int32), r"op=.sum.\n.*float dtype"),
        (lambda: hm.reduce(np.ones(3), lambda a, b: a > b), r"bool\[3\] for two arrays of float64"),
        (lambda: hm.reduce(np.ones(3), lambda a, b: a[:1]), r"float64\[1\] for two"),
    ]
    for call, match in everywhere:
        with pytest.raises((hm.SpecError, hm.ShapeError), match=match):
            call()

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a / b if me != 1 else a[10**6 + a.size]

    # A function that raises on one process, amid the parts, is an error on all.
    error = IndexError if me == 1 else hm.ClusterError
    with hm.config.set(part_bytes=8192), pytest.raises(error, match="out of bounds"):
        hm.reduce(np.ones(5000), divide)
    with pytest.raises(hm.DivergenceError, match=r"reduce\(max\) of.*reduce\(min\) of"):
        hm.reduce(1, "min" if me == 2 else "max")
    assert hm.reduce(me, lambda a, b: a) == 0


@both
def test_global_arrays_come_whole(public: bool) -> None:
    """Any layout, dtype and mesh, beside host-local values, stacked and joined."""
    me = jax.process_index()
    devices = sorted(jax.devices(), key=lambda device: device.id)
    straight = Mesh(np.array(devices).reshape(4, 2), ("a", "b"))
    mixed = Mesh(np.array(devices)[[5, 0, 3, 6, 1, 4, 7, 2]].reshape(2, 4), ("a", "b"))
    some = Mesh(np.array(devices)[[2, 7]].reshape(2, 1), ("a", "b"))
    specs = [P("a"), P(None, "a"), P("a", "b"), P("b", "a"), P(("b", "a")), P(), P(None, None, "b")]
    for mesh, rows in ((straight, 8), (mixed, 8), (some, 8), (straight, 800)):
        value = noise("float32", (rows, 8, 4), 3)
        index = value.__getitem__
        arrays = [
            hm.from_callback(value.shape, mesh, spec, index, dtype=value.dtype) for spec in specs
        ]
        scalar = hm.from_callback((), mesh, P(), lambda _: np.int16(7), dtype=np.int16)
        gathered = hm.allgather({"global": arrays, "local": [np.int64(me), scalar]})
        for leaf in gathered["global"]:
            assert_same_bits(leaf, value)
        assert_same_bits(gathered["local"], [np.arange(4), np.int16(7)])
        kept = hm.gather((arrays, me), to=3)
        assert (kept is None) == (me != 3)
        if kept is not None:
            assert_same_bits(kept, ([value] * len(specs), np.arange(4)))
        joined = hm.allgather((np.full((me + 1, 2), me), *arrays), tiled=True)
        assert joined[0][:, 0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
        assert_same_bits(joined[1:], (value,) * len(specs))
    keys = jax.random.split(jax.random.key(5), 8)
    split = hm.to_global(keys, straight, P("b"), global_shape=(8,))
    assert_same_bits(hm.allgather(split), keys)
    as_jax = hm.allgather(arrays[0], as_jax=True)
    assert isinstance(as_jax, jax.Array)
    assert as_jax.is_fully_addressable


@both
def test_global_arrays_go_between_their_holders(public: bool) -> None:
    me = jax.process_index()
    devices = sorted(jax.devices(), key=lambda device: device.id)
    mesh = Mesh(np.array(devices), "x")
    array = hm.from_callback(
        (16,), mesh, P("x"), np.arange(16, dtype=np.int32).__getitem__, dtype=np.int32
    )
    half = [0, 1] if me < 2 else [2, 3]
    lost = "4 of its shards lie on none of processes " + ("0-1" if me < 2 else "2-3")
    with pytest.raises(hm.SpecError, match=lost):
        hm.allgather(array, processes=half)
    with pytest.raises(hm.ShapeError, match="takes host-local values"):
        hm.broadcast(array)
    # Another layout is another value.
    other = hm.from_callback(
        (16,), mesh, P(), np.arange(16, dtype=np.int32).__getitem__, dtype=np.int32
    )
    with pytest.raises(hm.DivergenceError, match=r"global int32\[16\]"):
        hm.allgather(other if me == 1 else array)


def test_each_distinct_shard_is_sent_once_evenly_and_only_where_it_is_lacked() -> None:
    from hostmesh._kinds import Kind
    from hostmesh._whole import plan

    class Sharding:
        """Two chunks: one on processes 0 and 1, one on all but 3."""

        def devices_indices_map(self, shape: tuple[int, ...]) -> Any:
            held = [((0, 1), (slice(0, 4),)), ((0, 1, 2), (slice(4, 8),))]
            return {Device(p): index for who, index in held for p in who}

    class Device:
        def __init__(self, process: int) -> None:
            self.process_index = process

    kind = Kind("float32", (8,))
    layouts: Any = tuple((kind, Sharding()) for _ in range(6))
    everyone = (0, 1, 2, 3)
    made = plan(layouts, everyone, everyone, "allgather")
    sent = [shard for shards in made.sent for shard in shards]
    assert len(sent) == len(set(sent)) == 12
    assert not made.held
    assert [len(shards) for shards in made.sent] == [4, 4, 4, 0]  # of 16 bytes each
    assert made.longest == 64
    made = plan(layouts, everyone, (1,), "gather")  # which holds all
    assert made.longest == 0
    assert len(made.held) == 12


@pytest.mark.multiprocess
def test_a_broadcast_holds_little_beside_its_result() -> None:
    """64 MiB more than the result at most, however large it is; here a part of what large ones take."""
    value = np.random.default_rng(0).random(16 * 2**20, np.float32)  # 64 MiB
    hm.broadcast(np.zeros(10_000))
    hm.barrier("measured from here")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory("VmRSS")
    result = hm.broadcast(value if jax.process_index() == 1 else None, source=1)
    assert memory("VmHWM") - before <= result.nbytes + 64 * 2**20
    assert result.tobytes() == value.tobytes()


def memory(name: str) -> int:
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(name))
    return int(line.split()[1]) * 1024


@pytest.mark.multiprocess
def test_a_long_collective_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hostmesh import _progress

    value = np.zeros(2**20, np.uint8)
    hm.broadcast(value)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    hm.broadcast(value)
    assert capsys.readouterr().err == ""  # nobody asked
    with hm.config.set(progress=True, part_bytes=2**18):
        hm.broadcast(value)
    lines = capsys.readouterr().err.splitlines()
    if jax.process_index():
        assert lines == []
    else:
        assert lines[0] == "hostmesh: between processes 0-3: 0 of 1 MiB"
        assert lines[-1] == "hostmesh: between processes 0-3: 1 MiB, done"


@pytest.mark.private_names
@pytest.mark.multiprocess
def test_the_thread_guard_is_respected() -> None:
    """Who holds it moves bytes; on another thread it is an error that all are told of."""
    me = jax.process_index()
    value = np.arange(10_000.0)
    outcomes: list[Any] = []

    def elsewhere() -> None:
        with hm.channel("elsewhere"):
            try:
                outcomes.append(hm.allgather(value).shape)
            except hm.HostmeshError as error:
                outcomes.append(error)
            outcomes.append(hm.any_process(me == 2))  # no bytes move between devices

    def on_a_thread() -> list[Any]:
        outcomes.clear()
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return list(outcomes)

    assert on_a_thread() == [(4, 10_000), True]
    guard = jax.thread_guard(True) if me == 1 else contextlib.nullcontext()
    with guard:
        assert hm.allgather(value).shape == (4, 10_000)  # this thread holds it
        error, decided = on_a_thread()
        assert decided is True
        assert isinstance(error, hm.SpecError if me == 1 else hm.ClusterError)
        for part in ("process 1", "jax.thread_guard", "only the thread that holds the guard may"):
            assert part in str(error)
    assert on_a_thread() == [(4, 10_000), True]


@pytest.mark.multiprocess(env={"HOSTMESH_PUBLIC_API": "1"})
def test_on_public_api_the_thread_guard_is_an_error() -> None:
    """Agreements there move bytes, in a thread of their own that never holds the guard."""
    with jax.thread_guard(True), pytest.raises(hm.SpecError, match=r"under jax\.thread_guard"):
        hm.allgather(1)
    assert hm.allgather(1).tolist() == [1, 1, 1, 1]


def test_one_process_alone() -> None:
    assert hm.scatter([np.float32(2)]) == np.float32(2)
    assert hm.exchange([{"x": np.arange(3000)}])[0]["x"].tolist() == list(range(3000))
    assert hm.reduce(np.float32(2), "mean") == 2
    assert hm.reduce(np.arange(3000), "sum").tolist() == list(range(3000))
    assert ml_dtypes.bfloat16(2) == hm.reduce(ml_dtypes.bfloat16(2), "prod")
