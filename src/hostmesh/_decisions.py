"""Small decisions that all processes make alike, each in one round trip, and all-or-none blocks.

See `_collectives` for what all collectives share.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import traceback
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np

from . import _encoding
from ._coordination import (
    agree,
    is_told_since,
    members_of,
    position,
    rank_of,
    tell,
    telling,
)
from ._errors import SpecError, build
from ._messages import Incoming

# The most bytes of a choice: the choice of each process passes through one of them.
_LARGEST = 64 * 1024


def same_choice(
    value: Any, *, processes: Sequence[int] | None = None, timeout: float | None = None
) -> Any:
    """Gives every process the value that the first of them passes: one choice for all.

    In one round trip, for small Python values. `broadcast_object` takes the same kinds of values,
    of any size.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      SpecError: for a value of over 64 KiB.
      ShapeError: for one that cannot be packed.

    >>> import hostmesh
    >>> hostmesh.same_choice({"learning rate": 0.1, "steps": (10, 20)})
    {'learning rate': 0.1, 'steps': (10, 20)}
    """
    name = "same_choice"
    with telling(name, processes=processes):
        message = b""
        if members_of(processes, name)[0] == jax.process_index():
            message = _encoding.encode(value, name).tobytes()
            _require_small(message, name)
    agreed = agree(name, data=message, timeout=timeout, processes=processes)
    incoming = Incoming(len(agreed.data[0]))
    incoming.write(np.frombuffer(agreed.data[0], np.uint8), 0)
    return _encoding.decode(incoming)


def any_process(
    flag: object, *, processes: Sequence[int] | None = None, timeout: float | None = None
) -> bool:
    """Whether the flag is true on any process: does anyone want to stop?

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.

    >>> import hostmesh
    >>> hostmesh.any_process(False)
    False
    """
    return any(_flags("any_process", flag, processes, timeout))


def all_processes(
    flag: object, *, processes: Sequence[int] | None = None, timeout: float | None = None
) -> bool:
    """Whether the flag is true on all processes: is everyone done?

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.

    >>> import hostmesh
    >>> hostmesh.all_processes(True)
    True
    """
    return all(_flags("all_processes", flag, processes, timeout))


def agreed_seed(
    *,
    source: int | None = 0,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> int:
    """A random number of 32 bits, the same on all processes: a seed for any generator.

    It comes from the operating system, so that it neither follows nor moves any other generator.

    Args:
      source: the process that draws it; with `None` all do, and it depends on every one's draw.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      SpecError: for a source that does not take part.

    >>> import hostmesh
    >>> 0 <= hostmesh.agreed_seed() < 2**32
    True
    """
    name = f"agreed_seed(source={source})"
    with telling(name, processes=processes):
        root = None if source is None else rank_of(source, processes, name)
        drawn = secrets.token_bytes(16) if source in (None, jax.process_index()) else b""
    agreed = agree(name, data=drawn, timeout=timeout, processes=processes)
    draws = agreed.data if root is None else agreed.data[root : root + 1]
    return int.from_bytes(hashlib.sha256(b"".join(draws)).digest()[:4], "little")


def agreed_key(
    *,
    source: int | None = 0,
    impl: str | None = None,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """A random PRNG key, the same on all processes.

    Args:
      source: the process that draws it, or `None` for all; see `agreed_seed`.
      impl: the kind of key; by default JAX's.

    Returns:
      A typed key on this process's default device.

    Raises:
      DivergenceError, StragglerError, ClusterError, SpecError: as `agreed_seed`.

    >>> import hostmesh, jax
    >>> key = hostmesh.agreed_key()
    >>> jax.random.uniform(key).shape
    ()
    """
    seed = agreed_seed(source=source, processes=processes, timeout=timeout)
    return jax.random.key(jax.device_put(np.uint32(seed)), impl=impl)


@contextlib.contextmanager
def together(
    name: str, *, processes: Sequence[int] | None = None, timeout: float | None = None
) -> Generator[None]:
    """An all-or-none block: where it raises on one process, it raises on all.

    Whoever raises in the block tells the others, also those that wait for it in a collective in the
    block; each raises an error with its traceback. Leaving the block is a barrier.

    Args:
      name: what is done together, which all processes call the same.
      processes: those that take part; by default all.
      timeout: seconds to wait for them at the end; by default `config.timeout`.

    Raises:
      ClusterError: where another process raised in the block; the message has its traceback.
      DivergenceError, StragglerError: where processes leave different blocks, or do not come.

    >>> import hostmesh
    >>> with hostmesh.together("save"):
    ...     written = True
    """
    what = f"together {name!r}"
    members = members_of(processes, what)
    start = position(members)
    try:
        yield
    except BaseException as error:
        # What a collective in the block raised, all know of already: told again, it would be taken
        # for the next call's.
        if not is_told_since(error, start):
            own = error.__traceback__.tb_next if error.__traceback__ else None
            frames = "".join(traceback.format_exception(type(error), error, own))
            tell(error, what, members, f"{error}\n{frames}".rstrip())
        raise
    agree(what, timeout=timeout, processes=processes)


def _flags(
    name: str, flag: object, processes: Sequence[int] | None, timeout: float | None
) -> list[bool]:
    with telling(name, processes=processes):
        mine = bool(flag)
    agreed = agree(name, data=b"1" if mine else b"", timeout=timeout, processes=processes)
    return [data == b"1" for data in agreed.data]


def _require_small(message: bytes, name: str) -> None:
    if len(message) > _LARGEST:
        raise build(
            SpecError,
            where=f"{name} on process {jax.process_index()}",
            given=f"a value of {len(message)} bytes",
            rule=f"a choice is of at most {_LARGEST} bytes",
            advice="send large values with broadcast_object",
        )
