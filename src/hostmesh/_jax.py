"""Every use of a private JAX name, each with a fallback on public API that gives the same values.

`HOSTMESH_PUBLIC_API=1` forces the fallbacks; so does a JAX in which a private name is gone.
Checked on JAX 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import Mesh, Sharding

PUBLIC_API = os.environ.get("HOSTMESH_PUBLIC_API", "") not in ("", "0")

# A part as a device takes it: a NumPy array, or an array on one device.
Part: TypeAlias = Any
# A `jax.Device`, which JAX's annotations give as a variable and not as a type.
Device: TypeAlias = Any

_put: Any = None
_during_call: Any = None
_array_impl: Any = None
_result_handler: Any = None
_thread_resources: Any = None
_put_scope: Any = None
_primitive: Any = None
if not PUBLIC_API:
    try:
        from jax._src import config as _config
        from jax._src import mesh as _mesh
        from jax._src.array import ArrayImpl as _ArrayImpl
        from jax._src.core import Primitive as _Primitive
        from jax._src.lib import xla_client as _xc  # pyright: ignore[reportPrivateImportUsage]

        _during_call = _xc.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
        _put, _array_impl = _xc.batched_device_put, _ArrayImpl
        _result_handler = _xc.array_result_handler
        _put_scope = _config.explicit_device_put_scope
        _thread_resources = _mesh.thread_resources
        _primitive = _Primitive
    except (ImportError, AttributeError):
        _put = _result_handler = None


# The usual type of arrays; of no array where it is not known.
array_type: Any = _array_impl


def put(
    aval: ShapedArray,
    sharding: Sharding,
    parts: Sequence[Part],
    devices: Sequence[Device],
    give_up: bool,
) -> jax.Array:
    """The global array whose shard on `devices[k]` is `parts[k]`, in one call.

    With `give_up` the caller no longer writes to the parts, and a device may take their memory as
    its own; without, the parts are the caller's again when the call returns. To be called within
    `explicit_transfers()`.
    """
    if _put is None or not devices:
        kept = parts if give_up else [np.array(part) for part in parts]
        # One device at a time: no order of devices is taken for granted.
        arrays = [jax.device_put(part, d) for part, d in zip(kept, devices, strict=True)]
        return assemble(aval, sharding, arrays)
    if give_up:
        return _put(aval, sharding, parts, devices)
    return _put(aval, sharding, parts, devices, True, False, _during_call)


def putter(
    aval: ShapedArray,
    sharding: Sharding,
    cut: Callable[[Any], Sequence[Part]],
    devices: Sequence[Device],
    give_up: bool,
) -> Callable[[Any], jax.Array]:
    """`lambda leaf: put(aval, sharding, cut(leaf), devices, give_up)`, with less on the way."""
    if _put is None or not devices or give_up:
        return lambda leaf: put(aval, sharding, cut(leaf), devices, give_up)
    low_level_put, during_call = _put, _during_call
    return lambda leaf: low_level_put(aval, sharding, cut(leaf), devices, True, False, during_call)


def explicit_transfers() -> contextlib.AbstractContextManager[None]:
    """Within it, `put` counts as asked for by name, as `jax.device_put` is, by transfer guards."""
    return contextlib.nullcontext() if _put_scope is None else _put_scope()


def assemble(aval: ShapedArray, sharding: Sharding, arrays: Sequence[jax.Array]) -> jax.Array:
    """The global array made of arrays on this process's devices, each of the shard's shape."""
    return jax.make_array_from_single_device_arrays(
        aval.shape, sharding, list(arrays), dtype=aval.dtype
    )


def assembler(aval: ShapedArray, sharding: Sharding) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """`assemble` without its checks, for at least one array, in the order of the sharding's devices."""
    if _result_handler is None:
        return functools.partial(assemble, aval, sharding)
    try:
        return _result_handler(aval, sharding, committed=True, _skip_checks=True)
    except TypeError:  # a later JAX, in which it never checks
        return _result_handler(aval, sharding, committed=True)


def parts_in_order(array: jax.Array, devices: Sequence[Device]) -> Sequence[jax.Array]:
    """The array's shards on this process, each as an array on one device: those of `devices`.

    They must be all its devices on this process in the order of its sharding, as JAX keeps them.
    """
    if _array_impl is None:
        on = parts_by_device(array)
        return [on[device] for device in devices]
    array._check_if_deleted()  # pyright: ignore[reportAttributeAccessIssue]
    return array._arrays  # pyright: ignore


def parts_by_device(array: jax.Array) -> dict[Device, jax.Array]:
    """The array's shards on this process, each as an array on one device."""
    if _array_impl is None:
        return {shard.device: shard.data for shard in array.addressable_shards}
    array._check_if_deleted()  # pyright: ignore[reportAttributeAccessIssue]
    return {part._sharding._internal_device_list[0]: part for part in array._arrays}  # pyright: ignore


def fetch(part: jax.Array) -> np.ndarray[Any, Any]:
    """The values of an array on one device; on CPU a view. No copy stays behind on the host."""
    if _array_impl is None:
        return np.asarray(jax.device_get(part))
    with jax.transfer_guard_device_to_host("allow"):  # asked for by name, as jax.device_get is
        return part._single_device_array_to_np_array_did_copy()[0]  # pyright: ignore


def primitive(name: str) -> Any:
    """A new primitive. The public way to its class also loads all of Pallas."""
    if _primitive is None:
        from jax.extend.core import Primitive

        return Primitive(name)
    return _primitive(name)


def mesh_in_context() -> Mesh | None:
    """The mesh of `jax.set_mesh`, or of the innermost `with mesh:` block."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty and _thread_resources is not None:
        mesh = _thread_resources.env.physical_mesh
    elif mesh.empty:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # no other public way yet
            from jax.interpreters import pxla

            mesh = pxla.thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


_runtime: Any = None
_cluster_env: Any = None
_backends_started: Any = None
if not PUBLIC_API:
    try:
        from jax._src import xla_bridge as _xla_bridge
        from jax._src.clusters import ClusterEnv as _ClusterEnv
        from jax._src.distributed import global_state as _global_state

        _runtime, _cluster_env = _global_state, _ClusterEnv
        _backends_started = _xla_bridge.backends_are_initialized
    except (ImportError, AttributeError):
        _runtime = None


def coordination_client() -> Any:
    """The client of JAX's coordination service, or `None` where there is none or none to be had."""
    return None if _runtime is None else _runtime.client


def preemption_sync_manager() -> Any:
    """JAX's preemption sync manager, or `None` where there is none or none to be had."""
    return None if _runtime is None else _runtime.preemption_sync_manager


def reached_preemption_sync_point(number: int) -> bool:
    """JAX's function of that name; `False` where its preemption service is off or not to be had."""
    manager = preemption_sync_manager()
    return manager is not None and bool(manager.reached_sync_point(number))


def place() -> tuple[int, int, str | None]:
    """This process, the number of processes, and the coordinator's address where it is known."""
    if _runtime is None:
        return jax.process_index(), jax.process_count(), None
    return _runtime.process_id, _runtime.num_processes, _runtime.coordinator_address


def detected_cluster() -> str | None:
    """The name of the detector by which `jax.distributed.initialize` would find its cluster."""
    if _cluster_env is None:
        marks = {"ompi": "OMPI_MCA_orte_hnp_uri", "slurm": "SLURM_STEP_NODELIST"}
        return next((name for name, variable in marks.items() if variable in os.environ), None)
    kinds = (kind for kind in _cluster_env._cluster_types if not kind.opt_in_only_method)
    kind = next((kind for kind in kinds if kind.is_env_present()), None)
    return None if kind is None else kind.name or kind.__name__


def detected_place() -> tuple[int, int, str] | None:
    """This process, their number and the coordinator's address, where the environment tells them.

    Under SLURM and Open MPI. Other detectors ask a network, and may wait for it.
    """
    if _cluster_env is None:
        return None
    for kind in _cluster_env._cluster_types:
        if not kind.opt_in_only_method and kind.is_env_present():
            if kind.name not in ("slurm", "ompi"):
                return None
            address = kind.get_coordinator_address(timeout_secs=1, override_coordinator_port=None)
            return kind.get_process_id(), kind.get_process_count(), address
    return None


def backends_started() -> bool:
    """Whether a backend is up. Without private names `False`: JAX then says so itself, if late."""
    return _backends_started is not None and _backends_started()


def abandon_runtime() -> None:
    """Keeps JAX from its own shutdown at exit, which waits for all processes to do the same.

    The objects outlive the interpreter, as their destructors wait, too: those of the backend for
    programs that run, of which a collective may never end. Without private names it does nothing,
    and JAX's time-out for the shutdown is the bound.
    """
    if _runtime is not None:
        backends = [device.client for device in jax.local_devices()] if backends_started() else []
        kept = (_runtime.client, _runtime.service, _runtime.preemption_sync_manager, backends)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        _runtime.client = _runtime.service = _runtime.preemption_sync_manager = None


def thread_guard_refusal(compiled: Any) -> str:
    """Why `jax.thread_guard` keeps this thread from running a program of several processes, or "".

    It runs nothing: JAX looks at the guard first, and then finds that the argument has no parts.
    """
    if _array_impl is None:
        return ""
    try:
        compiled.runtime_executable().execute_sharded([_deleted()])
    except jax.errors.JaxRuntimeError as error:
        return str(error) if "thread guard" in str(error) else ""
    return ""


@functools.cache
def _deleted() -> jax.Array:
    array = jax.device_put(np.uint32(0))
    array.delete()
    return array


def is_jax(file: str) -> bool:
    """Whether a source file is one of JAX's own."""
    return file.startswith(_FOLDER)


def is_compiler(file: str) -> bool:
    """Whether a frame of a source file means that its thread compiles. By the file's name alone:
    where a later JAX has another one, compiling looks like any other call of JAX."""
    return file.endswith(_COMPILER)


def heartbeat_timeout() -> float:
    """Seconds after which JAX ends all processes where one is silent: its default."""
    known = inspect.signature(jax.distributed.initialize).parameters
    found = known.get("heartbeat_timeout_seconds")
    return 100.0 if found is None else float(found.default)


_FOLDER = os.path.join(os.path.dirname(jax.__file__), "")
_COMPILER = (
    os.path.join("jax", "_src", "compiler.py"),
    os.path.join("jax", "_src", "interpreters", "mlir.py"),  # lowers
)

# The logger on which JAX announces each backend before it starts it.
BACKEND_LOGGER = "jax._src.xla_bridge"


_compiler: Any = None
if not PUBLIC_API:
    try:
        from jax._src import compiler as _compiler

        _ = _compiler.compile_or_get_cached
    except (ImportError, AttributeError):
        _compiler = None


@contextlib.contextmanager
def compiles_told(tell: Callable[[str, str, tuple[int, ...]], None]) -> Generator[None]:
    """Within it, `tell` is called with the name and StableHLO of each program before it is compiled
    (or taken from the compilation cache), and the processes of its devices.

    Without private names it is never called.
    """
    if _compiler is None:
        yield
        return
    compile_program = _compiler.compile_or_get_cached

    def told(backend: Any, computation: Any, devices: Any, *args: Any, **options: Any) -> Any:
        processes = {device.process_index for device in np.asarray(devices, object).flat}
        name = str(computation.operation.attributes["sym_name"]).strip('"')
        tell(name, str(computation), tuple(sorted(processes)))
        return compile_program(backend, computation, devices, *args, **options)

    _compiler.compile_or_get_cached = told
    try:
        yield
    finally:
        _compiler.compile_or_get_cached = compile_program


class Store:
    """The key-value store of JAX's coordination service; every call is one round trip."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def set_once(self, key: str, value: bytes) -> bool:
        """Sets a key that has no value yet; `False` where it had one, which stays."""
        try:
            self._client.key_value_set_bytes(key, value)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def set(self, key: str, value: bytes) -> None:
        """Sets a key, in place of the value that it may have."""
        self._client.key_value_set_bytes(key, value, allow_overwrite=True)

    def get(self, key: str, seconds: float) -> bytes | None:
        """Waits for the value of a key; `None` when the time is up."""
        try:
            milliseconds = max(1, int(seconds * 1000))
            return self._client.blocking_key_value_get_bytes(key, milliseconds)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise

    def peek(self, key: str) -> bytes | None:
        """The value of a key where it has one."""
        try:
            return self._client.key_value_try_get_bytes(key)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def list(self, folder: str) -> dict[str, bytes]:
        """All that lies under a folder (a prefix that ends with a slash), by its name there."""
        found = self._client.key_value_dir_get_bytes(folder)
        return {key.removeprefix(folder): value for key, value in found}

    def meet(self, name: str, seconds: float, processes: Sequence[int]) -> bool:
        """Waits at a barrier; `False`, for all, where some do not come in time.

        The name may come again after a barrier that all passed. In JAX the wait is cut off up to
        a second late.
        """
        try:
            self._client.wait_at_barrier(name, int(seconds * 1000), list(processes))
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def delete(self, folder: str) -> None:
        """Deletes a folder with all that lies under it."""
        self._client.key_value_delete(folder)


def store() -> Store | None:
    """The store, or `None` where there is no coordination service or no way to it."""
    client = coordination_client()
    return None if client is None else Store(client)
