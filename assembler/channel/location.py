"""Where a channel is: its one URL spelling, its subdirs, and the working state beside it.

A channel folder holds subdirs with packages and their index and nothing else, so that copying it is
enough to hand it on. Everything else that publishing needs lies beside it in ``.<name>.state``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

# Every channel has these, packages or not: conda refuses a channel without noarch/repodata.json.
REQUIRED_SUBDIRS: tuple[str, ...] = ("linux-64", "noarch")
KNOWN_SUBDIRS: frozenset[str] = frozenset({*REQUIRED_SUBDIRS, "linux-aarch64"})
PACKAGE_SUFFIXES: tuple[str, ...] = (".conda", ".tar.bz2")
INDEX = "repodata.json"
INDEX_ZST = "repodata.json.zst"
PART = ".part"
# What solvers leave as it is when they join a file name to a channel's URL.
FILE_SAFE = "/+!~=@,"
# Kept by git so that a fresh checkout has the folder.
PLACEHOLDERS: frozenset[str] = frozenset({".gitkeep", ".gitignore"})


def channel_url(channel: Path) -> str:
    """Return the channel's ``file://`` URL without a trailing slash.

    Every character outside the unreserved ones is percent-encoded, so that a path with a space,
    ``+``, ``%``, ``#`` or non-ASCII letters has exactly one spelling in every file and process.
    """
    return Path(os.path.abspath(channel)).as_uri().rstrip("/")  # noqa: PTH100 - removes ..


def package_url(channel: Path, path: str) -> str:
    """Return the URL of a package given by its path in the channel (``noarch/x-1-0.conda``)."""
    return f"{channel_url(channel)}/{quote(path, safe=FILE_SAFE)}"


def split_file(file: str) -> tuple[str, str, str, str] | None:
    """Split a package's file name into name, version, build and suffix, or return None.

    >>> split_file("amd-aiter-0.1.7-h0a1b2c3_0.conda")
    ('amd-aiter', '0.1.7', 'h0a1b2c3_0', '.conda')
    """
    for suffix in PACKAGE_SUFFIXES:
        if file.endswith(suffix):
            parts = file.removesuffix(suffix).rsplit("-", 2)
            if len(parts) == 3 and all(parts):
                return parts[0], parts[1], parts[2], suffix
    return None


def is_package(file: str) -> bool:
    """Tell whether a file name is that of a conda package."""
    return split_file(file) is not None


def state_folder(channel: Path) -> Path:
    """Return the folder with the channel's guard, stamps, journal and quarantine.

    It lies beside the channel; where that folder cannot be written it is a private folder of this
    user's among the temporary files.
    """
    channel = Path(os.path.realpath(channel))
    beside = channel.parent / f".{channel.name}.state"
    ground = next(folder for folder in beside.parents if folder.exists())
    if os.access(beside if beside.is_dir() else ground, os.W_OK):
        return beside
    key = hashlib.sha256(os.fsencode(channel)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"assembler-{os.getuid()}" / key
