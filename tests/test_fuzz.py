"""What others wrote, and what a caller passes, ends in a right value or in hostmesh's own error.

`HOSTMESH_TEST_FUZZ=10000` tries as many examples of each kind.
"""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import hostmesh as hm
from hostmesh import _encoding
from hostmesh._messages import Incoming, outgoing
from hostmesh._storage import _format

MOST = 64 * 2**20  # bytes; what comes in is far smaller
fuzz = settings(
    max_examples=int(os.environ.get("HOSTMESH_TEST_FUZZ", "200")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def right_or_refused(call: Callable[[], Any]) -> Any:
    """The value of a call, or None where it raises hostmesh's error, whole; any other comes out."""
    tracemalloc.start()
    try:
        value = call()
    except hm.HostmeshError as error:
        lines = str(error)
        for part in ("\n  given: ", "\n  rule:  ", "\n  do:    "):
            assert part in lines
        value = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST
    return value


# --- specs

GRID = hm.Topology([("x", 2), ("y", 3), ("z", 1)], [0, 0, 1, 1, 2, 0])
ODD = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    *(st.binary(max_size=3), st.just(P.UNCONSTRAINED), st.builds(object)),
)
AXIS = st.sampled_from(("x", "y", "z"))
ENTRY = st.one_of(AXIS, st.none(), st.lists(AXIS, max_size=3).map(tuple), st.lists(AXIS), ODD)
ENTRIES = st.lists(st.one_of(ENTRY, st.tuples(ENTRY), st.sets(AXIS)), max_size=4)
SIZES = st.one_of(st.integers(0, 12), st.integers(), ODD)
SHAPE = st.one_of(st.none(), st.lists(SIZES, max_size=4), ODD)


@fuzz
@given(
    st.one_of(ENTRIES, ENTRIES.map(tuple), ODD, st.dictionaries(AXIS, AXIS), st.sets(AXIS)),
    SHAPE,
    SHAPE,
    st.one_of(st.none(), st.integers(0, 4)),
)
def test_specs_and_shapes_of_any_kind(spec: Any, local: Any, whole: Any, process: Any) -> None:
    plan = right_or_refused(
        lambda: hm.plan(GRID, spec, local_shape=local, global_shape=whole, process=process)
    )
    if plan is not None:
        assert math.prod(plan.chunk_counts) in (1, 2, 3, 6)
        pieces = zip(plan.shard_shape, plan.chunk_counts, strict=True)
        assert tuple(s * n for s, n in pieces) == plan.global_shape
        assert whole is None or tuple(whole) == plan.global_shape


@fuzz
@given(
    st.one_of(st.lists(st.tuples(st.one_of(AXIS, ODD), SIZES), max_size=3), ODD, ENTRIES),
    st.one_of(st.lists(SIZES, max_size=6), ODD, st.lists(st.lists(SIZES, max_size=2), max_size=3)),
)
def test_topologies_of_any_kind(axes: Any, owners: Any) -> None:
    topology = right_or_refused(lambda: hm.Topology(axes, owners))
    if topology is not None:
        assert topology.size == math.prod(topology.shape.values())
    right_or_refused(lambda: hm.Topology.from_dict({"axes": axes, "process_indices": owners}))
    right_or_refused(lambda: hm.Topology.from_dict(axes))


# --- safetensors headers

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
NUMBERS = st.one_of(st.integers(0, 64), st.sampled_from((-1, 2**31, 2**63 - 1, 2**63, 2**64)), JSON)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(("F32", "U8", "BF16", "F4", "I64", "BOOL")), JSON),
        "shape": st.one_of(st.lists(NUMBERS, max_size=3), JSON),
        "data_offsets": st.one_of(st.lists(NUMBERS, min_size=2, max_size=2), JSON),
    }
)
HEADER = st.one_of(
    st.dictionaries(st.one_of(st.text(max_size=4), st.just("__metadata__")), TENSOR | JSON),
    JSON,
)


@st.composite
def valid_headers(draw: st.DrawFn) -> tuple[bytes, int]:
    """A right header, with a few bytes of it others now and then."""
    kinds = draw(
        st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=4),
            st.tuples(st.sampled_from(("u1", "f4", "c8")), st.lists(st.integers(0, 3), max_size=3)),
            max_size=4,
        ).filter(lambda d: "__metadata__" not in d)
    )
    tensors = {name: (np.dtype(kind), shape) for name, (kind, shape) in kinds.items()}
    text, header = _format.arrange(tensors, None, "a file")
    spoilt = bytearray(text[8:])
    for _ in range(draw(st.integers(0, 3))):
        if spoilt:
            spoilt[draw(st.integers(0, len(spoilt) - 1))] = draw(st.integers(0, 255))
    return bytes(spoilt), header.size


def filled(header: _format.Header | None, size: int) -> None:
    """What was read of a header is tensors that fill the file, each of its bytes once."""
    if header is None:
        return
    end = header.data_start
    for entry in header.entries.values():
        assert entry.start == end
        end += math.prod(entry.shape) * entry.dtype.itemsize
        assert entry.stop == end
    assert end == size


@fuzz
@given(HEADER, st.integers(0, 300))
def test_safetensors_headers_of_any_json(header: Any, size: int) -> None:
    text = json.dumps(header).encode()
    filled(right_or_refused(lambda: _format.parse(text, size, "a file")), size)


@fuzz
@given(valid_headers())
def test_safetensors_headers_with_bytes_that_are_others(made: tuple[bytes, int]) -> None:
    text, size = made
    filled(right_or_refused(lambda: _format.parse(text, size, "a file")), size)


@fuzz
@given(st.binary(max_size=300))
def test_safetensors_headers_of_any_bytes(text: bytes) -> None:
    size = len(text) + 8
    filled(right_or_refused(lambda: _format.parse(text, size, "a file")), size)
    right_or_refused(lambda: _format.header_length(text[:8], len(text), "a file"))


# --- what a peer sends


def received(stream: bytes, step: int = 1 << 20) -> Any:
    """The value of a message of these bytes, as it comes from another process."""
    incoming = Incoming(len(stream))
    for start in range(0, len(stream), step):
        incoming.write(np.frombuffer(stream[start : start + step], np.uint8), start)
    return _encoding.decode(incoming)


PLAIN = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats()),
        *(st.text(max_size=5), st.binary(max_size=9)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
PARTS = st.one_of(
    PLAIN,
    st.tuples(
        st.sampled_from(("<f4", "|O", "<U4", "bfloat16", "|u1", "float4_e2m1fn", "<M8[s]", "|V0")),
        st.lists(st.sampled_from((-1, 0, 1, 2, 2**31, 2**62)), max_size=3),
        st.one_of(st.binary(max_size=16), st.integers(-2, 3)),
    ),
    st.tuples(PLAIN, PLAIN, PLAIN),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A packed value with extension types of any content in it."""
    codes = st.integers(0, 16)
    extended = st.builds(lambda c, v: msgpack.ExtType(c, msgpack.packb(v)), codes, PARTS)
    raw = st.builds(msgpack.ExtType, codes, st.binary(max_size=12))
    value = draw(st.one_of(PLAIN, extended, raw, st.lists(st.one_of(extended, PLAIN), max_size=3)))
    return msgpack.packb(value)


@fuzz
@given(bodies())
def test_messages_of_any_body(body: bytes) -> None:
    right_or_refused(lambda: received(outgoing(body, [], []).tobytes()))


@fuzz
@given(PLAIN, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3))
def test_messages_with_bytes_that_are_others(value: Any, changes: list[tuple[int, int]]) -> None:
    spoilt = bytearray(_encoding.encode([value, np.arange(3)], "test").tobytes())
    for place, byte in changes:
        spoilt[place % len(spoilt)] = byte
    right_or_refused(lambda: received(bytes(spoilt)))


@fuzz
@given(st.binary(max_size=100))
def test_messages_of_any_bytes(stream: bytes) -> None:
    right_or_refused(lambda: received(stream))


def refusal(stream: bytes) -> str:
    with pytest.raises(hm.ClusterError, match="what hostmesh packs") as caught:
        received(stream)
    return str(caught.value)


def test_bytes_are_not_read_as_pointers() -> None:
    """Found by fuzzing: an array of objects of eight bytes that a peer chose ended the process."""
    for code in (1, 2):
        array = msgpack.packb(["|O", [1], b"\1" * 8])
        body = msgpack.packb(msgpack.ExtType(code, array))
        assert "dtype object" in refusal(outgoing(body, [], []).tobytes())
    head = msgpack.packb(([("object", [1], "", 1)], b"\xc0"))
    assert "dtype 'object'" in refusal(len(head).to_bytes(8, "little") + head + b"\1" * 64)


def test_sizes_of_a_message_are_counts() -> None:
    """Found by fuzzing: NumPy infers a size of -1, and divides by items of no bytes (SIGFPE)."""
    for words, shape in (("|V0", [-1]), ("<f4", [-1]), ("<f4", [1.0]), ("<f4", 1)):
        array = msgpack.packb([words, shape, b"\0" * 4])
        refusal(outgoing(msgpack.packb(msgpack.ExtType(1, array)), [], []).tobytes())


def test_a_message_claims_no_more_than_its_length() -> None:
    for kind in (["uint8", [2**40], "", 1], ["uint8", [0], "", 2**40], ["uint8", [-1], "", 1]):
        head = msgpack.packb(([kind], b"\xc0"))
        assert "arrays that cannot be" in refusal(len(head).to_bytes(8, "little") + head)
    assert "a head of" in refusal((2**60).to_bytes(8, "little") + bytes(64))
    assert "beginning" in refusal(b"")
