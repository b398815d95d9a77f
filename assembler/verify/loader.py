"""Finds the libraries of an ELF file as ld.so would inside the image.

Order of the search for a name without a slash (ld.so(8), glibc elf/dl-load.c): libraries already
loaded under that name or SONAME; DT_RPATH of the importer and then of those that loaded it, up to
the program, each only when it has no DT_RUNPATH, and none at all when the importer has one;
LD_LIBRARY_PATH of the image's Env; DT_RUNPATH of the importer; /etc/ld.so.cache; the default
folders. A file for another machine is passed over. ``$ORIGIN`` is the folder of the path under
which an object was opened, links not followed. glibc-hwcaps folders are not searched: what they
hold is a faster copy, chosen by the CPU.

An extension module is loaded by the image's interpreter, so the interpreter's own libraries are
there before it, and its RPATH takes part.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assembler.verify.elf import Elf, elf_files
from assembler.verify.ldcache import parse_cache
from assembler.verify.tree import Tree

DEFAULT_FOLDERS = (
    "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64", "usr/lib64", "lib", "usr/lib",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Where a name led: the path as opened, the file behind it, and which rule found it."""

    opened: str
    path: str
    how: str


@dataclass(frozen=True)
class Edge:
    """One NEEDED of one loaded object; ``found`` is None when it leads nowhere."""

    importer: str
    name: str
    found: Found | None


@dataclass
class Process:
    """What is loaded so far: names and SONAMEs to objects, and who loaded each."""

    names: dict[str, Found] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)

    def chain(self, opened: str) -> Iterator[str]:
        """Yield an object and those that loaded it, up to the program."""
        at: str | None = opened
        seen: set[str] = set()
        while at is not None and at not in seen:
            seen.add(at)
            yield at
            at = self.parents.get(at)


class Loader:
    """ld.so's search in one tree."""

    def __init__(self, tree: Tree, *, program: str | None = None) -> None:
        self.tree = tree
        self.elves: Mapping[str, Elf] = elf_files(tree)
        env = tree.config.env if tree.config is not None else {}
        self.library_path = tuple(
            part.lstrip("/") for part in env.get("LD_LIBRARY_PATH", "").split(":") if part
        )
        cache = tree.file_at("etc/ld.so.cache")
        self.cache = parse_cache(tree.read(cache.path)) if cache is not None else {}
        real = tree.resolve(program) if program is not None else None
        self.program = real if real in self.elves else None
        self._base = Process()
        if self.program is not None:
            self._load(self.program, self._base, None)

    def load(self, path: str) -> tuple[Edge, ...]:
        """Return every NEEDED that loading this file leads to, breadth first as ld.so goes."""
        if self.elves[path].interpreter is not None and self.elves[path].soname is None:
            return self._load(path, Process(), None)  # a program of its own
        process = Process(dict(self._base.names), dict(self._base.parents))
        return self._load(path, process, self.program)

    def _load(self, path: str, process: Process, parent: str | None) -> tuple[Edge, ...]:
        process.parents.setdefault(path, parent)
        self._remember(process, Found(path, path, "itself"), posixpath.basename(path))
        edges: list[Edge] = []
        waiting = [Found(path, path, "itself")]
        visited = {path}
        while waiting:
            importer = waiting.pop(0)
            facts = self.elves.get(importer.path)
            for name in facts.needed if facts is not None else ():
                found = self.find(name, importer.opened, process)
                edges.append(Edge(importer.path, name, found))
                if found is None:
                    continue
                if found.opened not in process.parents:
                    process.parents[found.opened] = importer.opened
                    self._remember(process, found, name)
                if found.path not in visited:
                    visited.add(found.path)
                    waiting.append(found)
        return tuple(edges)

    def _remember(self, process: Process, found: Found, name: str) -> None:
        process.names.setdefault(name, found)
        facts = self.elves.get(found.path)
        if facts is not None and facts.soname:
            process.names.setdefault(facts.soname, found)

    def find(self, name: str, importer: str, process: Process | None = None) -> Found | None:
        """Return what ld.so opens for ``name`` when ``importer`` needs it."""
        process = process or Process(dict(self._base.names), {importer: self.program})
        if name in process.names:
            known = process.names[name]
            return Found(known.opened, known.path, "already loaded")
        if "/" in name:
            return self._candidate(name.lstrip("/"), "its own path")
        for folder, how in self.folders(importer, process):
            found = self._candidate(f"{folder}/{name}" if folder else name, how)
            if found is not None:
                return found
            if how == "ld.so.cache" and name in self.cache:
                return self._candidate(self.cache[name].lstrip("/"), how)
        return None

    def folders(self, importer: str, process: Process) -> Iterator[tuple[str, str]]:
        """Yield the folders that are searched for an importer's needs, with the rule's name."""
        facts = self._facts(importer)
        if facts is None or not facts.runpath:
            for holder in process.chain(importer):
                held = self._facts(holder)
                if held is not None and not held.runpath:
                    for text in held.rpath:
                        yield from self._expand(text, holder, f"RPATH {text} of {holder}")
        for folder in self.library_path:
            yield posixpath.normpath(folder), "LD_LIBRARY_PATH"
        for text in facts.runpath if facts is not None else ():
            yield from self._expand(text, importer, f"RUNPATH {text}")
        yield ".ld.so.cache", "ld.so.cache"
        for folder in DEFAULT_FOLDERS:
            yield folder, f"default folder /{folder}"

    def _facts(self, opened: str) -> Elf | None:
        real = self.tree.resolve(opened)
        return self.elves.get(real) if real is not None else None

    def _expand(self, text: str, holder: str, how: str) -> Iterator[tuple[str, str]]:
        folder = expand(text, holder)
        if folder is not None:
            yield folder, how

    def _candidate(self, path: str, how: str) -> Found | None:
        real = self.tree.resolve(path)
        if real is None or real not in self.elves or self.elves[real].trouble is not None:
            return None
        return Found(path, real, how)


def expand(text: str, holder: str) -> str | None:
    """Return the tree path that an RPATH entry means for its holder; None for relative ones."""
    origin = "/" + posixpath.dirname(holder)
    for name, value in (
        ("ORIGIN", origin), ("LIB", "lib/x86_64-linux-gnu"), ("PLATFORM", "x86_64"),
    ):  # fmt: skip
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    if not text.startswith("/"):
        return None
    return posixpath.normpath(text).lstrip("/")


@functools.lru_cache(maxsize=2)
def loader_of(tree: Tree) -> Loader:
    """Return the tree's loader, with the image's interpreter as the program."""
    program: str | None = None
    if tree.config is not None and tree.config.entrypoint:
        program = tree.config.entrypoint[0].lstrip("/")
    if (program is None or tree.file_at(program) is None) and tree.prefix is not None:
        program = f"{tree.prefix}/bin/python".lstrip("/")
    return Loader(tree, program=program)


@functools.lru_cache(maxsize=2)
def loadings(tree: Tree) -> Mapping[str, tuple[Edge, ...]]:
    """Return what loading each file leads to, for those that no other file brings in."""
    loader = loader_of(tree)
    every = {
        path: loader.load(path)
        for path, facts in loader.elves.items()
        if facts.dynamic and facts.trouble is None
    }
    brought = {
        edge.found.path
        for path, edges in every.items()
        for edge in edges
        if edge.found is not None and edge.found.path != path
    }
    roots = {path: edges for path, edges in every.items() if path not in brought}
    reached = set(roots) | {
        edge.found.path for edges in roots.values() for edge in edges if edge.found is not None
    }
    # Libraries that need each other are brought in by one another and by nobody else.
    return roots | {path: edges for path, edges in every.items() if path not in reached}


def explain(tree: Tree, path: str) -> str:
    """Return the loading of one file as a tree of lines (``--why``)."""
    loader = loader_of(tree)
    real = tree.resolve(path.lstrip("/"))
    if real is None or real not in loader.elves:
        return f"{path} is no ELF file of {tree.label}"
    edges = loader.load(real)
    by_importer: dict[str, list[Edge]] = {}
    for edge in edges:
        by_importer.setdefault(edge.importer, []).append(edge)
    lines = [real, *_search(loader, real)]
    shown: set[str] = set()

    def show(importer: str, depth: int) -> None:
        shown.add(importer)
        for edge in by_importer.get(importer, ()):
            indent = "  " * depth
            if edge.found is None:
                lines.append(f"{indent}{edge.name} → not found")
                continue
            lines.append(f"{indent}{edge.name} → {edge.found.path} ({edge.found.how})")
            if edge.found.path not in shown:
                show(edge.found.path, depth + 1)

    show(real, 1)
    return "\n".join(lines)


def _search(loader: Loader, path: str) -> Sequence[str]:
    process = Process({}, {path: loader.program})
    seen: dict[str, None] = {}
    for folder, how in loader.folders(path, process):
        word = how if how == "ld.so.cache" else f"/{folder} ({how})"
        if how == "ld.so.cache" and not loader.cache:
            word += " (there is none)"
        seen[word] = None
    return [f"  searched: {', '.join(seen)}"]
