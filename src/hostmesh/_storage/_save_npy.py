"""`save_npy`: one global array to a NumPy file, each process its own share of the bytes."""

from __future__ import annotations

import io
import os
from typing import Any, Literal, overload

import numpy as np

from .._coordination import members_of
from .._errors import StorageError, build
from ._leaves import Leaf, digest, leaf_of
from ._plan import SavePlan, plan_of
from ._save import Prepared, Replicas, begun, carry_out, check_replicas, local_path
from ._shares import Tensor, share_out
from ._together import File, Save


@overload
def save_npy(
    path: str | os.PathLike[str],
    array: Any,
    *,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[False] = False,
) -> None: ...


@overload
def save_npy(
    path: str | os.PathLike[str],
    array: Any,
    *,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: Literal[True],
) -> SavePlan: ...


def save_npy(
    path: str | os.PathLike[str],
    array: Any,
    *,
    replicas: Replicas = "first",
    progress: bool | None = None,
    explain: bool = False,
) -> SavePlan | None:
    """Saves a global array as a NumPy file, on all processes together.

    As `save_safetensors`, for one array: each chunk is written once and in place, nothing is
    gathered, and a crash leaves the old file or the new one. The file is, byte for byte, what
    `numpy.save` writes for the whole array. No suffix is added to `path`.

    Communicates: four small agreements, and no values; with `replicas="check"` digests besides.

    Args:
      path, replicas, progress, explain: as for `save_safetensors`.
      array: a global `jax.Array`, or a host value that is equal on all processes.

    Raises:
      StorageError: as `save_safetensors`; also for a dtype that NumPy files do not know, such as
        bfloat16, which `numpy.load` would give as raw bytes.
      DivergenceError, StragglerError, ClusterError: as `save_safetensors`.

    >>> import numpy as np, hostmesh
    >>> hostmesh.save_npy("x.npy", np.ones((3, 4)), explain=True).files
    {'x.npy': 224}
    """
    name = f"save_npy({os.fspath(path)!r})"
    if explain:
        return _prepared(name, path, array, replicas, progress).plan
    carry_out(
        begun(name, lambda: _prepared(name, path, array, replicas, progress), array, replicas)
    )
    return None


def _prepared(
    name: str,
    path: str | os.PathLike[str],
    array: Any,
    replicas: str,
    progress: bool | None,
) -> Prepared:
    target = local_path(path, name)
    check_replicas(replicas, name)
    members = members_of(None, name)
    leaf = leaf_of("", array, members, name)
    head = _head(leaf, name)
    tensor = Tensor(leaf.shape, leaf.dtype.itemsize, 0, len(head), leaf.boxes)
    size = len(head) + int(np.prod(leaf.shape, dtype=object)) * leaf.dtype.itemsize
    what = (
        f"{name} of {leaf.dtype}{list(leaf.shape)}"
        f" (layout {digest(leaf.boxes)}, host values {digest(leaf.mark)})"
    )
    save = Save(what, target, (File(target, head, size),), (tensor,), shows=progress)
    plan = plan_of({target.name: size}, save.tensors, share_out(save.tensors), members)
    return Prepared(save, (leaf.value,), plan)


def _head(leaf: Leaf, name: str) -> bytes:
    """What stands before the values."""
    described = np.lib.format.dtype_to_descr(leaf.dtype)
    if np.dtype(described) != leaf.dtype:
        raise build(
            StorageError,
            where=name,
            given=f"dtype {leaf.dtype}",
            rule="NumPy files know NumPy's own dtypes",
            advice="convert it, save x.view(an unsigned dtype of its size), or use safetensors",
        )
    head = io.BytesIO()
    words = {"descr": described, "fortran_order": False, "shape": leaf.shape}
    np.lib.format.write_array_header_1_0(head, words)
    return head.getvalue()
