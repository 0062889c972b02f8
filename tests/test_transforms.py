"""Derivatives through the conversions, on real processes, against one process and differences."""

from __future__ import annotations

from typing import Any

import pytest

MESHES = ("block", "interleaved", "replicated-over-processes")


def _mesh(kind: str) -> Any:
    import jax
    import numpy as np
    from jax.sharding import Mesh

    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    if kind == "interleaved":
        return Mesh(devices.T.reshape(2, 2, 2), ("a", "b", "c"))
    return Mesh(devices.reshape(2, 2, 2), ("a", "b", "c"))


def _specs(kind: str) -> list[Any]:
    from jax.sharding import PartitionSpec as P

    return [P(("a", "b", "c")), P("a"), P(None, "b"), P("c", "a"), P("b", "c"), P()]


def _loss(x: Any, w: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sum(jnp.sin(x * w) ** 2) + jnp.sum(x[0] * x[-1])


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.parametrize("kind", ["block", "interleaved"])
def test_gradient_through_to_global_is_that_of_one_process(kind: str) -> None:
    import jax
    import numpy as np

    import hostmesh as hm

    mesh = _mesh(kind)
    whole = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    expected = jax.grad(_loss)(whole, weights)
    for spec in _specs(kind):
        plan = hm.plan(mesh, spec, global_shape=whole.shape, process=jax.process_index())
        if not plan.is_product():
            continue
        w = hm.to_global(weights, mesh, spec, global_shape=weights.shape)
        local = hm.to_local(hm.to_global(whole, mesh, spec, global_shape=whole.shape), numpy=True)
        jitted = jax.jit(_loss)

        def loss(x: Any, spec: Any = spec, w: Any = w, jitted: Any = jitted) -> Any:
            return jitted(hm.to_global(x, mesh, spec), w)

        gradient = jax.grad(loss)(local)
        wanted = hm.to_local(
            hm.to_global(np.asarray(expected), mesh, spec, global_shape=(8, 16)), numpy=True
        )
        np.testing.assert_allclose(np.asarray(gradient), wanted, rtol=1e-5, atol=1e-6)
        _, again = jax.value_and_grad(loss)(jax.numpy.asarray(local))
        assert np.asarray(again).shape == local.shape
        primal, pullback = jax.vjp(lambda x, spec=spec: hm.to_global(x, mesh, spec), local)
        (back,) = pullback(primal)
        np.testing.assert_array_equal(np.asarray(back), local)


@pytest.mark.multiprocess(processes=4, devices=2)
@pytest.mark.parametrize("kind", ["block", "interleaved"])
def test_gradient_through_to_local_adds_the_losses_of_processes(kind: str) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils

    import hostmesh as hm

    mesh = _mesh(kind)
    whole = np.random.default_rng(2).normal(size=(8, 16)).astype(np.float32)
    me = jax.process_index()
    for spec in _specs(kind):
        plan = hm.plan(mesh, spec, global_shape=whole.shape, process=me)
        if not all(plan.is_product(p) for p in range(4)):
            continue
        x = hm.to_global(whole, mesh, spec, global_shape=whole.shape)

        def own_loss(x: Any, spec: Any = spec) -> Any:
            return jnp.sum((me + 1) * jnp.sin(hm.to_local(x, mesh, spec)))

        gradient = jax.grad(own_loss)(x)
        assert gradient.shape == whole.shape
        # d/dg of the sum of all losses: each process that holds an element adds (p + 1) cos.
        factor = np.zeros_like(whole)
        for chunk, holders in plan.replica_groups.items():
            factor[plan.global_index(chunk)] = sum(p + 1 for p in holders)
        expected = factor * np.cos(whole)
        for shard in gradient.addressable_shards:
            np.testing.assert_allclose(
                np.asarray(shard.data), expected[shard.index], rtol=1e-4, atol=1e-5
            )
        # And by central differences of that sum, at three places.
        for place in ((0, 0), (3, 5), (7, 15)):
            step = np.zeros_like(whole)
            step[place] = 1e-2
            ends = [
                float(
                    own_loss(
                        hm.to_global(whole + sign * step, mesh, spec, global_shape=whole.shape)
                    )
                )
                for sign in (1, -1)
            ]
            total = (
                multihost_utils.process_allgather(np.array(ends, np.float32)).reshape(4, 2).sum(0)
            )
            np.testing.assert_allclose(
                (total[0] - total[1]) / 2e-2, expected[place], rtol=2e-2, atol=2e-2
            )


@pytest.mark.multiprocess(processes=4, devices=2)
def test_jvp_and_second_derivatives() -> None:
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = _mesh("interleaved")
    whole = np.random.default_rng(3).normal(size=(8,)).astype(np.float32)
    tangent = np.random.default_rng(4).normal(size=(8,)).astype(np.float32)
    cube = jax.jit(lambda x: jax.numpy.sum(x**3))
    for spec in (P("a"), P(), P("c")):
        local, dlocal = (
            hm.to_local(hm.to_global(v, mesh, spec, global_shape=(8,)), numpy=True)
            for v in (whole, tangent)
        )

        def loss(x: Any, spec: Any = spec) -> Any:
            return cube(hm.to_global(x, mesh, spec))

        _, out = jax.jvp(loss, (local,), (dlocal,))
        np.testing.assert_allclose(np.asarray(out), np.sum(3 * whole**2 * tangent), rtol=1e-4)
        # The Hessian is diagonal, 6 x: forward over reverse.
        _, curved = jax.jvp(jax.grad(loss), (local,), (dlocal,))
        np.testing.assert_allclose(np.asarray(curved), 6 * local * dlocal, rtol=1e-4, atol=1e-5)
        # Reverse over reverse.
        twice = jax.grad(lambda x: jax.numpy.vdot(jax.grad(loss)(x), dlocal))(local)  # noqa: B023
        np.testing.assert_allclose(np.asarray(twice), 6 * local * dlocal, rtol=1e-4, atol=1e-5)


@pytest.mark.multiprocess(processes=4, devices=2)
def test_vmap_adds_a_dimension_that_nothing_cuts() -> None:
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = _mesh("block")
    me = jax.process_index()
    x = np.arange(3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2) + 100 * (me // 2)
    for axis in (0, 1, 2):
        batched = np.moveaxis(x, 0, axis)
        g = jax.vmap(lambda v: hm.to_global(v, mesh, P("a")), in_axes=axis, out_axes=axis)(batched)
        assert g.shape == np.moveaxis(np.empty((3, 8, 2)), 0, axis).shape
        back = jax.vmap(lambda v: hm.to_local(v, mesh, P("a")), in_axes=axis, out_axes=axis)(g)
        np.testing.assert_array_equal(np.asarray(back), batched)


def test_under_jit_the_error_says_what_to_write() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    import hostmesh as hm

    mesh = Mesh(np.array(jax.devices()[:1]), ("a",))
    with pytest.raises(
        hm.SpecError, match=r"to_global under jax.jit[\s\S]*before the jitted function"
    ):
        jax.jit(lambda x: hm.to_global(x, mesh, P("a")))(np.zeros(4, np.float32))
    with pytest.raises(hm.SpecError, match=r"to_local under jax.jit[\s\S]*results after it"):
        jax.jit(lambda x: hm.to_local(x, mesh, P("a")))(np.zeros(4, np.float32))
