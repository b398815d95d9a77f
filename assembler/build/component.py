"""The two compressed tars of a ``.conda``, read as streams."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import zstandard


@contextmanager
def component(archive: zipfile.ZipFile, prefix: str) -> Iterator[tarfile.TarFile]:
    """Open the tar whose name starts with ``prefix`` (``info-`` or ``pkg-``), to be read once."""
    name = next(item for item in archive.namelist() if item.startswith(prefix))
    with (
        archive.open(name) as raw,
        zstandard.ZstdDecompressor().stream_reader(raw) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        yield tar
