"""A drop-in for `jax.experimental.multihost_utils`: its names and signatures.

The functions take any mesh, where JAX's need each process's devices to form one rectangle of it;
they keep every bit of what they send; and a process that strays is an error with names on all.
`docs/differences.md` lists where results differ from JAX's.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from . import _jax
from ._check import assert_equal as _assert_equal
from ._collectives import allgather, barrier, broadcast
from ._convert import to_global, to_local
from ._coordination import agree
from ._errors import DivergenceError, SpecError, build
from ._live import ProcessFailureError as ProcessFailureError
from ._live import live_devices as live_devices
from ._packing import is_global as _is_global
from ._trees import Matched
from ._verdict import name_processes


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Makes global arrays of the host-local values that each process passes; see `to_global`.

    Args:
      local_inputs: a pytree of host-local values.
      global_mesh: the mesh, of any layout.
      pspecs: a pytree of `PartitionSpec`s, a prefix of `local_inputs`.

    Returns:
      A pytree of global arrays. Arrays that are not fully addressable come back as they are.
      Nothing is communicated.

    Raises:
      SpecError, ShapeError: as `hostmesh.to_global`.

    The values come in process order, each cut over its process's own devices:

    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> local = np.arange(4) * jax.process_index()
    >>> x = host_local_array_to_global_array(local, mesh, P("x"))
    >>> x.shape == (4 * jax.process_count(),)
    True
    >>> y = global_array_to_host_local_array(x, mesh, P("x"))
    >>> np.array_equal(y, local)
    True

    With an axis for the processes, each value is replicated on its process's devices:

    >>> grid = np.array(jax.devices()).reshape(jax.process_count(), -1)
    >>> by_host = Mesh(grid, ("host", "dev"))
    >>> x = host_local_array_to_global_array(local, by_host, P("host"))
    >>> all(np.array_equal(shard.data, local) for shard in x.addressable_shards)
    True

    With no axis at all, one value stands on every device of every process:

    >>> x = host_local_array_to_global_array(np.arange(4), mesh, P())
    >>> x.shape, np.asarray(x.addressable_shards[0].data).tolist()
    ((4,), [0, 1, 2, 3])
    """
    _require_specs(pspecs)
    if not any(map(_is_global, jax.tree.leaves(local_inputs))):
        return to_global(local_inputs, global_mesh, pspecs)
    # JAX takes an array that is global already as it is, whatever its layout; so does this
    # function, by giving such a leaf its own sharding as spec.
    matched = Matched(local_inputs, pspecs, "host_local_array_to_global_array", "pspecs")
    leaves = zip(matched.leaves, matched.items, strict=True)
    own = [leaf.sharding if _is_global(leaf) else spec for leaf, spec in leaves]
    return to_global(local_inputs, global_mesh, matched.rebuild(own))


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Gives each process its host-local values of global arrays; see `to_local`.

    Args:
      global_inputs: a pytree of global `jax.Array`s. Arrays on this process alone stay as they are.
      global_mesh: the mesh, of any layout.
      pspecs: a pytree of `PartitionSpec`s, a prefix of `global_inputs`.

    Returns:
      A pytree of `jax.Array`s on this process's devices. Communicates where an array's own layout
      is not that of `global_mesh` and `pspecs`, to which it is then resharded.

    Raises:
      SpecError, ShapeError: as `hostmesh.to_local`.

    >>> import jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> x = host_local_array_to_global_array(np.arange(4), mesh, P("x"))
    >>> np.asarray(global_array_to_host_local_array(x, mesh, P("x"))).tolist()
    [0, 1, 2, 3]
    """
    _require_specs(pspecs)
    return to_local(global_inputs, global_mesh, pspecs)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Gives every process the values of one: process 0, or the one that passes `is_source=True`.

    Args:
      in_tree: a pytree of arrays, of the same structure, dtypes and shapes on every process.
      is_source: whether this process is the source; `None` on all takes process 0.

    Returns:
      The pytree with the source's values as NumPy arrays, bit for bit. Communicates.

    Raises:
      SpecError: where not exactly one process is the source.
      DivergenceError, StragglerError, ClusterError: as `hostmesh.broadcast`.

    >>> import jax, numpy as np
    >>> broadcast_one_to_all(np.array([jax.process_index()])).tolist()
    [0]
    """
    if is_source is None:
        return broadcast(in_tree)
    flags = agree("broadcast_one_to_all with is_source", data=b"1" if is_source else b"0").data
    sources = [process for process, flag in enumerate(flags) if flag == b"1"]
    if len(sources) != 1:
        raise build(
            SpecError,
            where=f"broadcast_one_to_all on process {jax.process_index()}",
            given=f"is_source=True on {name_processes(sources) if sources else 'no process'}",
            rule="the values of one process go to all",
            advice="pass is_source=True on just one process, or leave it out for process 0",
        )
    return broadcast(in_tree, source=sources[0])


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Gives every process the values of all, and the whole of global arrays.

    Args:
      in_tree: a pytree of arrays, of the same structure and dtypes on every process.
      tiled: joins values on their first axis, whose sizes may differ between processes, instead of
        stacking them on a new one. Scalars are stacked in both cases.

    Returns:
      The pytree as NumPy arrays: stacked or joined in process order; arrays that are global (not
      fully addressable) whole. Communicates.

    Raises:
      SpecError: for global arrays without `tiled`, as JAX has it.
      DivergenceError, StragglerError, ClusterError: as `hostmesh.allgather`.

    >>> import jax, numpy as np
    >>> process_allgather(np.arange(2), tiled=True).shape == (2 * jax.process_count(),)
    True
    """
    if not tiled and any(map(_is_global, jax.tree.leaves(in_tree))):
        raise build(
            SpecError,
            where=f"process_allgather on process {jax.process_index()}",
            given="an array on several processes, tiled=False",
            rule="Gathering global non-fully-addressable arrays only supports tiled=True",
            advice="pass tiled=True, or call hostmesh.allgather, which gives such arrays whole",
        )
    if tiled and jax.process_count() == 1:
        return jax.tree.map(np.asarray, in_tree)
    if tiled:
        in_tree = jax.tree.map(_at_least_1d, in_tree)
    return allgather(in_tree, tiled=tiled)


def sync_global_devices(name: str) -> None:
    """Waits until all processes have come to the barrier of this name; see `hostmesh.barrier`.

    Raises:
      DivergenceError: where some came to another one.
      StragglerError: where some did not come within `hostmesh.config.timeout`.

    >>> sync_global_devices("loaded")
    """
    barrier(name)


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Raises `DivergenceError`, an `AssertionError`, where processes hold different values.

    Compares bits, by digests: see `hostmesh.assert_equal`. Communicates.

    >>> assert_equal({"seed": 3}, "seeds differ")
    """
    try:
        _assert_equal(in_tree)
    except DivergenceError as error:
        raise DivergenceError(f"{fail_message}\n{error}" if fail_message else str(error)) from None


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether this step is the one at which all processes save, after one was to be preempted.

    To be called with every step on every process. `False` where JAX's distributed runtime is off.

    Raises:
      RuntimeError: where the runtime is on without its preemption service.

    >>> reached_preemption_sync_point(0)
    False
    """
    if _jax.coordination_client() is None:
        return False
    manager = _jax.preemption_sync_manager()
    if manager is None:
        raise RuntimeError(
            "JAX's preemption sync manager is not there: set jax_enable_preemption_service before"
            " the distributed runtime starts"
        )
    return bool(manager.reached_sync_point(step_id))


_is_none = functools.partial(operator.is_, None)


def _require_specs(pspecs: Any) -> None:
    if any(map(_is_none, jax.tree.leaves(pspecs, is_leaf=_is_none))):
        raise build(
            SpecError,
            where=f"pspecs on process {jax.process_index()}",
            given=f"{pspecs}",
            rule="`None` is not a valid input to the pspecs argument: it says nothing of a layout",
            advice="write PartitionSpec() to replicate a value on every device",
        )


def _at_least_1d(leaf: Any) -> Any:
    return leaf if _is_global(leaf) or np.ndim(leaf) else np.asarray(leaf)[np.newaxis]
