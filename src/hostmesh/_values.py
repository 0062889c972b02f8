"""Host values as NumPy arrays, and the one place where 64-bit types meet JAX's x64 mode."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ._config import config
from ._errors import ShapeError, build
from ._trees import is_number_list

HostArray: TypeAlias = npt.NDArray[Any]


def as_host_array(value: Any, where: str) -> HostArray:
    """A host value as a NumPy array, without a copy where it is one in memory.

    Takes NumPy arrays and scalars, Python numbers and lists of them, and what has `__array__`.
    Raises `ShapeError` for strings, objects, masked arrays and integers beyond 64 bits.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise build(
            ShapeError,
            where=where,
            given=f"a masked array of shape {value.shape}",
            rule="a device array has no mask; dropping it would pass masked values off as data",
            advice="pass value.filled(...), and the mask as a leaf of its own if it is needed",
        )
    known = isinstance(value, np.ndarray | np.generic | bool | int | float | complex)
    if not (known or is_number_list(value) or hasattr(value, "__array__")):
        raise _no_array(f"{type(value).__name__} {str(value)[:60]!r}", where)
    try:
        array: HostArray = np.asarray(value)
    except ValueError as error:  # a ragged list
        raise build(
            ShapeError,
            where=where,
            given=f"{str(value)[:60]}",
            rule=f"a list of numbers is one array: {str(error)[:120]}",
            advice="make its rows equally long",
        ) from None
    if array.dtype == jax.dtypes.float0:
        return np.zeros(array.shape, bool)  # as JAX takes them: a derivative of no size
    if array.dtype.kind == "O" and isinstance(value, int | list):
        raise build(
            ShapeError,
            where=where,
            given=f"{str(value)[:60]}",
            rule="its integers do not fit in 64 bits, the widest that JAX has",
            advice="scale or split them",
        )
    return array


@functools.lru_cache(maxsize=1024)
def device_dtype(dtype: np.dtype[Any], x64: bool) -> np.dtype[Any]:
    """The dtype that JAX gives a host dtype: native byte order, 32 bits wide without x64.

    Raises `ShapeError` for a dtype that JAX does not have.
    """
    native = dtype.newbyteorder("=")
    try:
        # Only a device tells: JAX 0.10.2 names float6 kinds that its runtime does not take.
        jax.device_put(np.zeros((), native))
    except (TypeError, RuntimeError):
        raise _no_array(f"dtype {dtype}", "leaf") from None
    if x64 or native.kind not in "iufc":
        return native
    narrow = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
    return np.dtype(narrow.get(native.name, native))


def is_key(dtype: Any) -> bool:
    """Whether a dtype is that of typed PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def key_data_shape(keys: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, Any]:
    """Shape and dtype of the data under keys of a shape, and their implementation."""
    implementation: list[Any] = []

    def unwrap(traced: jax.Array) -> jax.Array:
        implementation.append(jax.random.key_impl(traced))
        return jax.random.key_data(traced)

    return jax.eval_shape(unwrap, keys), implementation[0]


def x64_enabled() -> bool:
    """Whether JAX's x64 mode is on in this thread."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore


def convert(source: HostArray, target: HostArray, where: str) -> None:
    """Copies `source` into `target`, changing the dtype by the rule of `config.canonicalize`.

    Raises `ShapeError` where a value does not survive that should.
    """
    if source.dtype.newbyteorder("=") == target.dtype:
        np.copyto(target, source)
        return
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")
    if config.canonicalize == "jax" or not source.size:
        return
    if lost := _lost_values(source, target):
        raise _loss(source.dtype, target.dtype, lost, where)


def _lost_values(source: HostArray, target: HostArray) -> list[str]:
    """Examples of values that do not survive; no temporary as long as all do, for integers."""
    if source.dtype.kind in "iu":
        bounds = np.iinfo(target.dtype)
        if bounds.min <= source.min() and source.max() <= bounds.max:
            return []
        lost = target != source
    elif config.canonicalize == "exact":
        lost = (target != source) & ~np.isnan(source)
    else:
        lost = np.isinf(target) & np.isfinite(source)
    return [str(value) for value in source[lost].ravel()[:3]]


def _loss(source: np.dtype[Any], target: np.dtype[Any], lost: list[str], where: str) -> ShapeError:
    bounds = np.iinfo(target) if target.kind in "iu" else np.finfo(target)
    exact = config.canonicalize == "exact" and target.kind not in "iu"
    return build(
        ShapeError,
        where=where,
        given=f"{source} values such as {', '.join(lost)}",
        rule=f"without jax_enable_x64 JAX makes them {target}, which "
        + ("cannot hold them exactly" if exact else f"holds {bounds.min} to {bounds.max}"),
        advice="enable x64, convert the value yourself, or set hostmesh.config.canonicalize='jax'"
        " for JAX's silent rule",
    )


def _no_array(given: str, where: str) -> ShapeError:
    return build(
        ShapeError,
        where=where,
        given=given,
        rule="a leaf is an array or a number of a dtype that JAX has",
        advice="send Python objects and strings with broadcast_object or allgather_object",
    )
