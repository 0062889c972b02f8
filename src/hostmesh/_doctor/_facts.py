"""What a process knows of itself, as the others get to know it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jaxlib
import numpy as np

from .._initialize import Cluster
from .._version import __version__
from . import _host, _secrets

# Packages that JAX runs with, where they are installed.
_PACKAGES = ("ml_dtypes", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin")
# Settings of JAX that change what is computed, or who can talk with whom.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_cpu_collectives_implementation",
    "jax_compilation_cache_dir",
)


@dataclass(frozen=True)
class Facts:
    """What one process is and has. `gpu_numbers` are those of the machine, where they are known."""

    process: int
    processes: int
    detector: str
    reason: str
    coordinator: str
    versions: dict[str, str]
    settings: dict[str, str]
    environment: dict[str, str]
    host: _host.Host
    cache: _host.Disk | None
    platform: str
    kinds: list[str]
    local_devices: int
    memory_each: int
    gpu_numbers: list[str] = field(default_factory=list[str])
    owners: list[int] = field(default_factory=list[int])  # of all devices in JAX's order, from 0

    def plain(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers, for JSON."""
        return asdict(self)


def from_plain(told: Mapping[str, Any]) -> Facts:
    """The inverse of `Facts.plain`. Fields that another version of hostmesh has are left out."""
    known = {name: told[name] for name in Facts.__dataclass_fields__ if name in told}
    host = dict(known["host"])
    host["shared_memory"] = _disk(host["shared_memory"])
    names = _host.Host.__dataclass_fields__
    known["host"] = _host.Host(**{name: host[name] for name in names})
    known["cache"] = _disk(known["cache"])
    return Facts(**known)


def _disk(told: Mapping[str, Any] | None) -> _host.Disk | None:
    return _host.Disk(**told) if told else None


def gather(cluster: Cluster, salt: bytes) -> Facts:
    """This process's facts. Starts a JAX backend where none is up."""
    devices = jax.local_devices()
    settings = {name: str(getattr(jax.config, name, None)) for name in _SETTINGS}
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    owners = [device.process_index for device in jax.devices()]
    return Facts(
        process=cluster.process,
        processes=cluster.processes,
        detector=cluster.detector,
        reason=cluster.reason,
        coordinator=cluster.coordinator or "",
        versions=_versions(),
        settings=settings,
        environment=_secrets.told(os.environ, salt),
        host=_host.host(),
        cache=_host.disk(folder) if folder and "://" not in folder else None,
        platform=jax.default_backend(),
        kinds=sorted({device.device_kind for device in devices}),
        local_devices=len(devices),
        memory_each=min(map(_memory, devices), default=0),
        gpu_numbers=_gpu_numbers(devices),
        owners=owners if cluster.process == 0 else [],
    )


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,  # pyright: ignore[reportPrivateImportUsage]
        "numpy": np.__version__,
        "hostmesh": __version__,
    }
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    if sys.byteorder != "little":
        found["byte order"] = sys.byteorder
    return found


def _memory(device: Any) -> int:
    """The bytes that JAX may use of a device; 0 where it does not tell, as on CPU."""
    with suppress(Exception):  # what a backend raises that has no such figures is its own affair
        return int((device.memory_stats() or {}).get("bytes_limit", 0))
    return 0


def _gpu_numbers(devices: list[Any]) -> list[str]:
    """What the machine calls the GPUs that this process uses; none for other devices."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else None
    numbers: list[str] = []
    for device in devices:
        at = getattr(device, "local_hardware_id", None)
        if device.platform not in ("gpu", "cuda") or at is None:
            continue
        numbers.append(names[at] if names and at < len(names) else str(at))
    return numbers
