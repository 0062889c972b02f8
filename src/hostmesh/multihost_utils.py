"""A drop-in for `jax.experimental.multihost_utils`: its names and signatures.

The functions take any mesh, where JAX's need each process's devices to be a contiguous subcube.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh

from ._convert import to_global, to_local
from ._trees import Matched


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
    return to_local(global_inputs, global_mesh, pspecs)


def _is_global(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and not (
        isinstance(leaf, Tracer) or leaf.is_fully_addressable
    )
