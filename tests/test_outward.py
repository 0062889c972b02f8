"""What one process takes out of global arrays, as NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

SHAPE = (16, 8, 8)  # what every spec of every kind of mesh cuts evenly


@both
def test_to_numpy_where_this_process_holds_all(public: bool) -> None:
    me = jax.process_index()
    value = oracle.noise(SHAPE, jnp.bfloat16)
    complete = 0
    for _, kind, spec, layout in oracle.layouts():
        array = hm.to_global(layout.local(value, me), kind.mesh(), P(*spec))
        covered = bool(layout.covered(SHAPE, me).all())
        assert hm.is_locally_complete(array) == covered
        if covered:
            complete += 1
            got = hm.to_numpy(array)
            oracle.assert_bits_equal(got, value)
            assert got.flags.owndata or got.base.flags.owndata
            got[...] = 0  # the caller's own
            out = np.empty_like(value)
            assert hm.to_numpy(array, out=out) is out
            oracle.assert_bits_equal(out, value)
        else:
            with pytest.raises(hm.ShapeError, match="allgather"):
                hm.to_numpy(array)
    assert complete >= 7
    oracle.assert_bits_equal(hm.to_numpy(jax.device_put(value)), value)


@both
def test_what_to_local_gives_is_the_callers(public: bool) -> None:
    """NumPy results may be written, and what is written does not reach the array."""
    mesh = meshes.KINDS["block"].mesh()
    local = np.arange(8, dtype=np.float32)
    for spec in (P("x"), P()):
        array = hm.to_global(local, mesh, spec)
        back = hm.to_local(array, numpy=True)
        back[...] = -1
        oracle.assert_bits_equal(hm.to_local(array, numpy=True), local)


@both
def test_another_layout_than_the_array_s_own(public: bool) -> None:
    """With mesh and specs, the host-local value of any layout; the array is resharded to it."""
    me = jax.process_index()
    value = oracle.noise(SHAPE, np.float32)
    for source, spec, target, wanted in (
        ("block", ("x",), "block", ("y",)),
        ("block", ("x",), "permuted", (None, ("y", "x"))),
        ("flat", ("x",), "strided", ()),
        ("permuted", ("x",), "cube permuted", ("z",)),
        ("diagonal", ("x", "y"), "diagonal", ("x",)),
    ):
        before, after = (
            oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(cuts, 3))
            for kind, cuts in ((meshes.KINDS[source], spec), (meshes.KINDS[target], wanted))
        )
        array = hm.to_global(before.local(value, me), meshes.KINDS[source].mesh(), P(*spec))
        mesh = meshes.KINDS[target].mesh()
        for as_numpy in (False, True):
            got = hm.to_local(array, mesh, P(*wanted), numpy=as_numpy)
            oracle.assert_bits_equal(got, after.local(value, me))


@both
def test_missing_chunks_are_fetched(public: bool) -> None:
    """On any layout the host-local value is all of its product, held here or not."""
    me = jax.process_index()
    value, fetched = oracle.noise(SHAPE, np.float32), 0
    for _, kind, spec, layout in oracle.layouts():
        if all(layout.is_full_product(process) for process in range(4)):
            continue
        fetched += 1
        array = hm.to_global(layout.local(value, me), kind.mesh(), P(*spec))
        for as_numpy in (False, True):
            got = hm.to_local(array, numpy=as_numpy, fetch_missing=True)
            oracle.assert_bits_equal(got, layout.local(value, me))
    assert fetched >= 4
