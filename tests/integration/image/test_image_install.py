"""The union of an image's layers is what py-rattler installs at the same prefix."""

from __future__ import annotations

import importlib.util
import json
import marshal
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_packages import (
    PLACEHOLDER,
    PYTHON,
    Facts,
    Item,
    install,
    installed,
    lock_of,
    make_conda,
    make_python,
    union,
)

from assembler import stack
from assembler.image import segment
from assembler.image.assemble import assemble
from assembler.image.compression import Codec
from assembler.image.epoch import Epoch
from assembler.image.request import Options
from assembler.progress import SilentProgress
from assembler.sources.store import Store

PREFIX = "/opt/atom"


def split(facts: dict[str, Facts]) -> tuple[dict[str, Facts], dict[str, Facts], dict[str, Facts]]:
    """Return the files, the records of conda-meta, and the bytecode."""
    records = {path: fact for path, fact in facts.items() if path.startswith("conda-meta/")}
    bytecode = {path: fact for path, fact in facts.items() if path.endswith(".pyc")}
    rest = {
        path: fact
        for path, fact in facts.items()
        if path not in records
        and path not in bytecode
        and path not in ("conda-meta", "CACHEDIR.TAG")
        and not path.endswith("__pycache__")
    }
    return rest, records, bytecode


def compare(layout: Path, folder: Path) -> None:
    """Assert that an image and an install are the same but for the documented differences."""
    ours, our_records, our_bytecode = split(union(layout, PREFIX))
    theirs, their_records, their_bytecode = split(installed(folder))
    assert ours == theirs
    assert their_bytecode.items() <= our_bytecode.items()
    for path in our_bytecode:
        source = path.replace("__pycache__/", "").replace(f".cpython-{PYTHON.replace('.', '')}", "")
        assert source.removesuffix("c") in ours
    assert {p for p in our_records if p.endswith(".json")} == {
        p for p in their_records if p.endswith(".json")
    }
    for path, (_, _, data) in our_records.items():
        if path.endswith(".json"):
            compare_record(json.loads(data), json.loads(their_records[path][2]))


def compare_record(ours: dict, theirs: dict) -> None:
    """Assert that two records of conda-meta name the same package and the same paths."""
    for key in (
        "name",
        "version",
        "build",
        "build_number",
        "sha256",
        "md5",
        "size",
        "subdir",
        "fn",
    ):
        assert ours[key] == theirs[key], key
    assert sorted(ours["depends"]) == sorted(theirs["depends"])
    made = [entry for entry in ours["paths_data"]["paths"] if entry["path_type"] == "pyc_file"]
    added = {entry["_path"] for entry in made}
    assert sorted(set(ours["files"]) - added) == sorted(theirs["files"])
    here = {entry["_path"]: entry for entry in ours["paths_data"]["paths"]}
    for entry in theirs["paths_data"]["paths"]:
        mine = here[entry["_path"]]
        assert mine["path_type"] == entry["path_type"]
        for key in ("prefix_placeholder", "file_mode", "sha256_in_prefix", "sha256"):
            assert mine.get(key) == entry.get(key), (entry["_path"], key)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(budget=1),
        Options(budget=100, codec=Codec("zstd", 9), epoch=Epoch(1)),
        Options(budget=100, max_layer_size=9000),
        Options(budget=100, max_layer_size=14_000),
    ],
    ids=["default", "one-layer", "many-layers", "cut", "cut-less"],
)
def test_union_is_the_install(make_image, channel, tmp_path, options):
    lock = lock_of(channel)
    result = make_image(lock, channel, options=options)
    install(lock, channel, tmp_path / "prefix", PREFIX)
    compare(result.layout, tmp_path / "prefix")


def test_bytecode_runs_and_names_the_final_path(make_image, channel, site):
    result = make_image(lock_of(channel), channel)
    facts = union(result.layout, PREFIX)
    tag = f"cpython-{PYTHON.replace('.', '')}"
    data = facts[f"{site}/pure/__pycache__/__init__.{tag}.pyc"][2]
    assert int.from_bytes(data[4:8], "little") == 0b01  # hash-based, not checked
    code = marshal.loads(data[16:])
    assert code.co_filename == f"{PREFIX}/{site}/pure/__init__.py"
    assert f"lib/python{PYTHON}/__pycache__/broken.{tag}.pyc" not in facts


def test_shipped_bytecode_stays_only_when_time_cannot_spoil_it(make_image, channel, site):
    tag = f"cpython-{PYTHON.replace('.', '')}"
    stale = b"\x00" * 16 + b"compiled when the package was built"
    lasting = b"\x00" * 4 + b"\x01" + b"\x00" * 11 + b"hash-based"
    make_conda(
        channel,
        "shipped",
        [
            Item(f"{site}/shipped/__pycache__/a.{tag}.pyc", stale),
            Item(f"{site}/shipped/__pycache__/b.{tag}.pyc", lasting),
            Item(f"{site}/shipped/__pycache__/gone.{tag}.pyc", stale),
            Item(f"{site}/shipped/a.py", b"A = 1\n"),
            Item(f"{site}/shipped/b.py", b"B = 1\n"),
        ],
    )
    facts = union(make_image(lock_of(channel), channel).layout, PREFIX)
    folder = f"{site}/shipped/__pycache__"
    assert facts[f"{folder}/a.{tag}.pyc"][2] != stale
    assert facts[f"{folder}/b.{tag}.pyc"][2] == lasting
    assert facts[f"{folder}/gone.{tag}.pyc"][2] == stale


def bytecode_of(path: str, source: bytes) -> bytes:
    """Return unchecked-hash bytecode as packages ship it: the path is relative to the prefix."""
    code = compile(source, path, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return head + importlib.util.source_hash(source) + marshal.dumps(code)


def test_what_a_package_compiled_is_kept_and_not_compiled_again(
    make_image, channel, site, tmp_path, monkeypatch
):
    tag = f"cpython-{PYTHON.replace('.', '')}"
    texts = {f"{site}/ready/{name}.py": f"NAME = '{name}'\n".encode() for name in "abc"}
    prefixed = Item(f"{site}/ready/z.py", b"A = '" + PLACEHOLDER.encode() + b"'\n", prefixed="text")
    compiled = [
        Item(path.replace("ready/", "ready/__pycache__/").replace(".py", f".{tag}.pyc", 1), data)
        for path, data in ((path, bytecode_of(path, text)) for path, text in texts.items())
    ]
    make_conda(
        channel, "ready", [*compiled, *(Item(path, text) for path, text in texts.items()), prefixed]
    )
    handed_in = []

    class Spy(segment.Batch):
        def add(self, place, source):
            handed_in.append(place)
            super().add(place, source)

    monkeypatch.setattr(segment, "Batch", Spy)
    lock = lock_of(channel)
    result = make_image(lock, channel)
    assert f"{site}/pure/__init__.py" in handed_in
    assert [place for place in handed_in if "/ready/" in place] == [prefixed.path]
    install(lock, channel, tmp_path / "prefix", PREFIX)
    compare(result.layout, tmp_path / "prefix")
    facts = union(result.layout, PREFIX)
    assert {item.path: facts[item.path][2] for item in compiled} == {
        item.path: item.data for item in compiled
    }


names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cs", "Cc")),
    min_size=1,
    max_size=12,
).filter(lambda name: name not in (".", "..") and not name.startswith(".wh."))
contents = st.one_of(
    st.binary(max_size=80),
    st.just(b""),
    st.just(bytes(5000)),
    st.lists(
        st.sampled_from([PLACEHOLDER.encode(), b"\0", b"\n", b"/lib", b"x", b"\xff", b":"]),
        max_size=9,
    ).map(b"".join),
)


@st.composite
def packages(draw: st.DrawFn) -> tuple[list[Item], bool, list[str]]:
    """Draw a package: its items, whether it is noarch python, and its entry points."""
    noarch = draw(st.booleans())
    folders = ["share/a", "lib", "etc/x/y"] + (["site-packages/p"] if noarch else ["bin"])
    items: list[Item] = []
    for name in draw(st.lists(names, unique_by=str.casefold, max_size=8)):
        folder = draw(st.sampled_from(folders))
        path = f"{folder}/{name}"
        mode = draw(st.sampled_from([0o644, 0o755, 0o600, 0o444, 0o777]))
        earlier = [item.path for item in items if item.kind == "file" and not item.prefixed]
        kind = draw(st.sampled_from(["file", "file", "file", "symlink", "hardlink"]))
        if kind == "symlink":
            target = draw(st.sampled_from(["../b", "nowhere", "name with space"]))
            items.append(Item(path, kind="symlink", target=target))
        elif kind == "hardlink" and earlier:
            target = draw(st.sampled_from(earlier))
            kept = next(item for item in items if item.path == target)
            items.append(Item(path, kind="hardlink", target=target, mode=kept.mode))
        else:
            data = draw(contents)
            prefixed = draw(st.sampled_from(["", "text", "binary"]))
            if data.startswith(b"#!") and prefixed == "text":
                prefixed = ""
            items.append(Item(path, data, mode, prefixed=prefixed))
    shebang = draw(st.sampled_from([b"", b"#!", b"#! "]))
    if shebang:
        rest = draw(st.sampled_from([b"", b" -u", b" " + b"x" * 120, b"\xff"]))
        line = shebang + PLACEHOLDER.encode() + b"/bin/python" + rest + b"\n"
        items.append(Item("share/script", line + draw(contents), 0o755, prefixed="text"))
    points = draw(st.lists(st.sampled_from(["run = p.cli:main", "x-y = p:A.b"]), unique=True))
    return items, noarch, points if noarch else []


@given(package=packages(), limit=st.sampled_from([None, 9000, 14_000]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_package_is_installed_alike(package, limit):
    items, noarch, points = package
    scratch = Path(tempfile.mkdtemp(prefix="image-"))
    try:
        channel = scratch / "channel"
        make_python(channel)
        make_conda(channel, "any", items, noarch_python=noarch, entry_points=points)
        lock = lock_of(channel)
        image = stack.Image(
            name="any",
            user="65532:65532",
            entrypoint=("/opt/atom/bin/python",),
            base=stack.Base(suite="trixie", glibc="2.41", packages=()),
        )
        result = assemble(
            lock, channel, image, scratch / "image", Store(scratch / "store"),
            scratch / "cache", SilentProgress(),
            options=Options(budget=100, max_layer_size=limit) if limit else None,
        )  # fmt: skip
        install(lock, channel, scratch / "prefix", PREFIX)
        compare(result.layout, scratch / "prefix")
    finally:
        shutil.rmtree(scratch)


@pytest.mark.parametrize("length", [30, 110, 118])
def test_long_prefixes_change_the_first_lines_alike(make_image, channel, tmp_path, image, length):
    prefix = "/opt/" + "p" * (length - 5)
    lock = lock_of(channel)
    settings = image.model_copy(update={"prefix": prefix})
    result = make_image(lock, channel, settings=settings)
    install(lock, channel, tmp_path / "prefix", prefix)
    ours = split(union(result.layout, prefix))[0]
    assert ours == split(installed(tmp_path / "prefix"))[0]
