"""Python values as messages, by msgpack with the types that it lacks; nothing is ever unpickled.

None, bools, ints of any size, floats, complex numbers, strings, bytes, lists, tuples, dicts, sets,
frozensets, dates and times, NumPy arrays and scalars of any dtype but objects, `jax.Array`s (which
come back as NumPy) and PRNG keys. `bytearray` and `memoryview` come back as bytes. Other types, also
subclasses of these, are refused. Pickled values are a message of another kind, which is only read
where it is asked for.

Large arrays stay apart from what is packed: they are sent from where they are.
"""

from __future__ import annotations

import datetime as dt
import pickle
import reprlib
import zoneinfo
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import msgpack
import numpy as np
import numpy.typing as npt
from jax.core import Tracer

from ._errors import ShapeError, build
from ._kinds import Kind, malformed
from ._messages import Incoming, outgoing
from ._outward import to_numpy
from ._packing import is_global, key_data
from ._stream import Stream

HostArray = npt.NDArray[Any]

# Arrays of up to this many bytes are packed with the rest.
_SMALL = 1024
_ARRAY, _SCALAR, _KEYS = 1, 2, 3  # the codes of msgpack's extension types; more in _TYPES


def encode(value: object, function: str) -> Stream:
    """A value as a message; `ShapeError` names the part of it that cannot be packed."""
    packer = _Packer()
    try:
        body = packer.pack(value)
    except _FAILURES:
        raise _unpackable(value, function) from None
    return _message(body, packer.arrays)


def decode(message: Incoming) -> Any:
    """The value of a message; `ClusterError` for one that `encode` does not make."""
    if not message.has_come:
        raise malformed("the beginning of one")
    try:
        return _Unpacker(message.arrays).unpack(message.body)
    except Exception as error:  # what the types' own ways back make of any content
        raise malformed(f"a value that cannot be unpacked: {error!r}") from error


def encode_pickled(value: object) -> Stream:
    """A value as a message by pickle."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts = [pickled, *(buffer.raw() for buffer in buffers)]
    return _message(None, [np.frombuffer(part, np.uint8) for part in parts])


def decode_pickled(message: Incoming) -> Any:
    """The value of a message by pickle: whoever sent it decides what is run here."""
    pickled, *buffers = message.arrays
    return pickle.loads(pickled.data, buffers=buffers)


def _message(body: object, arrays: Sequence[HostArray]) -> Stream:
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return outgoing(body, [Kind("uint8", array.shape) for array in flat], flat)


def _zone(key: str) -> dt.tzinfo:
    return zoneinfo.ZoneInfo(key)


def _timezone(parts: Sequence[Any]) -> dt.timezone:
    zone = dt.timezone(*parts)
    return dt.UTC if parts[1] == "UTC" and zone == dt.UTC else zone


def _clock(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo]


def _restored(kind: type[dt.datetime] | type[dt.time]) -> Callable[[Sequence[Any]], Any]:
    return lambda parts: kind.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=parts[2])


# By type: the code, the value as a simpler one, and back.
_TYPES: dict[type, tuple[int, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (4, list, tuple),
    set: (5, list, set),
    frozenset: (6, list, frozenset),
    int: (  # one that msgpack finds too large
        7,
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True),
        lambda raw: int.from_bytes(raw, "little", signed=True),
    ),
    complex: (8, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    dt.date: (9, dt.date.toordinal, dt.date.fromordinal),
    dt.time: (10, _clock, _restored(dt.time)),
    dt.datetime: (11, _clock, _restored(dt.datetime)),
    dt.timedelta: (
        12,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    dt.timezone: (13, lambda zone: [zone.utcoffset(None), zone.tzname(None)], _timezone),
    zoneinfo.ZoneInfo: (14, lambda zone: zone.key, _zone),
}
_BACK = {code: back for code, _, back in _TYPES.values()}
# What packing raises: for another type, nesting without end, lengths that msgpack does not have.
_FAILURES = (TypeError, ValueError, OverflowError, RecursionError)


class _Packer:
    """Packs a value, and sets its large arrays apart."""

    def __init__(self) -> None:
        self.arrays: list[HostArray] = []

    def pack(self, value: object) -> bytes:
        # Strict: subclasses, and tuples, are not packed as what they are made of.
        packed = msgpack.packb(
            value, default=self._extended, strict_types=True, unicode_errors="surrogatepass"
        )
        return cast(bytes, packed)

    def _extended(self, value: Any) -> msgpack.ExtType:
        if type(value) in _TYPES:
            code, simpler, _ = _TYPES[type(value)]
            return msgpack.ExtType(code, self.pack(simpler(value)))
        if type(value) is np.ndarray:
            return self._array(_ARRAY, value)
        if isinstance(value, np.generic):
            return self._array(_SCALAR, np.asarray(value))
        if isinstance(value, jax.Array) and not isinstance(value, Tracer) and not is_global(value):
            data, key = key_data(value)
            if not key:
                return self._array(_ARRAY, to_numpy(data))
            return msgpack.ExtType(_KEYS, self.pack([key, to_numpy(data)]))
        raise TypeError

    def _array(self, code: int, array: HostArray) -> msgpack.ExtType:
        if array.nbytes <= _SMALL:
            values: bytes | int = array.tobytes()
        else:
            values = len(self.arrays)
            self.arrays.append(array)
        parts = [_dtype_in_words(array.dtype), list(array.shape), values]
        return msgpack.ExtType(code, self.pack(parts))


def _dtype_in_words(dtype: np.dtype[Any]) -> Any:
    if dtype.isbuiltin == 2:  # one that ml_dtypes adds
        return dtype.name
    words = np.lib.format.dtype_to_descr(dtype)
    if dtype.hasobject or np.lib.format.descr_to_dtype(words) != dtype:
        raise TypeError
    return words


class _Unpacker:
    """The inverse of a `_Packer`."""

    def __init__(self, arrays: Sequence[HostArray]) -> None:
        self._arrays = arrays

    def unpack(self, packed: bytes) -> Any:
        return msgpack.unpackb(
            packed, ext_hook=self._restored, strict_map_key=False, unicode_errors="surrogatepass"
        )

    def _restored(self, code: int, packed: bytes) -> Any:
        parts = self.unpack(packed)
        if code in _BACK:
            return _BACK[code](parts)
        if code == _KEYS:
            return jax.random.wrap_key_data(jax.device_put(parts[1]), impl=parts[0])
        words, shape, values = parts
        dtype = np.lib.format.descr_to_dtype(words)
        if dtype.hasobject:  # bytes would be read as pointers
            raise ValueError(f"dtype {dtype}")
        if not all(type(size) is int and size >= 0 for size in shape):  # NumPy infers -1, dividing
            raise ValueError(f"shape {shape}")
        memory = bytearray(values) if isinstance(values, bytes) else self._arrays[values]
        array: HostArray = np.ndarray(shape, dtype, memory)
        return array if code == _ARRAY else array[()]


def _unpackable(value: object, function: str) -> ShapeError:
    path, part, why = _offender(value, "", [])
    kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
    return build(
        ShapeError,
        where=f"{function} on process {jax.process_index()}: value{path}",
        given=f"{kind}: {reprlib.repr(part)}{why}",
        rule="what travels are None, bools, numbers, strings, bytes, dates, NumPy arrays, jax.Arrays"
        " on one process, and lists, tuples, dicts and sets of these, not subclasses of them",
        advice="convert it, or pass unsafe_pickle=True on all processes where each may run code of"
        " the others",
    )


def _offender(value: object, path: str, above: list[int]) -> tuple[str, object, str]:
    """The innermost part of a value that cannot be packed, and where it is."""
    if id(value) in above:
        return path, value, " (it contains itself)"
    why = ""
    for step, part in _parts(value):
        try:
            _Packer().pack(part)
        except _FAILURES as error:
            if len(above) < 20:
                return _offender(part, path + step, [*above, id(value)])
            why = f" ({str(error)[:200]})"
    return path, value, why


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, part in cast(dict[object, object], value).items():
            yield f" key {key!r}", key
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple):
        for number, part in enumerate(cast(Sequence[object], value)):
            yield f"[{number}]", part
    elif isinstance(value, set | frozenset):
        for part in cast(set[object], value):
            yield " element", part
