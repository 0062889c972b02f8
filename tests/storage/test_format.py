"""The safetensors format against the package's own writer and reader."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from hostmesh import StorageError
from hostmesh._storage import _format

DTYPES = [
    *(bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, ml_dtypes.bfloat16),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2),
    *(ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu),
]
NAMES = ["w", "b.w", 'a\n\x01é\x7f"/\u2028\b\f\\', "", "ZZ", "\U0001f600", "\uffee"]


def package_bytes(tensors, metadata=None):
    kinds = {
        name: safetensors.TensorSpec(
            dtype=x.dtype.name, shape=x.shape, data_ptr=x.ctypes.data, data_len=x.nbytes
        )
        for name, x in tensors.items()
    }
    return bytes(safetensors.serialize(kinds, metadata))


def our_bytes(tensors, metadata=None):
    head, header = _format.arrange(
        {name: (x.dtype, x.shape) for name, x in tensors.items()}, metadata, "t"
    )
    return head + b"".join(tensors[name].tobytes() for name in header.entries)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_a_file_is_what_the_package_writes(metadata):
    random = np.random.default_rng(0)
    tensors = {
        f"{name}/{dtype.__name__}": random.integers(0, 2, shape).astype(dtype)
        for name, shape in zip(
            NAMES, [(3, 2), (), (0, 3), (7,), (1, 1, 2), (2,), (5,)], strict=True
        )
        for dtype in DTYPES
    }
    file = package_bytes(tensors, metadata)
    assert our_bytes(tensors, metadata) == file
    assert our_bytes({}) == package_bytes({})

    length = _format.header_length(file[:8], len(file), "t")
    header = _format.parse(file[8 : 8 + length], len(file), "t")
    assert header.metadata == (metadata or {})
    for name, x in tensors.items():
        entry = header.entries[name]
        assert (entry.dtype, entry.shape) == (x.dtype, x.shape)
        assert file[entry.start : entry.stop] == x.tobytes()


def parsed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = 8 + len(text) + len(data)
    return _format.parse(
        text[: _format.header_length(len(text).to_bytes(8, "little"), size, "f")], size, "f"
    )


def tensor(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "no JSON"),
        (b"[]", "header of list"),
        (b"\xff\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": 1, "a": 1}', "'a' stands twice"),
        ({"a": 1}, "given by"),
        ({"a": tensor(more=1)}, "given by"),
        ({"a": tensor(dtype="F31")}, "'F31'"),
        ({"a": tensor(dtype=["F32"])}, "F32"),
        ({"a": tensor(dtype="F4")}, "several elements"),
        ({"a": tensor(shape=[-1])}, "shape [-1]"),
        ({"a": tensor(shape=[True, 2])}, "shape [True, 2]"),
        ({"a": tensor(shape=[2.0])}, "shape [2.0]"),
        ({"a": tensor(shape=[2**62, 4, 0], offsets=(0, 0))}, "at most"),
        ({"a": tensor(shape=[2**70], offsets=(0, 0))}, "sizes"),
        ({"a": tensor(shape=[1] * 100, offsets=(0, 4))}, "32 dimensions"),
        ({"\ud800": tensor()}, "no text"),
        ({"a": tensor(offsets=(8, 0))}, "data_offsets [8, 0]"),
        ({"a": tensor(offsets=(0, 8, 9))}, "data_offsets"),
        ({"a": tensor(offsets=(0, 4))}, "takes 8"),
        ({"a": tensor(offsets=(8, 16))}, "gap or overlap"),
        ({"a": tensor(), "b": tensor(offsets=(4, 12))}, "tensor 'b'"),
        ({"a": tensor(shape=[1], offsets=(0, 4))}, "claims 4"),
        ({"__metadata__": {"a": 1}}, "strings to strings"),
        ({"__metadata__": []}, "strings to strings"),
    ],
)  # fmt: skip
def test_a_malformed_header_is_refused_with_what_is_wrong(header, words):
    with pytest.raises(StorageError) as caught:
        parsed(header, b"\0" * 8)
    assert words in str(caught.value)
    assert str(caught.value).startswith("f")
    assert "do:" in str(caught.value)


@pytest.mark.parametrize(
    "prefix", [b"", b"1234567", (2**63).to_bytes(8, "little"), b"\x09" + b"\0" * 7]
)
def test_a_header_longer_than_its_file_is_refused_before_it_is_read(prefix):
    with pytest.raises(StorageError, match="16 bytes"):
        _format.header_length(prefix, 16, "f")
    with pytest.raises(StorageError, match="at most 100000000"):
        _format.header_length((2**40).to_bytes(8, "little"), 2**41, "f")


def test_what_the_format_has_no_word_for_is_refused():
    with pytest.raises(StorageError, match=r"'w'\n.*complex128"):
        _format.arrange({"w": (np.dtype(complex), (1,))}, None, "t")
    with pytest.raises(StorageError, match="header's own"):
        _format.arrange({"__metadata__": (np.dtype(bool), (1,))}, None, "t")
