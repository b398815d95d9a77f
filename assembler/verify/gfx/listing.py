"""Lists the GPU code of an opened tree once, for all gates that ask."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from assembler.verify.gfx.inspection import Item, inspect
from assembler.verify.gfx.model import Trouble
from assembler.verify.gfx.source import FileSource
from assembler.verify.gfx.walk import walk_source
from assembler.verify.tree import Tree

_last: tuple[weakref.ref[Tree], tuple[Item, ...]] | None = None


def list_code(tree: Tree) -> tuple[Item, ...]:
    """Return the code objects and troubles of a tree's files, in path order; archives are opened.

    The last tree's list is kept for as long as the tree itself, because several gates want it.
    """
    global _last
    if _last is not None and _last[0]() is tree:
        return _last[1]
    items = tuple(_list(tree))
    _last = (weakref.ref(tree), items)
    return items


def _list(tree: Tree) -> Iterator[Item]:
    for entry in tree.files():
        with FileSource.open(tree.on_disk(entry.path)) as source:
            for found in walk_source(source, entry.path):
                if isinstance(found, Trouble):
                    yield found
                else:
                    yield from inspect(found.source, found.path)
