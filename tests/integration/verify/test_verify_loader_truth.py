"""The loader's search against the real one: gcc makes the files, ld.so says what it loads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from assembler.verify.ldcache import parse_cache
from assembler.verify.loader import Loader
from tests.verify_making import make_tree

CC = shutil.which("gcc") or shutil.which("cc")
LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin:/bin")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler to make the fixtures")


def library(place: Path, *options: str, soname: str | None = None) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    name = f"-Wl,-soname,{soname or place.name}"
    line = [str(CC), "-shared", "-fPIC", "-nostdlib", "-o", str(place), name, "-x", "c", "-"]
    source = f"int {place.stem.replace('.', '_').replace('-', '_')}(void) {{ return 1; }}"
    subprocess.run([*line, *options], input=source, text=True, check=True)


def program(place: Path, *options: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    line = [str(CC), "-o", str(place), "-x", "c", "-", "-x", "none", "-Wl,--no-as-needed"]
    source = "int main(void) { return 0; }"
    subprocess.run([*line, *options], input=source, text=True, check=True)


def truth(binary: Path, **env: str) -> dict[str, str]:
    """What the machine's own ld.so loads for each of our libraries."""
    done = subprocess.run(
        [binary],
        env={"LD_TRACE_LOADED_OBJECTS": "1", **env},
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and name.startswith("libt"):
            found[name] = (
                str(Path(rest.partition(" (")[0]).resolve()) if "not found" not in rest else ""
            )
    return found


def ours(root: Path, binary: Path, **env: str) -> dict[str, str]:
    tree = make_tree(root, {}, env=env)
    edges = Loader(tree).load(str(binary.relative_to(root)))
    found: dict[str, str] = {}
    for edge in edges:
        if edge.name.startswith("libt"):
            found.setdefault(edge.name, str(root / edge.found.path) if edge.found else "")
    return found


def tags(kind: str, text: str) -> list[str]:
    new = "--enable-new-dtags" if kind == "runpath" else "--disable-new-dtags"
    return [f"-Wl,{new}", f"-Wl,-rpath,{text}"]


@needs_cc
@pytest.mark.parametrize("kind", ["rpath", "runpath"])
@pytest.mark.parametrize("inner", ["rpath", "runpath", "none"])
@pytest.mark.parametrize("with_env", [False, True])
def test_the_same_files_are_found_in_the_same_order(
    kind: str, inner: str, with_env: bool, tmp_path: Path
) -> None:
    """main → libta → libtb, libtb in three places; each kind of search path on main and libta."""
    root = tmp_path / "root"
    for place in ("main-lib", "a-lib", "env"):
        library(root / place / "libtb.so")
    own = [] if inner == "none" else tags(inner, "$ORIGIN/../a-lib")
    library(root / "main-lib/libta.so", f"-L{root}/a-lib", "-Wl,--no-as-needed", "-ltb", *own)
    program(
        root / "bin/main",
        f"-L{root}/main-lib",
        "-lta",
        *tags(kind, "$ORIGIN/../main-lib"),
        "-Wl,--allow-shlib-undefined",
        "-Wl,-rpath-link,/nowhere",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    real = truth(root / "bin/main", **({"LD_LIBRARY_PATH": f"{root}/env"} if with_env else {}))
    # In the image, the environment's folder is below its root.
    seen = ours(root, root / "bin/main", **({"LD_LIBRARY_PATH": "/env"} if with_env else {}))
    assert set(real) == {"libta.so", "libtb.so"}
    assert seen == real


@needs_cc
@pytest.mark.skipif(LDCONFIG is None, reason="no ldconfig")
def test_the_cache_that_ldconfig_writes_is_read(tmp_path: Path) -> None:
    library(tmp_path / "extra/libtc.so.1.2", soname="libtc.so.1")
    library(tmp_path / "usr/lib/libtd.so.3", soname="libtd.so.3")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/extra\n")
    subprocess.run([str(LDCONFIG), "-r", str(tmp_path)], check=True, capture_output=True)
    told = subprocess.run(
        [str(LDCONFIG), "-r", str(tmp_path), "-p"], check=True, capture_output=True, text=True
    ).stdout
    wanted = {line.split()[0]: line.split()[-1] for line in told.splitlines() if "=>" in line}
    cache = parse_cache((tmp_path / "etc/ld.so.cache").read_bytes())
    assert wanted == dict(cache)
    assert set(wanted) == {"libtc.so.1", "libtd.so.3"}
    found = Loader(make_tree(tmp_path, {})).find("libtc.so.1", "usr/lib/libtd.so.3")
    assert found is not None
    assert (found.path, found.how) == ("extra/libtc.so.1.2", "ld.so.cache")
