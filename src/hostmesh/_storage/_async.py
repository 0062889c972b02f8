"""`async_save`: a save in the background, of copies."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .. import _jax
from .._coordination import members_of, telling
from .._trees import Tree
from ._pending import SaveHandle, begin
from ._save import Replicas, begun, prepare
from ._together import run
from ._writing import copied


def async_save(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    max_file_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: Replicas = "first",
    progress: bool | None = None,
) -> SaveHandle:
    """Saves as `save_safetensors` does, in the background: the caller goes on at once.

    What this process writes is copied to host memory, into buffers that are kept for the next
    save: one copy of its share, about a P-th of all bytes. Then the arrays may be donated or
    deleted. A thread writes the copies and agrees with those of the other processes. One save is in
    the background at a time: the next one, of any kind, waits for it. So does the end of the
    program.

    Communicates in the background, over the coordination service alone. Without one (on JAX's
    public names only) it saves before it returns.

    Args:
      path, tree, max_file_bytes, metadata, replicas, progress: as for `save_safetensors`.

    Returns:
      A handle. Its `wait()` returns when the file has its name, and raises what failed.

    Raises:
      StorageError, DivergenceError, StragglerError, ClusterError: as `save_safetensors`, from
        `wait()` or from the next save, whichever comes first. What fails before anything is
        written, and what the save before failed with, is raised here.

    >>> import os, tempfile, numpy as np, hostmesh
    >>> folder = hostmesh.same_choice(tempfile.mkdtemp())
    >>> handle = hostmesh.async_save(os.path.join(folder, "model.safetensors"), {"w": np.ones(3)})
    >>> handle.wait()
    >>> os.listdir(folder)
    ['model.safetensors']
    """
    name = f"async_save({os.fspath(path)!r})"
    prepared = begun(
        name,
        lambda: prepare(name, path, tree, max_file_bytes, metadata, replicas, progress),
        tree,
        replicas,
    )
    save = prepared.save
    with telling(name):
        made = copied(save.tensors, prepared.mine, prepared.values)
    del prepared
    # On public names alone a round of agreement is a collective, and these are the main thread's.
    here = _jax.store() is None and len(members_of(None, name)) > 1
    return begin(name, lambda: run(save, made), here)
