"""`--hostmesh-strict`: on one machine, fail where a program of several hosts would.

With one process every array can be read. Here the local devices are taken for those of several
hosts, and reading an array fails, as it would there, where one of them holds a part of it only.
What JAX itself reads (a jitted function that closes over an array, `jax.device_put` to another
sharding) is not looked at.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
from typing import TYPE_CHECKING, Any

import jax

from .._errors import HostmeshError, build

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from jax.sharding import Sharding

# The methods of a concrete array that bring its values to the host.
_READS = {
    *("__array__", "__bool__", "__complex__", "__float__", "__format__", "__index__", "__int__"),
    *("__iter__", "__reduce__", "__repr__", "__str__", "tobytes", "tolist"),
}
_INNER = {"jax", "jaxlib", "numpy"}
_EXPLICIT = "jax.experimental.multihost_utils"


class FetchError(HostmeshError, RuntimeError):
    """An array was read that, on several hosts, no host would hold whole (`--hostmesh-strict`)."""


@contextlib.contextmanager
def guard(hosts: int | None) -> Generator[None]:
    """While open, reading an array that is spread over pretended hosts raises `FetchError`.

    The local devices are taken for those of `hosts` hosts, block after block; `None` stands for
    as many hosts as devices.
    """
    with contextlib.ExitStack() as restore:
        for kind in [kind for kind in jax.Array.__subclasses__() if "__array__" in vars(kind)]:
            for name in _READS & set(vars(kind)):
                original = vars(kind)[name]
                restore.callback(setattr, kind, name, original)
                setattr(kind, name, _guarded(name, original, hosts))
        yield


def _guarded(name: str, original: Any, hosts: int | None) -> Any:
    @functools.wraps(original)
    def read(array: jax.Array, *args: Any, **kwargs: Any) -> Any:
        if not _spread(array.sharding, array.shape, hosts) or (place := _place()) is None:
            return original(array, *args, **kwargs)
        if name == "__repr__":  # JAX has no error here: it leaves the values out
            return f"Array(shape={array.shape}, dtype={array.dtype})"
        raise build(
            FetchError,
            where=place,
            given=f"a jax.Array of shape {array.shape}, {array.dtype}, with {array.sharding}",
            rule="fetching the value of an array that spans devices of several hosts is not "
            "possible where one of them holds only a part",
            advice="reduce or replicate it on the devices first, fetch it with hostmesh.to_local "
            "or hostmesh.allgather, or read its addressable_shards",
        )

    return read


@functools.lru_cache(maxsize=1024)
def _spread(sharding: Sharding, shape: tuple[int, ...], hosts: int | None) -> bool:
    """Whether several hosts hold parts of such an array, and one of them not all."""
    untyped: Any = sharding, jax
    chunks = untyped[0].devices_indices_map(shape)
    devices = untyped[1].devices(next(iter(chunks)).platform)
    held: dict[int, set[Any]] = {}
    for device, index in chunks.items():
        host = devices.index(device) * (hosts or len(devices)) // len(devices)
        held.setdefault(host, set()).add(tuple((part.start, part.stop) for part in index))
    whole = set[Any]().union(*held.values())
    return any(chunks != whole for chunks in held.values())


def _place() -> str | None:
    """File, line and text of whoever reads; `None` where that is an explicit call for all of it."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith(_EXPLICIT) or (
            module.startswith("hostmesh.") and not module.startswith("hostmesh.testing")
        ):
            return None
        if module.partition(".")[0] not in _INNER and module != __name__:
            break
        frame = frame.f_back
    if frame is None:
        return "an array was read"
    file, line = frame.f_code.co_filename, frame.f_lineno
    source = linecache.getline(file, line, frame.f_globals).strip()
    with contextlib.suppress(ValueError):
        file = min(file, os.path.relpath(file), key=len)
    return f"{file}:{line}: {source}"
