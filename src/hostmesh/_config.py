"""Settings of the running process, each also an environment variable `HOSTMESH_<NAME>`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass, fields
from typing import Any

from ._errors import SpecError, build

_CHOICES: dict[str, tuple[str | None, ...]] = {
    "canonicalize": ("checked", "exact", "jax"),
    "check": (None, "shapes", "replicas"),
}


@dataclass
class Config:
    """The settings of `hostmesh.config`. Assigning one takes effect at the next call.

    Attributes:
      canonicalize: what becomes of 64-bit host values while JAX's x64 mode is off, where JAX makes
        them 32 bits wide. `"checked"` does so too, rounding floats, but raises for a value out of
        range; `"exact"` raises for any value that changes; `"jax"` says nothing, as JAX does.
      check: what `to_global` checks between processes where its own `check=` says nothing else:
        `"shapes"`, `"replicas"`, or `None`, which communicates nothing ("" in the environment).
      timeout: seconds that a collective waits for other processes, where its own `timeout=` says
        nothing else.
      call_sites: whether a collective compares file and line of the call between processes, which
        finds an extra call of the same kind on some of them.
      part_bytes: about how many bytes a collective brings to a process at a time; what it holds
        beside its result is a few times as much.
      progress: whether a collective that takes over a second shows how far it is, on standard error
        of the first process that takes part.
      pool_bytes: how many bytes of staging buffers that no device reads any more, and of results
        that nobody holds any more, are kept for the next call. Reusing them saves the page faults
        of fresh memory.
      staging_bytes: how many bytes of files the processes of one host together hold in host memory
        on the way to devices, each an equal share; a tensor beyond the share goes alone.
      stop_file: a file whose coming to be, on any process, is a notice to `should_stop`; "" is none.

    >>> import hostmesh
    >>> with hostmesh.config.set(canonicalize="jax"):
    ...     hostmesh.config.canonicalize
    'jax'
    """

    canonicalize: str = "checked"
    check: str | None = None
    timeout: float = 300.0
    call_sites: bool = True
    part_bytes: int = 8 * 2**20
    progress: bool = False
    pool_bytes: int = 512 * 2**20
    staging_bytes: int = 2 * 2**30
    stop_file: str = ""

    def __setattr__(self, name: str, value: Any) -> None:
        kinds = {field.name: type(field.default) for field in fields(self)}
        if name not in kinds:
            raise _config_error(name, value, f"settings are {sorted(kinds)}")
        if name in _CHOICES:
            value = value or None
            if value not in _CHOICES[name]:
                raise _config_error(name, value, f"it is one of {_CHOICES[name]}")
            object.__setattr__(self, name, value)
            return
        try:
            if kinds[name] is bool and isinstance(value, str):
                value = {"0": False, "1": True}[value]
            value = kinds[name](value)
        except (KeyError, TypeError, ValueError):
            raise _config_error(name, value, f"it is a {kinds[name].__name__}") from None
        if isinstance(value, int | float) and value < 0:
            raise _config_error(name, value, "it is not below 0")
        object.__setattr__(self, name, value)

    @contextlib.contextmanager
    def set(self, **settings: Any) -> Generator[None]:
        """Sets some settings for the length of a `with` block, in all threads."""
        before = {name: getattr(self, name) for name in settings if hasattr(self, name)}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


def _from_environment() -> Config:
    names = [field.name for field in fields(Config)]
    given = {name: os.environ.get(f"HOSTMESH_{name.upper()}") for name in names}
    return Config(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _config_error(name: str, value: object, rule: str) -> SpecError:
    return build(
        SpecError,
        where=f"hostmesh.config.{name}",
        given=repr(value),
        rule=rule,
        advice=f"correct the assignment or the variable HOSTMESH_{name.upper()}",
    )


config = _from_environment()
