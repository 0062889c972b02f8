"""What a save is going to do, for people and for tests: who writes how much of which files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._boxes import elements
from ._runs import runs
from ._shares import Piece, Tensor


@dataclass(frozen=True)
class SavePlan:
    """What a save writes. Made by `explain=True`; no file is touched, nothing communicated.

    Attributes:
      files: the size of each file by its name, in bytes.
      written: the bytes of tensors that each process writes, by its number.
      calls: in about how many system calls. Many small ones are slow.
      pieces: the parts of tensors that each process writes.
    """

    files: Mapping[str, int]
    written: Mapping[int, int]
    calls: Mapping[int, int]
    pieces: Mapping[int, Sequence[Piece]] = field(repr=False)

    @property
    def imbalance(self) -> float:
        """The bytes of the process that writes most, to the mean."""
        mean = sum(self.written.values()) / max(1, len(self.written))
        return max(self.written.values(), default=0) / mean if mean else 1.0

    def __str__(self) -> str:
        lines = [f"{name}: {size:,} bytes" for name, size in self.files.items()]
        lines += [
            f"process {process} writes {size:,} bytes in {self.calls[process]:,} runs"
            for process, size in self.written.items()
        ]
        return "\n".join(lines)


def plan_of(
    files: Mapping[str, int],
    tensors: Sequence[Tensor],
    pieces: Mapping[int, Sequence[Piece]],
    members: Sequence[int],
) -> SavePlan:
    """The plan of shares."""
    own = {process: pieces.get(process, ()) for process in members}
    written = {
        process: sum(elements(p.place) * tensors[p.tensor].itemsize for p in share)
        for process, share in own.items()
    }
    calls = {
        process: sum(len(runs(tensors[p.tensor], p)[1]) for p in share)
        for process, share in own.items()
    }
    return SavePlan(dict(files), written, calls, own)
