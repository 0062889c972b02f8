"""Host-local values to global arrays and back, every shard against the brute-force oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

SHAPE = (16, 8, 8)  # what every spec of every kind of mesh cuts evenly

DTYPES = (np.float32, np.int8, np.bool_, jnp.bfloat16, np.complex64)
WIDE = ("int64", "uint64", "float64", "complex128")
SUB_BYTE = ("int1", "int2", "int4", "uint1", "uint2", "uint4", "float4_e2m1fn")
ALL_DTYPES = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *(name for name in dir(jnp) if name.startswith("float8_")),
    *(name for name in SUB_BYTE if hasattr(jnp, name)),
    *WIDE,
)


@both
def test_every_shard_of_every_layout_and_dtype(public: bool) -> None:
    """7 kinds of mesh x 8 specs x 5 dtypes, and back again bit for bit."""
    me, products = jax.process_index(), 0
    for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
        mesh = mesh_kind.mesh()
        sharding = NamedSharding(mesh, P(*spec))
        for dtype in DTYPES:
            value = oracle.noise(SHAPE, dtype, seed)
            local = layout.local(value, me)
            array = hm.to_global(local, mesh, P(*spec))
            what = (kind, spec, dtype)
            assert array.sharding == sharding, what
            assert array.dtype == dtype, what
            oracle.assert_shards(array, mesh, layout, value)
            if not layout.is_full_product(me):
                for as_numpy in (False, True):
                    with pytest.raises(hm.ShapeError, match="on none of its devices"):
                        hm.to_local(array, numpy=as_numpy)
                continue
            products += 1
            back = hm.to_local(array)
            assert isinstance(back, jax.Array)
            assert back.is_fully_addressable
            oracle.assert_bits_equal(back, local, what)
            oracle.assert_bits_equal(hm.to_local(array, mesh, P(*spec), numpy=True), local, what)
    assert products > 7 * 8 * 5 // 2


@both
def test_every_dtype_of_jax_comes_back_bit_for_bit(public: bool) -> None:
    me = jax.process_index()
    with jax.enable_x64(True):
        for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
            mesh = mesh_kind.mesh()
            for dtype in ALL_DTYPES:
                local = layout.local(oracle.noise(SHAPE, dtype, seed), me)
                array = hm.to_global(local, mesh, P(*spec))
                if not layout.is_full_product(me):
                    continue
                what = (kind, spec, dtype)
                oracle.assert_bits_equal(hm.to_local(array), local, what)
                oracle.assert_bits_equal(hm.to_local(array, numpy=True), local, what)


@both
def test_shards_over_the_size_where_buffers_are_pooled(public: bool) -> None:
    """The same with shards of 128 KiB and more, which take another way into the device."""
    me = jax.process_index()
    shape = (128, 128, 128)
    for name in ("block", "permuted", "diagonal", "strided"):
        kind = meshes.KINDS[name]
        mesh = kind.mesh()
        for spec in meshes.specs(kind)[1::2]:
            layout = oracle.Layout(kind.axes, kind.owners, oracle.cuts_of(spec, 3))
            for dtype in (np.int8, jnp.int4, jnp.bfloat16, np.bool_, np.dtype(">i2")):
                value = oracle.noise(shape, dtype)
                local = layout.local(value, me)
                array = hm.to_global(local, mesh, P(*spec))
                oracle.assert_shards(array, mesh, layout, value)
                if layout.is_full_product(me):
                    oracle.assert_bits_equal(hm.to_local(array, numpy=True), local)


@both
def test_nan_payloads_and_negative_zeros(public: bool) -> None:
    mesh = meshes.KINDS["interleaved"].mesh()
    for dtype, pattern in (
        (np.float32, np.array([0x7FC12345, 0xFFC00001, 0x7FA00001, 0x80000000], np.uint32)),
        (np.float16, np.array([0x7E01, 0xFE77, 0x7D01, 0x8000], np.uint16)),
        (jnp.bfloat16, np.array([0x7FC1, 0xFFC7, 0x7FA1, 0x8000], np.uint16)),
    ):
        local = np.tile(pattern.view(dtype), 8) if dtype != jnp.bfloat16 else None
        if local is None:
            local = np.tile(pattern, 8).view(dtype)
        array = hm.to_global(local, mesh, P(("x", "y")))
        oracle.assert_bits_equal(hm.to_local(array), local, dtype)
        oracle.assert_bits_equal(hm.to_local(array, numpy=True), local, dtype)


@both
def test_dimensions_given_whole(public: bool) -> None:
    """With the global shape, any dimension may be given whole: this process's part is cut out."""
    me = jax.process_index()
    value = oracle.noise(SHAPE, np.int16)
    for _, kind, spec, layout in oracle.layouts():
        mesh = kind.mesh()
        for whole in ({0, 1, 2}, {0}, {1, 2}, set()):
            local = layout.local(value, me, whole)
            array = hm.to_global(local, mesh, P(*spec), global_shape=SHAPE)
            oracle.assert_shards(array, mesh, layout, value)
        data = jax.device_put(layout.local(value, me, {0, 1}))
        array = hm.to_global(data, mesh, P(*spec), global_shape=SHAPE)
        oracle.assert_shards(array, mesh, layout, value)


@both
def test_64_bit_values(public: bool) -> None:
    """Without x64 they are made 32 bits wide, as JAX does, but not past what 32 bits hold."""
    mesh = meshes.KINDS["flat"].mesh()
    edge = np.array([-(2**31), 2**31 - 1])
    array = hm.to_global(edge, mesh, P())
    assert array.dtype == np.int32
    oracle.assert_bits_equal(hm.to_local(array, numpy=True), edge.astype(np.int32))
    third = np.array([1 / 3, np.nan, np.inf, -0.0])
    oracle.assert_bits_equal(hm.to_numpy(hm.to_global(third, mesh, P())), third.astype(np.float32))
    with hm.config.set(canonicalize="jax"):
        wrapped = hm.to_global(np.array([2**31]), mesh, P())
        assert hm.to_numpy(wrapped).tolist() == [-(2**31)]
    with jax.enable_x64(True):
        for value in (edge * 2**20, third, np.array([2**64 - 1], np.uint64)):
            oracle.assert_bits_equal(hm.to_numpy(hm.to_global(value, mesh, P())), value)
