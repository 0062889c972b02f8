"""Rules for a whole model: a TOML file of name patterns and specs, and which tensor each one takes."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ._errors import HostmeshError, ShapeError, SpecError, build
from ._plan import Plan, Shape, plan
from ._storage._resolve import add_safetensors, open_all
from ._storage._source import Stored
from ._storage._wanted import match
from ._topology import Topology
from ._values import device_dtype, x64_enabled

# A pattern and its spec, as typed.
Rules: TypeAlias = Mapping[str, str]
Specs: TypeAlias = Callable[[str], tuple[str | tuple[str, ...] | None, ...]]
EVERY: Rules = {"*": ""}


@dataclass(frozen=True)
class Tensor:
    """A stored tensor, the rule that it goes by, and its plan, or why there is none."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    rule: str | None
    plan: Plan | None
    wrong: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def native(self) -> np.dtype[Any]:
        """The dtype that it has on devices, by JAX's rule for 64-bit values."""
        return device_dtype(self.dtype, x64_enabled())

    @property
    def device_nbytes(self) -> int:
        """Bytes on each device; none where there is no plan."""
        return 0 if self.plan is None else self.plan.device_nbytes(self.native)


def read_rules(path: str | None) -> Rules:
    """The rules of a file, in its order; without a file every tensor is held whole."""
    if path is None:
        return EVERY
    advice = 'write a line such as "*.weight" = "model,None" for each pattern, with quotes'
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise build(
            SpecError,
            where="--rules",
            given=f"{path!r}: {error}",
            rule="it is a TOML file of patterns and specs",
            advice=advice,
        ) from None
    for pattern, spec in found.items():
        if not isinstance(spec, str):
            raise build(
                SpecError,
                where="--rules",
                given=f"{path!r}: {pattern!r} is {str(spec)[:80]}",
                rule="each pattern has a spec, as a string",
                advice=advice,
            )
    return found


def stored_in(path: str) -> list[Stored]:
    """The tensors of safetensors files, from their headers alone."""
    opened = open_all(path, add_safetensors)
    opened.close()
    return opened.stored


def planned(
    stored: Sequence[Stored], topology: Topology, rules: Rules, specs: Specs
) -> list[Tensor]:
    """The tensors with their plans. What has no rule, or does not divide, says so."""
    parsed = {pattern: specs(spec) for pattern, spec in rules.items()}
    by_spec = {pattern: (pattern, spec) for pattern, spec in parsed.items()}
    found: list[Tensor] = []
    for each in stored:
        rule, made, wrong = None, None, "matches no rule"
        if (hit := match(each.name, by_spec)) is not None:
            rule, spec = hit
            try:
                made, wrong = plan(topology, spec, global_shape=each.shape), ""
            except (ShapeError, SpecError) as error:
                wrong = _in_line(error)
        found.append(Tensor(each.name, each.shape, each.dtype, rule, made, wrong))
    return found


def unused(rules: Rules, tensors: Sequence[Tensor]) -> list[str]:
    """The rules that no tensor goes by."""
    used = {tensor.rule for tensor in tensors}
    return [pattern for pattern in rules if pattern not in used and rules is not EVERY]


def _in_line(error: HostmeshError) -> str:
    words = [line.strip() for line in str(error).splitlines()]
    return next(line.partition(":")[2].strip() for line in words if line.startswith("rule:"))
