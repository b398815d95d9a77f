"""explicit.txt: the lock as ``conda create --file`` takes it (CEP-23, with SHA-256)."""

from __future__ import annotations

from typing import Final

from assembler.lock.model import CHANNEL_VARIABLE, Lock, topological

FILE: Final = "explicit.txt"


def explicit_bytes(lock: Lock) -> bytes:
    """Return explicit.txt; conda expands ``$ATOM_CHANNEL``, a plain path, when it reads it."""
    lines = [
        f"# Install:  {CHANNEL_VARIABLE}=/path/to/channel conda create -p PREFIX --file {FILE}",
        f"# platform: {lock.platform}",
        "@EXPLICIT",
        *(
            f"{package.url or f'${CHANNEL_VARIABLE}/{package.path}'}#sha256:{package.sha256}"
            for package in topological(lock.packages)
        ),
    ]
    return ("\n".join(lines) + "\n").encode()
