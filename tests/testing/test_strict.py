"""`--hostmesh-strict`, on suites of its own, and against what JAX does on two processes."""

import pytest

from hostmesh.testing import run

READS = """
import copy, pickle
import jax, numpy as np

def arrays():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def make(spec):
        sharding = jax.NamedSharding(mesh, spec)
        return jax.jit(lambda: jax.numpy.arange(2.0), out_shardings=sharding)()

    return make(jax.P("x")), make(jax.P())

READS = dict(
    asarray=lambda a: np.asarray(a),
    tolist=lambda a: a.tolist(),
    tobytes=lambda a: a.tobytes(),
    iterate=lambda a: list(a),
    unpack=lambda a: [*a],
    pickle=lambda a: pickle.dumps(a),
    device_get=lambda a: jax.device_get(a),
    compare=lambda a: np.testing.assert_allclose(a, [0, 1]),
    mask=lambda a: a[a > 0],
    repr=lambda a: repr(a),
    in_list=lambda a: repr([a]),
    copy=lambda a: copy.deepcopy(a),
    total=lambda a: float(a.sum()),
    all=lambda a: bool((a == a).all()),
    on_device=lambda a: a + np.ones(2),
    shards=lambda a: [np.asarray(shard.data) for shard in a.addressable_shards],
)
"""


def outcomes():
    """Which reads of an array raise, on this cluster."""
    names = {}
    exec(READS, names)
    array, _ = names["arrays"]()
    found = {}
    for name, read in names["READS"].items():
        try:
            read(array)
        except Exception as error:
            found[name] = type(error)
    return sorted(found)


@pytest.fixture
def suite(pytester, monkeypatch):
    """Writes a suite of tests and runs pytest on it in a process with `devices` devices."""

    def run_suite(source, *args, devices=4):
        monkeypatch.setenv("JAX_NUM_CPU_DEVICES", str(devices))
        monkeypatch.setenv("JAX_PLATFORMS", "cpu")
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*args, timeout=100)

    return run_suite


def test_what_fails_on_two_processes_fails_on_one(suite):
    fails = run(outcomes, 2, 1)[0]
    assert "asarray" in fails
    assert "total" not in fails
    source = f"""{READS}
import pytest
from hostmesh import HostmeshError

@pytest.mark.parametrize("name", READS)
def test_read(name):
    array, replicated = arrays()
    READS[name](replicated)
    if name in {fails}:
        with pytest.raises(RuntimeError, match="of several hosts is not possible") as info:
            READS[name](array)
        assert isinstance(info.value, HostmeshError)
        assert ("lambda a: np.asarray(a)" in str(info.value)) == (name == "asarray")
    else:
        READS[name](array)

def test_print():
    array, replicated = arrays()
    print(replicated)
    with pytest.raises(RuntimeError):
        print(array)
    with pytest.raises(RuntimeError):
        f"{{array}}"
    assert repr(array) == "Array(shape=(2,), dtype=float32)"
"""
    suite(source, "--hostmesh-strict", "-Werror", devices=2).assert_outcomes(passed=17)


SUITE = """
    import jax, numpy as np, pytest
    import hostmesh

    def make(spec):
        mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, spec))

    def test_line():
        total = make(jax.P("x"))
        assert np.asarray(total).sum() == 28

    def test_explicit():
        assert hostmesh.to_numpy(make(jax.P("x"))).sum() == 28

    def test_one_device():
        assert np.asarray(jax.device_put(np.ones(3), jax.devices()[3])).sum() == 3

    def test_two_devices():
        mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
        assert jax.device_put(np.ones(2), jax.NamedSharding(mesh, jax.P("x"))).tolist() == [1, 1]
"""


def test_the_line_is_told(suite):
    result = suite(SUITE, "--hostmesh-strict")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "E * test_it.py:10: assert np.asarray(total).sum() == 28",
            "E * given: a jax.Array of shape (8,), float32, with NamedSharding(*",
            "E * do: *hostmesh.to_local*",
        ]
    )


def test_hosts_have_blocks_of_devices(suite):
    suite(SUITE, "--hostmesh-hosts=2").assert_outcomes(passed=3, failed=1)


def test_without_the_option_nothing_fails(suite):
    suite(SUITE).assert_outcomes(passed=4)


def test_one_device_is_told_to_check_nothing(suite):
    result = suite("def test_it(): pass", "--hostmesh-strict", devices=1)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["hostmesh: --hostmesh-strict has checked nothing*"])
