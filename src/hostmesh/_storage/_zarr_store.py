"""A zarr store whose blosc chunks are as long as they say. Imported where zarr is there.

numcodecs (0.16) reads past the end of a blosc chunk that was cut short: what lies in memory behind
it would become values.
"""

from __future__ import annotations

from typing import Any

from zarr.abc.store import SuffixByteRequest
from zarr.storage import WrapperStore

# Version, flags, size of elements; then the sizes of the chunk: uncompressed, of a block, in all.
_HEADER, _SIZE_AT = 16, 12


class WholeChunks(WrapperStore[Any]):
    """A store of one array of blosc chunks. Raises `ValueError` for a chunk that is cut short."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """What is stored under a key, or a range of it."""
        return _checked(key, byte_range, await self._store.get(key, prototype, byte_range))

    def get_sync(self, key: str, **options: Any) -> Any:
        """The same, as zarr 3.4 asks for it."""
        found = self._store.get_sync(key, **options)
        return _checked(key, options.get("byte_range"), found)


def _checked(key: str, byte_range: Any, found: Any) -> Any:
    is_metadata = key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs", ".zgroup")
    if found is None or is_metadata or isinstance(byte_range, SuffixByteRequest):
        return found
    data = found.to_bytes() if len(found) < _HEADER else found[:_HEADER].to_bytes()
    size = int.from_bytes(data[_SIZE_AT:_HEADER], "little")
    if len(data) < _HEADER or size != len(found):
        raise ValueError(f"chunk {key!r}: {len(found)} bytes, where its own header says {size}")
    return found
