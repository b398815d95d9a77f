"""Which package brought a file, by what the image itself records.

conda packages list their files in ``conda-meta/*.json``; Debian packages in
``var/lib/dpkg/status.d/*.md5sums`` (distroless) or ``var/lib/dpkg/info/*.list``. Names are
``conda:<name>`` and ``deb:<name>``; files of nobody belong to ``(image)``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from assembler.verify.tree import Tree

NOBODY = "(image)"
_STATUS = "var/lib/dpkg/status.d/"
_INFO = "var/lib/dpkg/info/"


@functools.lru_cache(maxsize=2)
def owners(tree: Tree) -> Mapping[str, tuple[str, ...]]:
    """Return the packages that claim each path, sorted; folders are not listed."""
    claims: dict[str, set[str]] = {}
    for package, path in _claims(tree):
        place = _canonical(tree, path)
        entry = tree.entries.get(place)
        if entry is not None and entry.kind != "directory":
            claims.setdefault(place, set()).add(package)
    return {path: tuple(sorted(packages)) for path, packages in claims.items()}


def _claims(tree: Tree) -> Iterator[tuple[str, str]]:
    if tree.prefix is not None:
        start = f"{tree.prefix}/" if tree.prefix else ""
        for entry in tree.under(f"{start}conda-meta"):
            if entry.kind == "file" and entry.name.endswith(".json"):
                record = _json(tree.read(entry.path))
                for path in record.get("files", []):
                    yield f"conda:{record.get('name', entry.name)}", start + str(path)
    for path in tree.entries:
        if path.startswith(_STATUS) and path.endswith(".md5sums"):
            package = path.removeprefix(_STATUS).removesuffix(".md5sums")
            for line in tree.read(path).decode(errors="surrogateescape").splitlines():
                yield f"deb:{package}", line.partition("  ")[2].lstrip("/")
        elif path.startswith(_INFO) and path.endswith(".list"):
            package = path.removeprefix(_INFO).removesuffix(".list").partition(":")[0]
            for line in tree.read(path).decode(errors="surrogateescape").splitlines():
                yield f"deb:{package}", line.strip().lstrip("/")


def _json(data: bytes) -> dict[str, Any]:  # records of a damaged image are no reason to stop
    try:
        record = json.loads(data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _canonical(tree: Tree, path: str) -> str:
    """Follow linked folders (``/lib`` of a merged /usr), not the last component."""
    folder, _, name = path.rpartition("/")
    real = tree.resolve(folder) if folder else ""
    if real is None:
        return path
    return f"{real}/{name}" if real else name


def sizes_by_package(tree: Tree) -> dict[str, int]:
    """Return the unpacked bytes of each package; a package tree is one package, its label."""
    if tree.kind in ("conda", "wheel"):
        return {tree.label: sum(entry.size for entry in tree.files() if entry.hardlink is None)}
    sizes: dict[str, int] = {}
    claimed = owners(tree)
    for entry in tree.files():
        if entry.hardlink is None:
            owner = claimed.get(entry.path, (NOBODY,))[0]
            sizes[owner] = sizes.get(owner, 0) + entry.size
    return sizes


def package_name(label: str) -> str:
    """Return the bare name of ``conda:NAME``, ``deb:NAME``, a .conda file's or a wheel's name."""
    name = label.rpartition("/")[2]
    if name.endswith(".conda"):
        return name.removesuffix(".conda").rsplit("-", 2)[0]
    if name.endswith(".whl"):
        return name.partition("-")[0].replace("_", "-").lower()
    return name.partition(":")[2] or name
