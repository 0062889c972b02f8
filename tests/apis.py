"""Each test of a conversion runs twice: with JAX's private names, and with their public fallbacks."""

from __future__ import annotations

import pytest

both = pytest.mark.parametrize(
    "public",
    [
        pytest.param(False, marks=pytest.mark.multiprocess, id="private"),
        pytest.param(
            True, marks=pytest.mark.multiprocess(env={"HOSTMESH_PUBLIC_API": "1"}), id="public"
        ),
    ],
)
