"""The safetensors format: its header read with every claim checked, and written. No file is touched.

A file is eight bytes of header length, a header of JSON that gives each tensor's dtype, shape and
place, and the tensors' bytes one after the other, row-major and little-endian.
Source: the specification in the safetensors package's README, and what its writer puts out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard, cast

import ml_dtypes
import numpy as np

from .._errors import StorageError, build
from ._source import LIMITS, is_countable

# The writer puts tensors in this order of dtype, then by name.
_NAMES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "U64": np.uint64,
        "I64": np.int64,
        "F64": np.float64,
        "C64": np.complex64,
        "F32": np.float32,
        "U32": np.uint32,
        "I32": np.int32,
        "BF16": ml_dtypes.bfloat16,
        "F16": np.float16,
        "U16": np.uint16,
        "I16": np.int16,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "I8": np.int8,
        "U8": np.uint8,
        "BOOL": np.bool_,
    }.items()
}
_PACKED = ("F4", "F6_E2M3", "F6_E3M2")
_DTYPES = {kind: name for name, kind in _NAMES.items()}
_RANK = {name: rank for rank, name in enumerate(_NAMES)}
_ALIGNMENT = 8
# The safetensors package reads no longer header.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_MAX_SIZE = 2**63 - 1


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its dtype, shape, and where its bytes lie in the whole file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Header:
    """What a file holds, in the order of its bytes, and where those begin and end."""

    entries: dict[str, Entry]
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    data_start: int = 0
    size: int = 0


def has(dtype: np.dtype[Any]) -> bool:
    """Whether the format has a word for a dtype."""
    return dtype in _DTYPES


def is_text(words: str) -> bool:
    """Whether a string of JSON can be written: an escape may be half a character.

    >>> is_text("w"), is_text("\\ud800")
    (True, False)
    """
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True


def header_length(prefix: bytes, size: int, where: str) -> int:
    """How many bytes of header follow the first eight of a file of `size` bytes.

    Raises:
      StorageError: for a file too short for its header, before a buffer of that size is made.
    """
    length = int.from_bytes(prefix[:8], "little")
    if len(prefix) < 8 or length > size - 8:
        _refuse(
            where,
            f"a file of {size} bytes"
            + (f" whose header claims {length}" if len(prefix) >= 8 else ""),
            "it begins with eight bytes of header length, and holds the header whole",
        )
    if length > MAX_HEADER_BYTES:
        _refuse(where, f"a header of {length} bytes", f"it has at most {MAX_HEADER_BYTES}")
    return length


def parse(header: bytes, size: int, where: str) -> Header:
    """Reads the JSON of a file of `size` bytes; the tensors must fill its rest without a gap.

    Raises:
      StorageError: for anything else, naming the tensor.
    """
    try:
        found = json.loads(header.decode(), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        _refuse(where, f"a header that is no JSON: {str(error)[:200]}", "it is one JSON object")
    if not _is_mapping(found):
        _refuse(where, f"a header of {type(found).__name__}", "it is one JSON object")
    if not is_text("".join(found)):
        _refuse(where, "names that are no text", "tensors have names in Unicode")
    metadata = found.pop(_METADATA, {})
    if not _is_mapping(metadata) or not all(isinstance(v, str) for v in metadata.values()):
        _refuse(where, f"{_METADATA} {str(metadata)[:80]}", "it maps strings to strings")
    start = 8 + len(header)
    entries = [_entry(name, value, start, where) for name, value in found.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    end = start
    for entry in entries:
        if entry.start != end:
            _refuse(
                f"{where}: tensor {entry.name!r}",
                f"data_offsets from {entry.start - start}, where the one before ends at {end - start}",
                "tensors follow each other without gap or overlap",
            )
        end = entry.stop
    if end != size:
        _refuse(
            where,
            f"{size - start} bytes of data in a file of {size}",
            f"its header of {len(entries)} tensors claims {end - start}",
        )
    return Header(
        {entry.name: entry for entry in entries}, cast("dict[str, str]", metadata), start, size
    )


def arrange(
    tensors: Mapping[str, tuple[np.dtype[Any], Sequence[int]]],
    metadata: Mapping[str, str] | None,
    where: str,
) -> tuple[bytes, Header]:
    """Lays tensors out as the safetensors package does: the first bytes of the file, and its header.

    Raises:
      StorageError: for a dtype, name or metadata that the format has no word for.
    """
    words_given: list[object] = [*(metadata or {}), *(metadata or {}).values()]
    if not all(isinstance(word, str) for word in words_given):
        _refuse(where, f"metadata {str(metadata)[:80]}", "it maps strings to strings", "convert it")
    for name, (dtype, _) in tensors.items():
        if dtype not in _DTYPES:
            _refuse(
                f"{where}: tensor {name!r}",
                f"dtype {dtype}",
                f"the format has {', '.join(str(kind) for kind in _DTYPES)}",
                "convert it before the save",
            )
        if name == _METADATA:
            _refuse(f"{where}: tensor {name!r}", "this name", "it is the header's own")
    words: dict[str, Any] = {}
    # Of no tensors and no words the package makes what is no JSON.
    if metadata is not None and (metadata or tensors):
        # The package puts them in an order that is another each time.
        words[_METADATA] = dict(sorted(metadata.items()))
    offset = 0
    places: list[tuple[str, int, int]] = []
    for name in sorted(tensors, key=lambda name: (_RANK[_DTYPES[tensors[name][0]]], name.encode())):
        dtype, shape = tensors[name]
        stop = offset + math.prod(shape) * dtype.itemsize
        words[name] = {
            "dtype": _DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, stop],
        }
        places.append((name, offset, stop))
        offset = stop
    text = json.dumps(words, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    start = 8 + len(text)
    entries = {
        name: Entry(name, tensors[name][0], tuple(tensors[name][1]), start + a, start + b)
        for name, a, b in places
    }
    return len(text).to_bytes(8, "little") + text, Header(
        entries, dict(metadata or {}), start, start + offset
    )


def _entry(name: str, value: object, data_start: int, where: str) -> Entry:
    here = f"{where}: tensor {name!r}"
    if not _is_mapping(value) or set(value) != _FIELDS:
        _refuse(
            here, str(value)[:120], f"it is given by {', '.join(sorted(_FIELDS))}, no less or more"
        )
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if kind in _PACKED:
        _refuse(
            here,
            f"dtype {kind}, several elements to a byte",
            f"hostmesh reads {', '.join(_NAMES)}",
            "leave it out with select=, or convert the file",
        )
    if not isinstance(kind, str) or kind not in _NAMES:
        _refuse(here, f"dtype {str(kind)[:40]!r}", f"the format has {', '.join(_NAMES)}")
    if not _is_sizes(shape):
        _refuse(here, f"shape {str(shape)[:80]}", "it is a list of sizes of at least 0")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(
            here, f"data_offsets {str(offsets)[:80]}", "they are a start and a stop not below it"
        )
    if not is_countable(tuple(shape)):
        _refuse(here, f"shape {str(shape)[:80]}", LIMITS)
    claimed, nbytes = offsets[1] - offsets[0], math.prod(shape) * _NAMES[kind].itemsize
    if claimed != nbytes:
        _refuse(
            here,
            f"data_offsets {offsets}, which are {claimed} bytes",
            f"shape {shape} of {kind} takes {nbytes}",
        )
    return Entry(name, _NAMES[kind], tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {max(names, key=names.count)!r} stands twice")
    return found


def _is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= _MAX_SIZE for size in cast("list[object]", value)
    )


def _refuse(
    where: str, given: str, rule: str, advice: str = "get or write the file anew"
) -> NoReturn:
    raise build(StorageError, where=where, given=given, rule=rule, advice=advice)
