"""`assert_equal` and the checks of `to_global`: nothing missed, no false alarm, the right names."""

from __future__ import annotations

import os
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import meshes
import oracle
from apis import both

# The claim is for 1,000; that many take some minutes.
FLIPS = int(os.environ.get("HOSTMESH_TEST_FLIPS", "32"))
DTYPES = ("bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "bfloat16", "float32")
DTYPES += ("float64", "complex64", "complex128", "float8_e5m2", "int4")


def given_of(call: Any, kind: type[Exception] = hm.DivergenceError) -> str:
    """What the error of a call says was given, on this process."""
    with pytest.raises(kind) as caught:
        call()
    where, given, rule, do = str(caught.value).replace("\n         ", " / ").splitlines()
    assert where.endswith(f"on process {jax.process_index()}")
    assert rule.startswith("  rule:  ")
    assert do.startswith("  do:    ")
    return given.removeprefix("  given: ")


def random_tree(rng: random.Random, seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """A tree of arrays of any dtype and strides, and its leaves by path."""
    leaves: dict[str, np.ndarray] = {}

    def leaf(path: str) -> np.ndarray:
        shape = [rng.choice((1, 2, 3, 7, 30)) for _ in range(rng.randrange(4))]
        if rng.random() < 0.05:
            shape = [rng.choice((3, 5)), 2**19 + rng.randrange(9)]  # of several blocks
        array = oracle.noise(tuple(shape), rng.choice(DTYPES), seed + len(leaves))
        if rng.random() < 0.3:
            array = array.T
        if rng.random() < 0.2 and array.ndim:
            array = array[::-1]
        leaves[path] = array
        return array

    def node(path: str, depth: int) -> Any:
        if depth == 0 or rng.random() < 0.3:
            return leaf(path)
        names = list(range(rng.randrange(1, 4)))
        if rng.random() < 0.5:
            return {f"k{i}": node(f"{path}['k{i}']", depth - 1) for i in names}
        return [node(f"{path}[{i}]", depth - 1) for i in names]

    return node("", 3), leaves


@both
def test_every_flipped_bit_is_found_and_no_equal_tree_is_refused(public: bool) -> None:
    me, processes = jax.process_index(), jax.process_count()
    for seed in range(FLIPS // 4 if public else FLIPS):
        rng = random.Random(seed)
        tree, leaves = random_tree(rng, seed)
        hm.assert_equal(tree, name="equal")
        path, odd = rng.choice(sorted(leaves)), rng.randrange(processes)
        array = leaves[path]
        place = tuple(rng.randrange(size) for size in array.shape)
        # The bits that a dtype does not use are not to be set in it.
        bits = {"bool": 1, "int4": 4}.get(array.dtype.name, 8 * array.itemsize)
        bit = rng.randrange(bits)
        if me == odd:
            raw = bytearray(array[place].tobytes())
            raw[bit // 8] ^= 1 << bit % 8
            array[place] = np.frombuffer(bytes(raw), array.dtype)[0]
        told = given_of(lambda tree=tree: hm.assert_equal(tree, name="flipped"))
        others = {0: "1-3", 1: "0, 2-3", 2: "0-1, 3", 3: "0-2"}[odd]
        label = f"leaf {path}" if path else "the value"
        kind = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
        expected = f"{label} of {kind}: process {odd} differs from processes {others} in 1 of"
        assert told.startswith(f"{expected} {array.size} elements"), (seed, told)
        assert f", first at {list(place)}: " in told, (seed, told)


@both
def test_an_error_says_what_differs_where_and_by_how_much(public: bool) -> None:
    me = jax.process_index()
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    mine = rows.copy()
    if me == 2:
        mine[1, 2:] += [0.25, -0.5]
    told = given_of(lambda: hm.assert_equal({"w": [mine, 3 if me != 1 else 5]}, name="params"))
    assert told == (
        "leaf ['w'][0] of float32[3,4]: process 2 differs from processes 0-1, 3 in 2 of 12"
        " elements by up to 0.5, first at [1, 2]: 6.25 there, 6.0 on process 0"
        " / leaf ['w'][1] of int64[]: process 1 differs from processes 0, 2-3 in 1 of 1 elements"
        " by up to 2, first at []: 5 there, 3 on process 0"
    )
    # Where processes are many against many, the group of the lowest is the measure.
    told = given_of(lambda: hm.assert_equal(np.uint8([7, me // 2])))
    assert "processes 2-3 differ from processes 0-1 in 1 of 2 elements" in told
    extremes = np.array([-(2**63), 2**63 - 1])[[me % 2]]
    told = given_of(lambda: hm.assert_equal(extremes))
    assert (
        "by up to 1.84467e+19, first at [0]: 9223372036854775807 there, -9223372036854775808"
        in told
    )
    told = given_of(lambda: hm.assert_equal(jax.random.key(me // 3)))
    assert told.startswith(
        "the value of key<threefry2x32>[2]: process 3 differs from processes 0-2"
    )
    assert "by up to" not in told
    told = given_of(lambda: hm.assert_equal([me if i in (3, 40) else 0 for i in range(50)]))
    assert told.count("differs from process 0") == 6
    told = given_of(lambda: hm.assert_equal([me] * 30))
    rest = ", ".join(f"leaf [{i}] of int64[]" for i in range(5, 25))
    assert told.endswith(f" / and {rest} and 5 more")
    # The channel is of use afterwards.
    hm.assert_equal(rows)


@both
def test_nan_and_signed_zero_by_each_rule(public: bool) -> None:
    me = jax.process_index()
    for dtype in (np.float32, np.float64, np.float16, jnp.bfloat16, np.complex64):
        nan = np.array([1, np.nan, np.inf], dtype)
        other = nan.copy()
        raw = other.view(np.uint8)
        raw[nan.itemsize] ^= me == 1  # another payload of the NaN
        zeros = np.array([0.0, -0.0], dtype)[[int(me == 1)]]
        hm.assert_equal(nan)
        told = given_of(lambda other=other: hm.assert_equal(other))
        assert "process 1 differs from processes 0, 2-3 in 1 of 3 elements, first at [1]: " in told
        if np.dtype(dtype).kind == "f":
            assert "nan of bits 7" in told
        hm.assert_equal([other, zeros], nan="equal")
        told = given_of(lambda zeros=zeros: hm.assert_equal(zeros))
        assert "process 1 differs" in told
        assert "0 there, " in told or "0.0 there, " in told or "j) there, " in told
        hm.assert_equal(zeros, nan="unequal")
        told = given_of(lambda nan=nan: hm.assert_equal(nan, nan="unequal"))
        assert "processes 0-3 differ from all, having a NaN, in 1 of 3 elements" in told
        values = np.array([1, np.nan], dtype) + (me == 2)
        for rule in ("equal", "unequal"):
            told = given_of(lambda v=values, r=rule: hm.assert_equal(v, nan=r))
            assert "by up to 1, first at [0]: " in told
    hm.assert_equal(np.array([0, -1]), nan="unequal")
    with pytest.raises(hm.SpecError, match="nan='jax'"):
        hm.assert_equal(1, nan="jax")


@both
def test_other_structures_dtypes_and_failures_are_named(public: bool) -> None:
    me = jax.process_index()
    cases = [
        ({"a": np.zeros(3), "b": 1 if me != 3 else 1.0}, "leaf ['b']: int64[]", "leaf ['b']: float64[]"),
        ({"a": np.zeros(3 if me != 3 else 4)}, "float64[3]", "float64[4]"),
        ({"a": 1, "b" if me != 3 else "c": 1}, "leaf ['b']: int64[]", "leaf ['c']: int64[]"),
        ([1, 2] if me != 3 else [1, 2, 3], "PyTreeDef([*, *])", "leaf [2]: int64[]"),
        ([1, 2] if me != 3 else (1, 2), "PyTreeDef([*, *])", "PyTreeDef((*, *))"),
    ]  # fmt: skip
    for tree, most, odd in cases:
        told = given_of(lambda tree=tree: hm.assert_equal(tree))
        assert f"{most}; process 3: " in told
        assert told.startswith("processes 0-2: ")
        assert told.endswith(odd)
    if me == 1:
        with pytest.raises(hm.ShapeError, match="leaf \\['x'\\] on process 1"):
            hm.assert_equal({"x": "text"})
    else:
        with pytest.raises(hm.ClusterError, match=r"process 1: assert_equal .*\n.*text"):
            hm.assert_equal({"x": 1})
    with pytest.raises(hm.DivergenceError, match=r"process 0: assert_equal 'a' at .*'b' at"):
        hm.assert_equal(1, name="a" if me == 0 else "b")


@both
def test_what_is_equal_passes_wherever_it_lies(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["block"].mesh()
    value = oracle.noise((64, 4), np.float32)
    here = Mesh(jax.local_devices(), "d")
    tree = {
        "numpy": value,
        "numpy of other strides": np.asfortranarray(value) if me % 2 else value,
        "one device": jnp.asarray(value),
        "local devices": hm.to_global(value, here, P("d")),
        "replicated": hm.to_global(value, mesh, P()),
        "keys": jax.random.split(jax.random.key(1), 3),
        "nothing": np.zeros((0, 3)),
        "big-endian": np.arange(5, dtype=">i4" if me % 2 else "<i4"),
        "list": None,
    }
    with jax.transfer_guard("disallow"), jax.set_mesh(mesh):
        hm.assert_equal(tree)
    if me < 2:
        hm.assert_equal(me // 2, processes=[0, 1])
    cut = hm.to_global(value, mesh, P("x"))
    with pytest.raises(hm.ShapeError, match="a global array of shape"):
        hm.assert_equal(cut)

    found: dict[str, str] = {}

    def work(name: str) -> None:
        for round_ in range(5):
            hm.assert_equal((name, round_)[1], name=name)
            told = given_of(lambda r=round_: hm.assert_equal([r, me == 3], name=name))
            found[name] = told

    if not public:  # there no two threads may agree at once
        threads = [threading.Thread(target=work, args=(f"t{i}",), name=f"t{i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        assert all("process 3 differs" in told for told in found.values())


def peak_above(call: Any) -> int:
    """By how many bytes this process's peak memory passes what it held before a call."""

    def memory(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before


@pytest.mark.multiprocess
def test_comparing_takes_no_memory_that_grows_with_the_values() -> None:
    me = jax.process_index()
    small, large = np.ones(2**19, np.float32), np.ones(2**25, np.float32)

    def differ(value: np.ndarray) -> None:
        assert "differs from process 0" in given_of(lambda: hm.assert_equal(value))

    differ(small + me)  # compiles
    device = jax.block_until_ready(jax.device_put(large))
    for value in (large, large.reshape(4096, -1).T, device):
        assert peak_above(lambda value=value: hm.assert_equal(value)) < 16 * 2**20
    del device
    large[::1000] = me
    assert peak_above(lambda: differ(large)) < 16 * 2**20


@both
def test_checks_of_shapes_on_the_way_in(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["block"].mesh()
    turned = Mesh(mesh.devices[::-1], mesh.axis_names)
    rows, rows_cut = np.arange(8, dtype=np.float32).reshape(4, 2), P("x")

    def told(value: Any, spec: Any = rows_cut, mesh: Mesh = mesh) -> str:
        words = given_of(lambda: hm.to_global({"w": value}, mesh, spec, check="shapes"))
        return words.replace("PartitionSpec", "P")

    both_named = told(rows if me != 1 else rows[:, :1])
    for words in (
        "leaf ['w']: processes 0, 2-3: float32[16, 2] of local shape (4, 2); "
        "process 1: float32[16, 1] of local shape (4, 1); all: by P('x',) on mesh (x=4, y=2) of devices",
    ):
        assert words in both_named
    assert "int32[16, 2]" in told(rows if me != 1 else rows.astype(np.int32))
    assert "P('y'" in told(rows, P("x") if me != 1 else P("y"))
    assert "; process 1: on mesh" in told(rows, mesh=mesh if me != 1 else turned)
    assert "PyTreeDef" in told(rows if me != 1 else None)
    # Values are not looked at, also where the spec replicates them.
    hm.to_global(rows + me, mesh, P(), check="shapes")
    if me == 1:
        with pytest.raises(hm.ShapeError, match="multiple"):
            hm.to_global(rows[:3], mesh, P(("x", "y")), check="shapes")
    else:
        with pytest.raises(hm.ClusterError, match=r"process 1: to_global.*ShapeError"):
            hm.to_global(rows, mesh, P(("x", "y")), check="shapes")
    with pytest.raises(hm.SpecError, match="'shapes' or 'replicas'"):
        hm.to_global(rows, mesh, P(), check="all")
    with pytest.raises(hm.SpecError, match="only values can be compared"):
        jax.grad(lambda x: hm.to_global(x, mesh, P(), check="shapes").sum())(rows)


@both
def test_replicas_that_differ_are_found_in_every_layout(public: bool) -> None:
    """One element changed on one of several holders of a chunk, on 7 kinds of mesh x 8 specs."""
    me, checked = jax.process_index(), 0
    for seed, (kind, mesh_kind, spec, layout) in enumerate(oracle.layouts()):
        if public and seed % 3:
            continue
        rng = random.Random(seed)
        mesh, value = mesh_kind.mesh(), oracle.noise((16, 8, 8), np.float32, seed)
        local = layout.local(value, me)
        tree = {"a": value, "w": local}
        specs = {"a": P(), "w": P(*spec)}
        with jax.transfer_guard("disallow"):
            hm.to_global(tree, mesh, specs, check="replicas")
        shared = [c for p in layout.processes for c in layout.chunks(p)]
        shared = [c for c in sorted(set(shared)) if len(layout.replica_group(c)) > 1]
        if not shared:  # each holds its own: nothing is to be equal
            hm.to_global({"a": value, "w": np.full_like(local, me)}, mesh, specs, check="replicas")
            continue
        chunk = rng.choice(shared)
        group = layout.replica_group(chunk)
        odd = rng.choice(group)
        shard = [size // n for size, n in zip(value.shape, layout.counts, strict=True)]
        place = tuple(c * s + rng.randrange(s) for c, s in zip(chunk, shard, strict=True))
        if me == odd:
            changed = value.copy()
            changed.view(np.uint32)[place] ^= 1
            tree["w"] = layout.local(changed, me)
        told = given_of(lambda t=tree, m=mesh, s=specs: hm.to_global(t, m, s, check="replicas"))
        where = ", ".join(f"{c * s}:{c * s + s}" for c, s in zip(chunk, shard, strict=True))
        assert told.startswith(f"leaf ['w'], chunk [{where}] of float32"), (kind, spec, told)
        judge = min(p for p in group if p != odd) if len(group) > 2 else min(group)
        named = odd if judge != odd else max(group)
        assert f"process {named} differs from process" in told, (kind, spec, told)
        assert f"first at {list(place)}: " in told, (kind, spec, told)
        cutting = {name for cut in layout.cuts for name in cut}
        axes = [repr(n) for n, _ in layout.axes if n not in cutting]
        along = told.partition("replicated along mesh ")[2].partition(":")[0]
        assert set(along.partition(" ")[2].split(", ")) <= set(axes), told
        checked += 1
    assert checked == (6 if public else 19)


@both
def test_the_default_check_is_a_setting(public: bool) -> None:
    me = jax.process_index()
    mesh = meshes.KINDS["block"].mesh()
    differing = np.full((2, 2), me)
    hm.to_global(differing, mesh, P())
    assert hm.config.check is None
    with hm.config.set(check="replicas"):
        told = given_of(lambda: hm.to_global(differing, mesh, P()))
        assert "replicated along mesh axis 'x'" in told
        hm.to_global(differing, mesh, P(), check=None)
        hm.to_global(differing, mesh, P(), check="shapes")
        jax.grad(lambda x: hm.to_global(x, mesh, P()).sum())(np.ones((2, 2)))
        keys = jax.random.split(jax.random.key(me // 3), 2)
        told = given_of(lambda: hm.to_global({"k": keys}, mesh, P()))
        assert told.startswith("leaf ['k'], chunk [0:2, 0:2] of uint32[2,2]")
    assert hm.config.check is None
    # Processes without devices in the mesh take no part.
    few = Mesh(mesh.devices[1:3], ("x", "y"))
    value = differing if me in (1, 2) else jax.ShapeDtypeStruct((2, 2), differing.dtype)
    if me in (1, 2):
        assert "process 2 differs from process 1" in given_of(
            lambda: hm.to_global(value, few, P(), check="replicas")
        )
    else:
        hm.to_global(value, few, P(), check="replicas")


def test_alone_nothing_is_compared_but_what_is_never_equal() -> None:
    mesh = Mesh(jax.devices()[:1], "x")
    hm.assert_equal({"a": np.nan, "b": jax.random.key(0)})
    array = hm.to_global(np.arange(3), mesh, P(), check="replicas")
    assert array.shape == (3,)
    told = given_of(lambda: hm.assert_equal([1.0, np.nan], nan="unequal"))
    assert "leaf [1] of float64[]: process 0 differs from all, having a NaN," in told


def test_the_setting_from_the_environment() -> None:
    with pytest.raises(hm.SpecError, match="None, 'shapes', 'replicas'"):
        hm.config.check = "everything"
    with warnings.catch_warnings(), hm.config.set(check=""):
        assert hm.config.check is None
