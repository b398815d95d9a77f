"""Lists the GPU code of files, packages, folders and images.

Formats and their sources are named where they are read: codeobject.py (AMDGPU ELF), bundle.py
(offload bundles), kpack.py, kdb.py, and walk.py for what files are packed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assembler.verify.gfx.inspection import Item, inspect
from assembler.verify.gfx.model import Trouble
from assembler.verify.gfx.source import FileSource
from assembler.verify.gfx.walk import walk


def inventory(path: Path, *, kernels: bool = False) -> Iterator[Item]:
    """Yield every code object below a path, and every place that cannot be read.

    ``path`` is a file, an archive (.conda, wheel, zip, tar with or without compression, ar), an OCI
    layout as a folder or a plain tar, or any other folder; archives inside archives are opened.
    ``kernels`` asks for the kernels of the metadata notes. Memory stays bounded whatever the size;
    unpacked parts go through temporary files. Raises OSError only for what is on disk itself.
    """
    for found in walk(path):
        if isinstance(found, Trouble):
            yield found
        else:
            yield from inspect(found.source, found.path, kernels=kernels)


def inventory_file(path: Path, name: str, *, kernels: bool = False) -> Iterator[Item]:
    """Yield the code objects of one regular file that is no archive, called ``name``."""
    with FileSource.open(path) as source:
        yield from inspect(source, name, kernels=kernels)
