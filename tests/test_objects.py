"""Python values between processes."""

from __future__ import annotations

import datetime as dt
import math
import struct
import sys
import threading
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hostmesh as hm
from apis import both
from hostmesh import _encoding
from hostmesh._kinds import Kind
from hostmesh._messages import Incoming, outgoing
from hostmesh._stream import Stream

PARIS = zoneinfo.ZoneInfo("Europe/Paris")
EAST = dt.timezone(dt.timedelta(hours=5, minutes=30), "east")


def values(seed: int) -> dict[Any, Any]:
    """A value of every type that travels."""
    rng = np.random.default_rng(seed)
    record = np.dtype([("id", "<i4"), ("at", "<f8", (2,))])
    return {
        "plain": [
            None,
            True,
            False,
            seed,
            -(2**63),
            2**64 - 1,
            1.5,
            -0.0,
            math.inf,
            "ä\ud800",
            b"\0",
        ],
        "big": (2**64, -(2**63) - 1, 10**300, -(10**300)),
        "complex": complex(-0.0, seed),
        "nested": ((1, (2, [3, (4,)])), {}, (), [], set(), frozenset({(1, 2), "x"}), {1, 2.5}),
        ("tuple", 1): {3: {None: "keys of any kind"}},
        "days": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.timedelta(-1, 5, 7)],
        "times": [
            dt.time(1, 2, 3, 4, tzinfo=EAST),
            dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
            dt.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=1),
            dt.datetime(2026, 12, 1, 22, 59, tzinfo=dt.UTC),
            dt.UTC,
            EAST,
            PARIS,
        ],
        "arrays": [
            rng.integers(0, 256, shape, np.uint8).view("u1")
            for shape in ((), (0, 3), (7,), (50, 60))
        ],
        "dtypes": [
            rng.random(3).astype(ml_dtypes.bfloat16),
            np.arange(4000, dtype=">i4").reshape(40, 100)[::-2],
            np.array(["a", "bcd"]),
            np.array([b"x"]),
            np.array([""], "U0"),
            np.array(["2020-01-01", "NaT"], "M8[ns]"),
            np.array([(1, (2, 3))] * 70, record),
            np.asfortranarray(rng.random((30, 40))),
            np.array([struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))]),
        ],
        "scalars": [
            np.float64(2.5),
            np.int8(seed),
            np.str_("s"),
            np.datetime64("2020-01-01"),
            np.True_,
        ],
    }


def assert_same(got: Any, wanted: Any) -> None:
    """Equal in value and in type, down to the bits of arrays and the order of dicts."""
    assert type(got) is type(wanted)
    if isinstance(wanted, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()
    elif isinstance(wanted, dict):
        for one, other in zip(got.items(), wanted.items(), strict=True):
            assert_same(one, other)
    elif isinstance(wanted, list | tuple):
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    else:
        assert (
            repr(got) == repr(wanted) if not isinstance(wanted, set | frozenset) else got == wanted
        )


def there_and_back(value: Any, step: int = 64) -> Any:
    """A value through the bytes of its message, in pieces."""
    stream = _encoding.encode(value, "test")
    incoming = Incoming(stream.nbytes)
    for start in range(0, stream.nbytes, step):
        piece = np.zeros(min(step, stream.nbytes - start), np.uint8)
        stream.read(piece, start)
        incoming.write(piece, start)
    return _encoding.decode(incoming)


def test_every_type_comes_back_as_it_was() -> None:
    for step in (16, 4096, 1 << 30):
        assert_same(there_and_back(values(3), step), values(3))
    for array in there_and_back([np.arange(4), np.arange(4000)]):
        array[0] = 1  # one's own
    got = there_and_back([bytearray(b"x"), memoryview(b"y"), jax.numpy.arange(3)])
    assert got[:2] == [b"x", b"y"]
    assert type(got[2]) is np.ndarray
    key = there_and_back({"key": jax.random.key(7, impl="rbg")})["key"]
    assert jax.random.key_impl(key) == jax.random.key_impl(jax.random.key(7, impl="rbg"))
    assert_same(jax.random.key_data(key), jax.random.key_data(jax.random.key(7, impl="rbg")))


LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers()),
    *(st.binary(), st.text(st.characters()), st.dates(), st.datetimes(), st.timedeltas()),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.text())), inner),
        st.frozensets(st.integers()),
    ),
)


@settings(deadline=None, max_examples=50)
@given(NESTED)
def test_any_nesting_comes_back_as_it_was(value: Any) -> None:
    assert_same(there_and_back(value), value)


@given(st.lists(st.integers(0, 50), max_size=4), st.sampled_from((16, 32, 80)))
def test_a_message_arrives_in_pieces(lengths: list[int], step: int) -> None:
    arrays = [np.arange(length, dtype=np.int16) + length for length in lengths]
    stream = outgoing(["body", lengths], [Kind("int16", a.shape) for a in arrays], arrays)
    sent = np.frombuffer(stream.tobytes() + b"\xff" * 64, np.uint8)  # others send longer ones
    incoming = Incoming(stream.nbytes)
    for start in range(0, len(sent), step):
        incoming.write(sent[start : start + step], start)
    assert incoming.body == ["body", lengths]
    for got, wanted in zip(incoming.arrays, arrays, strict=True):
        assert_same(got, wanted)


def circular() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def deep() -> Any:
    value: Any = "bottom"
    for _ in range(2000):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"a": [1, threading.Lock()]}, ("value['a'][1]\n", "given: _thread.lock: <unlocked")),
        ((1, OrderedDict(a=1)), ("value[1]\n", "collections.OrderedDict")),
        ([np.array([object()])], ("value[0]\n", "numpy.ndarray: array([<obj", "dtype=object")),
        (np.ma.array([1], mask=[True]), ("value\n", "numpy.ma.MaskedArray")),
        ({"a": {sys: 1}}, ("value['a'] key <module 'sys'", "given: module")),
        ({frozenset({sys.stdout})}, ("value element element\n",)),
        (circular(), ("value[1]['again']\n", "it contains itself")),
        (deep(), ("value[0][0]", "tuple: (((")),
        (lambda: 1, ("value\n", "given: function: <function")),
    ],
    ids=["lock", "subclass", "objects", "mask", "key", "element", "circle", "depth", "function"],
)
def test_what_cannot_be_packed_is_named(value: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(hm.ShapeError) as caught:
        hm.allgather_object(value)
    for part in (*parts, "allgather_object on process 0: ", "unsafe_pickle=True"):
        assert part in str(caught.value)


@both
def test_objects_reach_those_they_are_for(public: bool) -> None:
    """Small ones with the agreement, large ones in parts; of other types and sizes each."""
    me = jax.process_index()
    small: list[Any] = [("a", 0), {1, 2}, None, b"x" * 100]
    large: list[Any] = [values(0), "b" * 100_000, np.arange(50_000.0), None]
    for everyone in (small, large, [small, large, 1, large]):
        for part_bytes in (4 << 20, 65536):
            with hm.config.set(part_bytes=part_bytes):
                assert_same(hm.allgather_object(everyone[me]), everyone)
                assert_same(
                    hm.scatter_object(everyone if me == 2 else None, source=2), everyone[me]
                )
                for source in (0, 3):
                    value = everyone[source] if me == source else threading.Lock()  # is not read
                    assert_same(hm.broadcast_object(value, source=source), everyone[source])
    pair = [0, 3] if me in (0, 3) else [1, 2]
    assert hm.allgather_object(me, processes=pair) == pair


@both
def test_what_one_process_cannot_pack_is_an_error_on_all(public: bool) -> None:
    me = jax.process_index()
    bad: Any = {"model": [threading.Lock()]} if me == 1 else {"model": [1]}
    short: Any = [1, 2]
    cases: list[tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = [
        (lambda: hm.allgather_object(bad), hm.ShapeError, ("['model'][0]", "_thread.lock")),
        (lambda: hm.broadcast_object(bad, source=1), hm.ShapeError, ("['model'][0]", "source=1")),
        (
            lambda: hm.scatter_object([bad] * 4, source=1),
            hm.ShapeError,
            ("value 0 on process 1: value['model'][0]",),
        ),
        (lambda: hm.scatter_object(short, source=1), hm.SpecError, ("list of 2", "a list of 4")),
    ]
    for call, kind, parts in cases:
        with pytest.raises(kind if me == 1 else hm.ClusterError) as caught:
            call()
        for part in (*parts, "on process 1"):
            assert part in str(caught.value)
    assert hm.allgather_object(me) == [0, 1, 2, 3]


class Point:
    """Travels by pickle alone."""

    def __init__(self, x: Any) -> None:
        self.x = x


class Trap:
    """Raises where it is unpickled on process 2."""

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> int:
    return 1 // (jax.process_index() - 2)


@both
def test_pickle_is_for_those_who_all_ask_for_it(public: bool) -> None:
    me = jax.process_index()
    with pytest.raises(hm.ShapeError, match="Point"):
        hm.allgather_object(Point(me))
    points = hm.allgather_object(Point(np.full(3000, me)), unsafe_pickle=True)
    assert [point.x[0] for point in points] == [0, 1, 2, 3]
    points[0].x[0] = 7  # one's own
    assert hm.broadcast_object(Point(me), source=2, unsafe_pickle=True).x == 2
    assert hm.scatter_object([Point(p) for p in range(4)], unsafe_pickle=True).x == me
    with pytest.raises(
        hm.DivergenceError, match=r"unsafe_pickle=True\) at .*: allgather_object at"
    ):
        hm.allgather_object(1, unsafe_pickle=me != 3)
    with pytest.raises(ZeroDivisionError if me == 2 else hm.ClusterError, match="by zero"):
        hm.broadcast_object(Trap(), unsafe_pickle=True)
    assert hm.allgather_object(me) == [0, 1, 2, 3]


def test_nothing_is_unpickled_unasked() -> None:
    """A message that holds a pickle is bytes to those who did not ask for pickles."""
    stream = _encoding.encode_pickled(Trap())
    incoming = Incoming(stream.nbytes)
    incoming.write(np.frombuffer(stream.tobytes(), np.uint8), 0)
    with pytest.raises(hm.ClusterError, match="cannot be unpacked"):
        _encoding.decode(incoming)
    assert isinstance(stream, Stream)
