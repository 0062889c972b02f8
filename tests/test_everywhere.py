"""What holds on all processes alike, whatever mesh the user has set."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.multiprocess(processes=4, devices=2)
def test_conversions_and_collectives_under_a_mesh_of_the_users() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    me = jax.process_index()
    devices = np.array(jax.devices())
    mesh = Mesh(devices, "x")
    strange = Mesh(np.roll(devices, 1)[::-1].reshape(2, 4), ("a", "b"))
    first, second = jax.local_devices()
    x = np.arange(8.0, dtype=np.float32) + me
    values: list[Any] = [
        x,
        jnp.asarray(x),
        jax.device_put(x, second),
        jax.device_put(x, NamedSharding(Mesh(np.array([second, first]), "q"), P("q"))),
        jax.random.split(jax.random.key(me), 8),
    ]
    for around in (mesh, strange):
        with jax.set_mesh(around):
            for value in values:
                array = hm.to_global(value, mesh, P("x"))
                assert array.shape == (32,)
                back = hm.to_local(array)
                if not hm.is_locally_complete(back):
                    raise AssertionError("a host-local value lies on this process")
                pair = (value, back)
                if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
                    pair = (jax.random.key_data(value), jax.random.key_data(back))
                np.testing.assert_array_equal(np.asarray(pair[0]), np.asarray(pair[1]))
            large = np.full(3000, me, np.float32)
            assert hm.allgather(large)[:, 0].tolist() == [0, 1, 2, 3]
            assert hm.broadcast(large, source=2)[0] == 2
            assert hm.gather(large, to=1) is None or me == 1
    local = jax.device_put(x, first)  # under the mesh, jnp.asarray would make a global array
    with jax.set_mesh(mesh):
        assert hm.to_global(local, None, P("x")).shape == (32,)
        square = jax.jit(lambda a: (a**2).sum())
        gradient = jax.grad(lambda v: square(hm.to_global(v, mesh, P("x"))))(local)
        np.testing.assert_allclose(np.asarray(gradient), 2 * x)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_resharding_raises_on_all_where_one_process_would_miss_chunks() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    devices = np.array(jax.devices())
    # Processes 0 and 2 hold a diagonal of it, processes 1 and 3 a full product.
    diagonal = Mesh(devices[[0, 5, 2, 3, 4, 1, 6, 7]].reshape(2, 4), ("x", "y"))
    array = hm.to_global(np.zeros((2, 8), np.float32), Mesh(devices, "q"), P("q"))
    with pytest.raises(hm.ShapeError, match="host-local value of process 0"):
        hm.to_local(array, diagonal, P("x", "y"))
