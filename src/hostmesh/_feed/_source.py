"""What is read: any iterable of pytrees, its state where it has one, and its leaves.

No package of data loaders is imported here: what an object can do is told by its methods.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .. import _values
from .._errors import FeedError, build

# Methods that give and take a source's state: Grain's, torchdata's, hostmesh's own.
_STATES = (("get_state", "set_state"), ("state_dict", "load_state_dict"), ("state", "restore"))


class Reader:
    """One pass over a source."""

    def __init__(self, source: Iterable[Any], rows: int | None) -> None:
        self._iterated = source
        if _is_dataset(source):
            source = _batches_of(source, rows)
        self.iterator: Iterator[Any] = iter(source)
        self._owned = self.iterator is not source
        self._stateful = next(
            (
                (holder, pair)
                for holder in (self.iterator, self._iterated)
                for pair in _STATES
                if all(callable(getattr(holder, name, None)) for name in pair)
            ),
            None,
        )

    def state(self) -> Any:
        """The source's own state after what was read, or `None` where it has none."""
        if self._stateful is None:
            return None
        holder, (get, _) = self._stateful
        return getattr(holder, get)()

    def restore(self, state: Any) -> bool:
        """Has the source go on from its own state; `False` where it takes none."""
        if self._stateful is None or state is None:
            return False
        holder, (_, put) = self._stateful
        getattr(holder, put)(state)
        if holder is not self.iterator:  # a loader: its next pass begins there
            self.iterator = iter(self._iterated)
        return True

    def close(self) -> None:
        """Ends a generator that was made here, so that its `finally` blocks run."""
        close = getattr(self.iterator, "close", None)
        if self._owned and callable(close):
            close()


def _is_dataset(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "iter")


def _batches_of(source: Any, rows: int | None) -> Iterable[Any]:
    """Batches of a Hugging Face data set, whose own iterator gives single examples."""
    if rows is None:
        raise build(
            FeedError,
            where="Feeder",
            given=f"a {type(source).__name__}, which gives single examples",
            rule="a source gives batches",
            advice="pass global_batch=, or dataset.with_format('numpy').iter(batch_size)",
        )
    return source.with_format("numpy").iter(rows)


def host_array(leaf: Any, where: str) -> np.ndarray[Any, Any]:
    """A leaf as a NumPy array, without a copy where it lies in memory: also a PyTorch tensor."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        tensor: Any = leaf.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # NumPy has none of its own
            import ml_dtypes

            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()
    if isinstance(leaf, list) and leaf and isinstance(leaf[0], np.ndarray | np.generic):
        leaf = np.stack(leaf)
    return _values.as_host_array(leaf, where)
