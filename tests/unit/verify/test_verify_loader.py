"""The loader's search: each rule of ld.so(8), and the order among them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from assembler.verify.ldcache import ELF64_X86, MAGIC, parse_cache
from assembler.verify.loader import Loader, expand, explain, loadings
from tests.elf_making import Elf, make_elf
from tests.verify_making import Files, Item, make_tree

LIBRARY = make_elf(Elf(soname="libx.so.1"))


def found(root: Path, files: Files, importer: str, **options: object) -> tuple[str, str] | None:
    tree = make_tree(root, files, **options)  # type: ignore[arg-type]
    result = Loader(tree).find("libx.so.1", importer)
    return (result.path, result.how) if result else None


def cache(entries: dict[str, str], *, flags: int = ELF64_X86, hardware: int = 0) -> bytes:
    strings, rows, start = b"", b"", 48 + 24 * len(entries)
    for name, path in entries.items():
        key = start + len(strings)
        strings += name.encode() + b"\0"
        rows += struct.pack("<iIIIQ", flags, key, start + len(strings), 0, hardware)
        strings += path.encode() + b"\0"
    return struct.pack("<20sIIB3xI12x", MAGIC, len(entries), len(strings), 2, 0) + rows + strings


def everywhere(**importer: str) -> Files:
    """An importer, and the library in every place that ld.so may look."""
    return {
        "app/bin/main": make_elf(Elf(needed=["libx.so.1"], **importer)),
        "app/rpath/libx.so.1": LIBRARY,
        "app/runpath/libx.so.1": LIBRARY,
        "env/libx.so.1": LIBRARY,
        "cached/libx.so.1": LIBRARY,
        "lib/x86_64-linux-gnu/libx.so.1": LIBRARY,
        "usr/lib/libx.so.1": LIBRARY,
        "etc/ld.so.cache": cache({"libx.so.1": "/cached/libx.so.1"}),
    }


def test_rpath_comes_before_the_environment(tmp_path: Path) -> None:
    files = everywhere(rpath="$ORIGIN/../rpath")
    env = {"LD_LIBRARY_PATH": "/env"}
    assert found(tmp_path, files, "app/bin/main", env=env) == (
        "app/rpath/libx.so.1", "RPATH $ORIGIN/../rpath of app/bin/main",
    )  # fmt: skip


def test_the_environment_comes_before_runpath(tmp_path: Path) -> None:
    files = everywhere(runpath="$ORIGIN/../runpath")
    env = {"LD_LIBRARY_PATH": "/nowhere:/env"}
    assert found(tmp_path, files, "app/bin/main", env=env) == ("env/libx.so.1", "LD_LIBRARY_PATH")


def test_runpath_comes_before_the_cache_and_silences_rpath(tmp_path: Path) -> None:
    files = everywhere(rpath="$ORIGIN/../rpath", runpath="${ORIGIN}/../runpath")
    assert found(tmp_path, files, "app/bin/main") == (
        "app/runpath/libx.so.1", "RUNPATH ${ORIGIN}/../runpath",
    )  # fmt: skip


def test_the_cache_comes_before_the_default_folders(tmp_path: Path) -> None:
    assert found(tmp_path, everywhere(), "app/bin/main") == ("cached/libx.so.1", "ld.so.cache")


def test_the_default_folders_come_last(tmp_path: Path) -> None:
    files = {path: data for path, data in everywhere().items() if path != "etc/ld.so.cache"}
    assert found(tmp_path, files, "app/bin/main") == (
        "lib/x86_64-linux-gnu/libx.so.1", "default folder /lib/x86_64-linux-gnu",
    )  # fmt: skip


def test_nowhere_is_none(tmp_path: Path) -> None:
    assert found(tmp_path, {"a": make_elf(Elf(needed=["libx.so.1"]))}, "a") is None


def test_rpath_of_the_loading_object_is_inherited_and_its_runpath_is_not(tmp_path: Path) -> None:
    files: Files = {
        "app/main": make_elf(Elf(needed=["liba.so"], rpath="$ORIGIN/lib", interpreter="/ld")),
        "app/other": make_elf(Elf(needed=["liba.so"], runpath="$ORIGIN/lib", interpreter="/ld")),
        "app/lib/liba.so": make_elf(Elf(soname="liba.so", needed=["libx.so.1"])),
        "app/lib/libx.so.1": LIBRARY,
    }
    loader = Loader(make_tree(tmp_path, files))
    inherited = {edge.name: edge.found for edge in loader.load("app/main")}
    alone = {edge.name: edge.found for edge in loader.load("app/other")}
    assert inherited["libx.so.1"] is not None
    assert alone["liba.so"] is not None
    assert alone["libx.so.1"] is None


def test_what_is_loaded_already_satisfies_a_later_need(tmp_path: Path) -> None:
    files: Files = {
        "main": make_elf(Elf(needed=["libx.so.1", "liba.so"], runpath="/one:/two")),
        "one/libx.so.1": LIBRARY,
        "two/liba.so": make_elf(Elf(soname="liba.so", needed=["libx.so.1"])),
    }
    edges = Loader(make_tree(tmp_path, files)).load("main")
    assert [(edge.importer, edge.found.how) for edge in edges if edge.found][-1] == (
        "two/liba.so", "already loaded",
    )  # fmt: skip


def test_origin_is_the_folder_of_the_link_that_was_opened(tmp_path: Path) -> None:
    files: Files = {
        "main": make_elf(Elf(needed=["liba.so"], runpath="/links")),
        "links/liba.so": Item(target="../real/liba.so"),
        "real/liba.so": make_elf(Elf(soname="liba.so", needed=["libx.so.1"], runpath="$ORIGIN")),
        "links/libx.so.1": LIBRARY,
    }
    edges = Loader(make_tree(tmp_path, files)).load("main")
    assert edges[-1].found is not None
    assert edges[-1].found.path == "links/libx.so.1"


def test_extension_modules_find_what_the_interpreter_brought(tmp_path: Path) -> None:
    files: Files = {
        "opt/bin/python": make_elf(
            Elf(needed=["libx.so.1"], rpath="$ORIGIN/../lib", interpreter="/ld")
        ),
        "opt/lib/libx.so.1": LIBRARY,
        "opt/lib/module.so": make_elf(Elf(needed=["libx.so.1"])),
    }
    tree = make_tree(tmp_path, files, entrypoint=("/opt/bin/python",))
    (edge,) = loadings(tree)["opt/lib/module.so"]
    assert edge.found is not None
    assert edge.found.how == "already loaded"


def test_a_ring_of_libraries_that_nobody_else_loads_is_followed(tmp_path: Path) -> None:
    files: Files = {
        "lib/liba.so": make_elf(Elf(soname="liba.so", needed=["libb.so"])),
        "lib/libb.so": make_elf(Elf(soname="libb.so", needed=["liba.so", "libmissing.so"])),
    }
    missing = {
        e.name
        for edges in loadings(make_tree(tmp_path, files)).values()
        for e in edges
        if not e.found
    }
    assert missing == {"libmissing.so"}


def test_a_name_with_a_slash_is_no_search(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"main": make_elf(Elf()), "x/libx.so.1": LIBRARY})
    result = Loader(tree).find("/x/libx.so.1", "main")
    assert result is not None
    assert result.how == "its own path"


@pytest.mark.parametrize(
    ("text", "holder", "folder"),
    [
        ("$ORIGIN/../lib", "opt/bin/x", "opt/lib"),
        ("${ORIGIN}", "x", ""),
        ("/usr/$LIB", "x", "usr/lib/x86_64-linux-gnu"),
        ("/a//b/", "x", "a/b"),
        ("$ORIGIN/../../../..", "opt/bin/x", ""),
        ("lib", "opt/bin/x", None),
        (".", "opt/bin/x", None),
    ],
)
def test_expansion_of_search_paths(text: str, holder: str, folder: str | None) -> None:
    assert expand(text, holder) == folder


def test_why_shows_the_search_and_what_is_missing(tmp_path: Path) -> None:
    files: Files = {
        "opt/a.so": make_elf(Elf(needed=["libx.so.1", "libgone.so"], runpath="$ORIGIN/lib")),
        "opt/lib/libx.so.1": LIBRARY,
    }
    tree = make_tree(tmp_path, files)
    lines = explain(tree, "/opt/a.so").splitlines()
    assert lines[0] == "opt/a.so"
    assert "/opt/lib (RUNPATH $ORIGIN/lib)" in lines[1]
    assert "ld.so.cache (there is none)" in lines[1]
    assert lines[2:] == [
        "  libx.so.1 → opt/lib/libx.so.1 (RUNPATH $ORIGIN/lib)",
        "  libgone.so → not found",
    ]
    assert "no ELF file" in explain(tree, "/opt/nothing")


# -- ld.so.cache -----------------------------------------------------------------------------------


def test_the_first_entry_of_a_name_wins_and_foreign_ones_are_passed_over() -> None:
    assert parse_cache(cache({"a": "/x/a", "b": "/x/b"})) == {"a": "/x/a", "b": "/x/b"}
    assert parse_cache(cache({"a": "/x32/a"}, flags=0x0803)) == {}
    assert parse_cache(cache({"a": "/avx/a"}, hardware=1 << 62)) == {}


@pytest.mark.parametrize("size", [0, 10, 47, 60, 80])
def test_a_cut_off_cache_gives_what_is_whole(size: int) -> None:
    assert set(parse_cache(cache({"a": "/x/a", "b": "/x/b"})[:size])) <= {"a", ""}
