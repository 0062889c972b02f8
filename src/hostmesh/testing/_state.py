"""What a task may leave behind in its process, and putting it back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import jax

_settings: Any = jax.config  # untyped


@dataclass(frozen=True)
class State:
    """JAX's settings, the environment and the working directory at one moment."""

    config: dict[str, Any]
    environment: dict[str, str]
    directory: str

    @classmethod
    def now(cls) -> State:
        return cls(dict(_settings.values), dict(os.environ), os.getcwd())

    def restore(self) -> bool:
        """Puts everything back; `False` where that could not be done."""
        try:
            os.chdir(self.directory)
            if dict(os.environ) != self.environment:
                os.environ.clear()
                os.environ.update(self.environment)
            for name, value in _settings.values.items():
                before = self.config.get(name, value)
                if value is not before and value != before:
                    _settings.update(name, before)
            jax.set_mesh(None)
        except Exception:
            return False
        return jax.distributed.is_initialized()
