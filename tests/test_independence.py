"""Nothing depends on the order of devices, on equal counts, or on other processes."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax._src import distributed  # the service's client has no public name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh as hm
import oracle
from apis import both

SHAPE = (16, 8, 8)


def convert_and_check(mesh: Mesh, spec: Any, layout: oracle.Layout, value: np.ndarray) -> None:
    """In by all ways that there are, every shard checked, and out by all ways."""
    me = jax.process_index()
    sharding = NamedSharding(mesh, P(*spec))
    local: Any = jax.ShapeDtypeStruct(value.shape, value.dtype)
    if me in layout.processes:
        local = layout.local(value, me)
    array = hm.to_global({"leaf": local}, mesh, P(*spec))["leaf"]
    oracle.assert_shards(array, mesh, layout, value)
    dtype = value.dtype
    read = hm.from_callback(value.shape, mesh, P(*spec), value.__getitem__, dtype=dtype)
    oracle.assert_shards(read, mesh, layout, value)
    parts = [shard.data for shard in array.addressable_shards]
    made = hm.from_shards(value.shape, sharding, parts[::-1], dtype=dtype)
    oracle.assert_shards(made, mesh, layout, value)
    covered = bool(layout.covered(value.shape, me).all())
    assert hm.is_locally_complete(array) == covered
    if covered:
        oracle.assert_bits_equal(hm.to_numpy(array), value)
    if me not in layout.processes:
        assert hm.to_local(array).shape == value.shape
    elif layout.is_full_product(me):
        on_devices = hm.to_local(array)
        oracle.assert_bits_equal(on_devices, local)
        oracle.assert_bits_equal(hm.to_local(array, mesh, P(*spec), numpy=True), local)
        again = hm.to_global(on_devices, mesh, P(*spec))
        oracle.assert_shards(again, mesh, layout, value)


def random_layouts(count: int, seed: int) -> Iterator[tuple[Mesh, Any, oracle.Layout]]:
    """Meshes of all or some devices in any order, with a spec that uses some of the axes."""
    rng = random.Random(seed)
    everywhere = sorted(jax.devices(), key=lambda device: device.id)
    for _ in range(count):
        sizes = rng.choice([(8,), (4, 2), (2, 4), (2, 2, 2), (2, 2), (3, 2), (4,), (1, 3)])
        chosen = rng.sample(everywhere, int(np.prod(sizes)))
        grid = np.empty(sizes, object)
        grid.flat[:] = chosen
        names = tuple("xyz"[: len(sizes)])
        cuts: list[list[str]] = [[], [], []]
        for name in rng.sample(names, len(names)):
            if (place := rng.randrange(4)) < 3:
                cuts[place].append(name)
        owners = np.array([device.process_index for device in chosen]).reshape(sizes)
        axes = tuple(zip(names, sizes, strict=True))
        spec = tuple(tuple(cut) or None for cut in cuts)
        yield Mesh(grid, names), spec, oracle.Layout(axes, owners, tuple(map(tuple, cuts)))


@pytest.mark.parametrize("order", ["reversed", "shuffled", "interleaved"])
@pytest.mark.multiprocess
def test_the_order_in_which_jax_lists_devices(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("devices", "local_devices"):
        listed = getattr(jax, name)
        monkeypatch.setattr(jax, name, _reordered(listed, order))
    assert [d.id for d in jax.devices()] != sorted(d.id for d in jax.devices())
    value = oracle.noise(SHAPE, np.float32)
    for _, kind, spec, layout in list(oracle.layouts())[::3]:
        convert_and_check(kind.mesh(), spec, layout, value)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    owners = np.array([device.process_index for device in jax.devices()])
    layout = oracle.Layout((("x", 8),), owners, (("x",), (), ()))
    convert_and_check(mesh, ("x",), layout, value)


def _reordered(listed: Callable[..., Sequence[Any]], order: str) -> Callable[..., list[Any]]:
    def devices(*args: Any, **kwargs: Any) -> list[Any]:
        found = sorted(listed(*args, **kwargs), key=lambda device: device.id)
        if order == "reversed":
            return found[::-1]
        if order == "interleaved":
            return found[1::2] + found[::2]
        random.Random(3).shuffle(found)
        return found if len(found) != 2 else found[::-1]

    return devices


@both
def test_meshes_of_any_devices_in_any_order(public: bool) -> None:
    value = oracle.noise((24, 24, 24), np.int16)
    for mesh, spec, layout in random_layouts(40, seed=1):
        convert_and_check(mesh, spec, layout, value)


@pytest.mark.multiprocess(devices=[1, 3, 2, 2])
def test_processes_with_unequal_numbers_of_devices() -> None:
    assert jax.local_device_count() == [1, 3, 2, 2][jax.process_index()]
    value = oracle.noise((24, 24, 24), np.float32)
    for mesh, spec, layout in random_layouts(60, seed=2):
        convert_and_check(mesh, spec, layout, value)


@both
def test_under_a_transfer_guard(public: bool) -> None:
    """All that hostmesh moves between host and devices it moves by name."""
    value = oracle.noise((256, 64, 64), np.float32)
    keys = oracle.keys(16)
    with jax.transfer_guard("disallow"):
        for _, kind, spec, layout in list(oracle.layouts())[public::7]:
            mesh = kind.mesh()
            convert_and_check(mesh, spec, layout, value[:, :8, :8].copy())
            convert_and_check(mesh, spec, layout, value)
            hm.to_global([[1.5, 2], [1, 2]], mesh, P())
            # A whole array on a device, of which chunks are cut there.
            whole = jax.device_put(value[:16, :8, :8])
            array = hm.to_global(whole, mesh, P(*spec), global_shape=whole.shape)
            oracle.assert_shards(array, mesh, layout, value[:16, :8, :8])
            hm.to_global(keys, mesh, P())


@both
def test_conversion_sends_no_message(public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the coordination service and no compiled program, from the first call on."""
    sent: Counter[str] = Counter()
    monkeypatch.setattr(distributed.global_state, "client", _Counted(sent))
    value = oracle.noise((48, 24, 24), np.float32)  # a shape that no other test has
    with _compilations() as compiled:
        for _, kind, spec, layout in oracle.layouts():
            mesh, me = kind.mesh(), jax.process_index()
            local = layout.local(value, me)
            array = hm.to_global(local, mesh, P(*spec))
            hm.from_callback(value.shape, mesh, P(*spec), value.__getitem__)
            hm.from_shards(value.shape, array.sharding, [s.data for s in array.addressable_shards])
            if hm.is_locally_complete(array):
                hm.to_numpy(array)
            if layout.is_full_product(me):
                back = hm.to_local(array)
                hm.to_local(array, mesh, P(*spec), numpy=True)
                hm.to_global(back, mesh, P(*spec))
        assert not sent
        assert not compiled
        # Both counts see what there is to see.
        distributed.global_state.client.key_value_set(f"here {jax.process_index()}", "1")
        assert sent == {"key_value_set": 1}
        jax.block_until_ready(jax.jit(lambda x: x + public)(back))
        assert compiled


class _Counted:
    """The coordination service's client, every use of it counted."""

    def __init__(self, sent: Counter[str]) -> None:
        self._sent, self._client = sent, distributed.global_state.client

    def __getattr__(self, name: str) -> Any:
        self._sent[name] += 1
        return getattr(self._client, name)


@contextlib.contextmanager
def _compilations() -> Iterator[list[str]]:
    """The names of programs that JAX compiles, as they come."""
    seen: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if "compile" in event:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
