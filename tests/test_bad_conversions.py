"""Wrong conversions: each raises hostmesh's own error, with the leaf, the numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from hostmesh import ShapeError, SpecError, multihost_utils
from test_bad_input import Row, check

ROWS = P("x")


def conversions(me: int) -> dict[str, Row]:
    """Wrong calls on four processes of two devices: every process makes each of them."""
    block = meshes.KINDS["block"].mesh()
    diagonal = meshes.KINDS["diagonal"].mesh()
    part = meshes.Kind(("x",), np.array([0, 1])).mesh()  # process 0 only
    rows = np.zeros((4, 8), np.float32)
    keys = oracle.keys(4)
    whole = hm.to_global(rows, block, P("x"))
    on_diagonal = hm.to_global(rows, diagonal, P("x", "y"))
    here = f"process {me} "
    leaf = f"leaf ['params']['w'] on process {me} (to_global)"
    holder = {"params": {"b": np.float32(1), "w": None}}

    def inward(value: Any, spec: Any = ROWS, mesh: Any = block, **kwargs: Any) -> Callable[[], Any]:
        """`to_global` of a value that is one of several leaves, whose path errors must name."""
        tree = {"params": {"b": np.float32(1), "w": value}}
        specs = {"params": {"b": P(), "w": spec}}
        return lambda: hm.to_global(tree, mesh, specs, **kwargs)

    def outward(value: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: hm.to_local([whole, value], *args, **kwargs)

    def read(result: Any, shape: Any = (16, 8), **kwargs: Any) -> Callable[[], Any]:
        return lambda: hm.from_callback(shape, block, P("x"), lambda _: result, **kwargs)

    def assembled(shards: Any, **kwargs: Any) -> Callable[[], Any]:
        return lambda: hm.from_shards((16, 8), whole.sharding, shards, **kwargs)

    parts = [shard.data for shard in whole.addressable_shards]
    back = "leaf [1] on process"
    table: dict[str, Row] = {
        "size that does not divide": (
            inward(np.zeros((3, 8)), P(("x", "y"))),
            ShapeError,
            (leaf, "(3, 8)", "8 chunks, of which " + here + "holds 2", "size 3", "2 or 4"),
        ),
        "unknown axis": (
            inward(rows, P("model")),
            SpecError,
            (leaf, "'model'", "{'x': 4, 'y': 2}"),
        ),
        "axis used twice": (inward(rows, P("x", "x")), SpecError, (leaf, "'x' is used 2 times")),
        "spec longer than the rank": (
            inward(rows, P(None, None, "x")),
            SpecError,
            (leaf, "3 entries", "2 dimensions"),
        ),
        "spec of a scalar": (
            inward(3, P("x")),
            SpecError,
            (
                leaf,
                "PartitionSpec() for a scalar",
            ),
        ),
        "None as a spec": (inward(rows, None), SpecError, (leaf, "spec None", "PartitionSpec()")),
        "a name as a spec": (inward(rows, "x"), SpecError, (leaf, "spec 'x'", "PartitionSpec")),
        "UNCONSTRAINED": (
            inward(rows, P(P.UNCONSTRAINED)),
            SpecError,
            (leaf, "dimension 0 is UNCONSTRAINED"),
        ),
        "unreduced": (inward(rows, P("x", unreduced={"y"})), SpecError, (leaf, "['y'] are unred")),
        "a string": (
            inward("text"),
            ShapeError,
            (leaf, "str 'text'", "broadcast_object or allgather_object"),
        ),
        "bytes": (inward(b"text"), ShapeError, (leaf, "bytes", "broadcast_object")),
        "an array of strings": (
            inward(np.array(["a", "b"])),
            ShapeError,
            (leaf, "dtype <U1", "allgather_object"),
        ),
        "an array of objects": (
            inward(np.array([{}, None])),
            ShapeError,
            (leaf, "dtype object", "allgather_object"),
        ),
        "an array of dates": (
            inward(np.zeros(4, "M8[D]")),
            ShapeError,
            (leaf, "datetime64", "dtype that JAX has"),
        ),
        "a structured array": (inward(np.zeros(4, "i4,f4")), ShapeError, (leaf, "dtype [(")),
        "an array wider than JAX has": (
            inward(np.zeros(4, np.longdouble)),
            ShapeError,
            (leaf, "dtype float128", "dtype that JAX has"),
        ),
        "a masked array": (
            inward(np.ma.masked_array([1, 2], [0, 1])),
            ShapeError,
            (leaf, "masked array", "filled"),
        ),
        "a function": (inward(lambda: 1), ShapeError, (leaf, "function", "array or a number")),
        "a ragged list": (
            inward([[1, 2], [3]]),
            ShapeError,
            (leaf, "[[1, 2], [3]]", "equally long"),
        ),
        "an integer over 64 bits": (inward(2**70, P()), ShapeError, (leaf, str(2**70), "64 bits")),
        "int64 values over int32": (
            inward(np.array([1, 2**31])),
            ShapeError,
            (leaf, "int64", "2147483648", "x64", "canonicalize='jax'"),
        ),
        "uint64 values over uint32": (
            inward(np.array([2**32], np.uint64)),
            ShapeError,
            (leaf, "4294967296", "0 to 4294967295"),
        ),
        "float64 values over float32": (
            inward(np.array([1e300])),
            ShapeError,
            (leaf, "1e+300", "float32", "3.40"),
        ),
        "complex128 values over complex64": (
            inward(np.array([1e300j])),
            ShapeError,
            (leaf, "1e+300", "complex64"),
        ),
        "a check that is not there": (
            inward(rows, check="loudly"),
            SpecError,
            ("to_global", "check='loudly'", "None", "leave"),
        ),
        "specs of another structure": (
            lambda: hm.to_global(holder, block, {"params": {"b": P()}}),
            SpecError,
            ("to_global", "prefix", "'w'", "one for all leaves"),
        ),
        "more specs than leaves": (
            lambda: hm.to_global((rows,), block, (P(), P())),
            SpecError,
            ("specs of structure", "prefix"),
        ),
        "no mesh at all": (
            lambda: hm.to_global(rows, None, P("x")),
            SpecError,
            ("mesh=None", "jax.set_mesh"),
        ),
        "an abstract mesh": (
            lambda: hm.to_global(rows, block.abstract_mesh, P("x")),
            SpecError,
            ("AbstractMesh", "jax.sharding.Mesh"),
        ),
        "a shape struct where there are devices": (
            inward(jax.ShapeDtypeStruct((16, 8), np.float32)),
            ShapeError,
            (leaf, "ShapeDtypeStruct of shape (16, 8)", here + "has devices", "host-local value"),
        ),
        "global_shape that fits no reading": (
            lambda: hm.to_global({"w": rows}, block, P("x"), global_shape=(8, 8)),
            ShapeError,
            (
                f"leaf ['w'] on process {me}",
                "(4, 8)",
                f"{here}together".replace(" to", ", to"),
                "(2, 8)",
            ),
        ),
        "global_shape that does not divide": (
            lambda: hm.to_global({"w": rows}, block, P("x"), global_shape=(17, 8)),
            ShapeError,
            (f"leaf ['w'] on process {me}", "size 17", "16 or 20"),
        ),
        "negative global_shape": (
            lambda: hm.to_global(rows, block, P("x"), global_shape=(-16, 8)),
            ShapeError,
            (f"value on process {me}", "(-16, 8)", "none below 0"),
        ),
        "a global_shape that is none": (
            lambda: hm.to_global(rows, block, P("x"), global_shape="16"),
            ShapeError,
            ("'16'", "tuple of whole numbers"),
        ),
        "global_shapes of another structure": (
            lambda: hm.to_global([rows, rows], block, P("x"), global_shape=[(16, 8)]),
            SpecError,
            ("global_shape of structure", "prefix"),
        ),
        "keys with a spec of their data's rank": (
            inward(keys, P("x", None)),
            SpecError,
            (leaf, "2 entries", "1 dimensions"),
        ),
        "a global array of another layout": (
            inward(whole, P("y")),
            SpecError,
            (leaf, "(16, 8)", "another layout", "jax.device_put"),
        ),
        "to_global under jit": (
            lambda: jax.jit(lambda x: hm.to_global(x, block, P("x")))(rows),
            SpecError,
            ("to_global under jax.jit", "before the jitted function", "with_sharding_constraint"),
        ),
        "to_local under jit": (
            lambda: jax.jit(lambda x: hm.to_local(x, block, P("x")))(whole),
            SpecError,
            ("to_local under jax.jit", "global already"),
        ),
        "to_local under a transformation without a layout": (
            lambda: jax.vmap(hm.to_local)(whole),
            SpecError,
            ("without mesh and specs", "pass mesh and specs"),
        ),
        "NumPy on the way out": (
            outward(rows),
            ShapeError,
            (back, "ndarray", "out of a jax.Array", "host-local already"),
        ),
        "a number on the way out": (outward(3), ShapeError, (back, "int: '3'")),
        "a diagonal on the way out": (
            outward(on_diagonal),
            ShapeError,
            (back, f"of process {me} is", "2 of its chunks are on none of", "[", "full product"),
        ),
        "mesh without specs": (
            outward(whole, block),
            SpecError,
            ("to_local", "a mesh without specs", "give both"),
        ),
        "specs of another structure on the way out": (
            outward(whole, block, [P("x")]),
            SpecError,
            ("to_local", "prefix"),
        ),
        "unknown axis on the way out": (
            outward(whole, block, [P("x"), P("z")]),
            SpecError,
            (back, "'z'"),
        ),
        "spec longer than the rank on the way out": (
            outward(whole, block, [P("x"), P("x", None, "y")]),
            SpecError,
            (back, "3 entries", "2 dimensions"),
        ),
        "keys as NumPy": (
            outward(hm.to_global(keys, block, P("x")), numpy=True),
            ShapeError,
            (back, "NumPy has no dtype for keys", "key_data"),
        ),
        "a chunk of the wrong shape": (
            read(np.zeros((3, 8), np.float32)),
            ShapeError,
            (f"from_callback on process {me}", f"[{4 * me}:{4 * me + 4}, 0:8]", "(3, 8)", "(4, 8)"),
        ),
        "a chunk of the wrong dtype": (
            read(np.zeros((4, 8), np.int16), dtype=np.float32),
            ShapeError,
            (f"from_callback on process {me}", "int16", "float32"),
        ),
        "a chunk of strings": (
            read(np.full((4, 8), "a")),
            ShapeError,
            (f"from_callback on process {me}", "dtype <U1"),
        ),
        "chunks of different dtypes": (
            lambda: hm.from_callback(
                (16,),
                block,
                P(("x", "y")),
                lambda i: np.zeros(2, [np.int8, np.int16][i[0].start // 2 % 2]),
            ),
            ShapeError,
            (f"from_callback on process {me}", f"int8 at [{4 * me}:", "int16", "one dtype"),
        ),
        "a shape of chunks that does not divide": (
            read(0, (18, 8)),
            ShapeError,
            (f"from_callback on process {me}", "size 18", "16 or 20"),
        ),
        "an array that is elsewhere too": (
            lambda: hm.to_numpy(whole),
            ShapeError,
            (f"to_numpy on process {me}", "3 of its 4", f"[{4 * ((me + 1) % 4)}:", "allgather"),
        ),
        "out of another shape": (
            lambda: hm.to_numpy(
                jax.device_put(np.zeros(3, np.float32)), out=np.zeros(4, np.float32)
            ),
            ShapeError,
            ("to_numpy", "shape (4,)", "(3,)"),
        ),
        "out of another dtype": (
            lambda: hm.to_numpy(jax.device_put(np.zeros(3, np.float32)), out=np.zeros(3)),
            ShapeError,
            ("to_numpy", "float64", "float32"),
        ),
        "to_numpy of NumPy": (lambda: hm.to_numpy(rows), ShapeError, ("ndarray", "jax.Array")),  # type: ignore[arg-type]
        "to_numpy of keys": (lambda: hm.to_numpy(keys), ShapeError, ("keys", "key_data")),
        "is_locally_complete of NumPy": (
            lambda: hm.is_locally_complete(rows),  # type: ignore[arg-type]
            ShapeError,
            ("ndarray", "jax.Array"),
        ),
        "a shard that is missing": (
            assembled(parts[:1]),
            SpecError,
            (f"from_shards on process {me}", "1 shards", f"none for devices {parts[1].device.id}"),
        ),
        "a shard that is there twice": (
            assembled([*parts, parts[0]]),
            SpecError,
            ("3 shards", f"more than one for devices {parts[0].device.id}"),
        ),
        "a shard of the wrong shape": (
            assembled([parts[0], jax.device_put(rows[:2], parts[1].device)]),
            ShapeError,
            (f"on device {parts[1].device.id}", "(2, 8)", "(4, 8)"),
        ),
        "a shard of another dtype": (
            assembled([parts[0], jax.device_put(rows.astype(np.int32), parts[1].device)]),
            ShapeError,
            (f"on device {parts[1].device.id}", "int32", "float32"),
        ),
        "a shard in NumPy": (assembled([rows, rows]), ShapeError, ("from_shards", "ndarray")),
        "a shard over two devices": (
            assembled([whole]),
            SpecError,
            ("from_shards", "1 spread over several devices"),
        ),
        "a setting that is not there": (
            lambda: setattr(hm.config, "canonicalise", "jax"),
            SpecError,
            ("hostmesh.config.canonicalise", "'canonicalize'"),
        ),
        "a setting of a wrong value": (
            lambda: setattr(hm.config, "canonicalize", "loudly"),
            SpecError,
            ("'loudly'", "checked", "HOSTMESH_CANONICALIZE"),
        ),
        "the drop-in module": (
            lambda: multihost_utils.host_local_array_to_global_array({"w": rows}, block, P("z")),
            SpecError,
            (f"leaf ['w'] on process {me}", "'z'"),
        ),
    }
    if me:
        table["values of a process without devices"] = (
            inward(rows, P(), part),
            ShapeError,
            ("leaf ['params']", f"process {me} has no device", "jax.ShapeDtypeStruct"),
        )
        table["a shape that does not divide, without devices"] = (
            lambda: hm.to_global(jax.ShapeDtypeStruct((3,), np.int8), part, P("x")),
            ShapeError,
            ("size 3", "2 or 4"),
        )
        table["nothing read and no dtype"] = (
            lambda: hm.from_callback((4,), part, P("x"), lambda _: rows),
            ShapeError,
            (f"from_callback on process {me}", "pass dtype="),
        )
        table["no shards and no dtype"] = (
            lambda: hm.from_shards((4,), NamedSharding(part, P("x")), []),
            ShapeError,
            (f"from_shards on process {me}", "pass dtype="),
        )
    return table


@both
def test_wrong_conversions(public: bool) -> None:
    """Each fails by name on every process, at once, and the next call goes on as if nothing was."""
    me = jax.process_index()
    table = conversions(me)
    assert len(table) >= 60
    wrong = {name: said for name, row in table.items() if (said := check(row))}
    assert not wrong, "\n\n".join(f"{name}: {said}" for name, said in wrong.items())
    mesh = meshes.KINDS["flat"].mesh()
    array = hm.to_global(np.full(2, me, np.float32), mesh, P("x"))
    assert jax.device_get(jax.jit(lambda x: x.sum())(array)) == 12


@both
def test_what_read_raises_comes_out_with_its_index(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["block"].mesh()
    calls: list[Any] = []

    def read(index: Any) -> np.ndarray:
        calls.append(index)
        raise KeyError("no such file")

    for threads in (1, None):
        with pytest.raises(KeyError, match="no such file") as caught:
            hm.from_callback((64, 2), mesh, P(("x", "y")), read, threads=threads)
        (note,) = caught.value.__notes__
        assert "from_callback" in note
        assert f"[{16 * me}:{16 * me + 8}, 0:2]" in note or f"[{16 * me + 8}:" in note
    assert 2 <= len(calls) <= 4


@both
def test_dtypes_that_this_jax_does_not_have(public: bool) -> None:
    """float6 kinds came after JAX 0.10.2: there they are an error of ours and not one of XLA."""
    mesh = meshes.KINDS["block"].mesh()
    value = oracle.noise((4, 8), jnp.float6_e2m3fn)
    try:
        jax.device_put(value)
    except jax.errors.JaxRuntimeError:
        with pytest.raises(ShapeError, match="float6_e2m3fn"):
            hm.to_global(value, mesh, P("x"))
    else:
        array = hm.to_global(value, mesh, P("x"))
        oracle.assert_bits_equal(hm.to_local(array, numpy=True), value)
