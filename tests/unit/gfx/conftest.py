"""What the tests of the GPU code reader share."""

from __future__ import annotations

from pathlib import Path

import pytest
from gfxmake import Read

from assembler.verify.gfx import CodeObject, Trouble, inventory


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write bytes to a file and return the code objects and troubles in it."""

    def read_bytes(
        data: bytes, name: str = "file.bin", **options: bool
    ) -> tuple[list[CodeObject], list[Trouble]]:
        place = tmp_path / name
        place.write_bytes(data)
        items = list(inventory(place, **options))
        objects = [item for item in items if isinstance(item, CodeObject)]
        return objects, [item for item in items if isinstance(item, Trouble)]

    return read_bytes
