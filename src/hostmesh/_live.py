"""The devices of processes that live, agreed on by those: JAX's `live_devices`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import jax

from . import _jax
from ._errors import ClusterError, SpecError, build


class ProcessFailureError(ClusterError):
    """Raised by `live_devices` when processes have failed; `failed_devices` are theirs."""

    __module__ = "hostmesh.multihost_utils"  # where it is public
    failed_devices: frozenset[Any] = frozenset()


# What the last block ended with: the next one begins with it, as all processes agreed on it.
_known: dict[Any, int] | None = None


@contextlib.contextmanager
def live_devices(devices: Sequence[Any]) -> Generator[list[Any]]:
    """Runs a block on the devices of those processes that live, all or nothing.

    Entering and leaving it are barriers of the processes that live. JAX's own runtime keeps the
    account of who does; the cluster must have been started to outlive its members
    (`jax_enable_recoverability`), or JAX ends all processes when one dies.

    Args:
      devices: the devices of interest, some of this process among them.

    Yields:
      Those of living processes, by id.

    Raises:
      SpecError: where there is no distributed runtime, or no device of this process is given.
      ProcessFailureError: on leaving, where a process died or restarted since.

    >>> import jax
    >>> if jax.distributed.is_initialized():
    ...     with live_devices(jax.devices()) as devices:
    ...         assert len(devices) == jax.device_count()
    """
    global _known
    if _known is None:
        _known = _live(devices)
    before, error = _known, None
    try:
        yield sorted(before, key=lambda device: device.id)
    except Exception as raised:
        error = raised
    _known = _live(devices)
    failed = {device for device in before if _known.get(device) != before[device]}
    if failed:
        processes = sorted({device.process_index for device in failed})
        lost = build(
            ProcessFailureError,
            where=f"live_devices on process {jax.process_index()}",
            given=f"{len(before)} live devices at the start",
            rule=f"processes {processes} died or restarted within the block",
            advice="do the step again on the devices that live, from the last saved state",
        )
        lost.failed_devices = frozenset(failed)
        raise lost from error
    if error is not None:
        raise error


def _live(devices: Sequence[Any]) -> dict[Any, int]:
    client = _jax.coordination_client()
    processes = sorted({device.process_index for device in devices})
    if client is None or jax.process_index() not in processes:
        if jax.process_index() not in processes:
            rule = f"none of them is of this process, {jax.process_index()}"
        elif not jax.distributed.is_initialized():
            rule = "JAX's distributed runtime is off"
        else:
            rule = "who lives is asked by private names of JAX, which are not there or not wanted"
        raise build(
            SpecError,
            where="live_devices",
            given=f"devices of processes {processes}",
            rule=rule,
            advice="call hostmesh.initialize() first, and pass jax.devices();"
            " HOSTMESH_PUBLIC_API=1 must not be set",
        )
    incarnations = client.get_live_nodes(processes)
    return {d: incarnations[d.process_index] for d in devices if d.process_index in incarnations}
