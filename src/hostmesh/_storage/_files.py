"""Which tensors go into which safetensors file, and what the files are called. Pure.

The rules are those of Hugging Face's writers (huggingface_hub, `split_state_dict_into_shards`):
`model-00001-of-00003.safetensors` and so on, and `model.safetensors.index.json`, which names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_SUFFIX = ".safetensors"


def split(sizes: Mapping[str, int], most: int | None) -> list[list[str]]:
    """Names in groups of at most `most` bytes; a tensor of more has a group of its own.

    >>> split({"a": 3, "b": 9, "c": 2, "d": 4}, most=5)
    [['b'], ['a', 'c'], ['d']]
    """
    if most is None:
        return [list(sizes)]
    groups: list[list[str]] = []
    current: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if size > most:
            groups.append([name])
            continue
        if filled + size > most:
            groups.append(current)
            current, filled = [], 0
        current.append(name)
        filled += size
    if current or not groups:
        groups.append(current)
    return groups


def shard_names(path: Path, count: int, taken: Collection[str]) -> list[str]:
    """The names of `count` files in place of `path`.

    Where files of these names are there, which an index may speak of, others are chosen: those
    stay whole until a new index takes the place of the old one.

    >>> shard_names(Path("model.safetensors"), 2, taken=["model-00001-of-00002.safetensors"])
    ['model.g2-00001-of-00002.safetensors', 'model.g2-00002-of-00002.safetensors']
    """
    generation = 1
    while True:
        stem = _stem(path) + (f".g{generation}" if generation > 1 else "")
        names = [f"{stem}-{i:05d}-of-{count:05d}{_SUFFIX}" for i in range(1, count + 1)]
        if not set(names) & set(taken):
            return names
        generation += 1


def index_path(path: Path) -> Path:
    """Where the index of several files lies."""
    return path.with_name(f"{path.name}.index.json")


def index(groups: Sequence[Sequence[str]], names: Sequence[str], nbytes: int) -> bytes:
    """The index of several files."""
    weights = {tensor: name for group, name in zip(groups, names, strict=True) for tensor in group}
    contents = {"metadata": {"total_size": nbytes}, "weight_map": weights}
    return (json.dumps(contents, indent=2, sort_keys=True) + "\n").encode()


def named_by(contents: bytes, path: Path) -> set[str]:
    """The files in place of `path` that an index names, as far as they are named by our rule."""
    try:
        found = json.loads(contents)
    except (ValueError, RecursionError):
        return set()
    weights = cast("dict[str, Any]", found).get("weight_map") if isinstance(found, dict) else None
    if not isinstance(weights, dict):
        return set()
    pattern = re.compile(re.escape(_stem(path)) + r"(\.g\d+)?-\d{5,}-of-\d{5,}\.safetensors")
    names = {str(name) for name in cast("dict[str, object]", weights).values()}
    return {name for name in names if pattern.fullmatch(name)}


def _stem(path: Path) -> str:
    return path.name.removesuffix(_SUFFIX)
