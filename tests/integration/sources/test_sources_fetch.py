"""Whole fetches: an index through pip, find-links, second places, moves, kills, and words."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest_sources import (
    STACK,
    Server,
    entry,
    make_wheel,
    sha,
    wheel_entry,
)
from test_sources_transfer import size, wait_for

from assembler.errors import ConfigError, HashMismatchError, SourceUnavailableError
from assembler.progress import SilentProgress
from assembler.sources.fetch import FetchResult, fetch, read_fetched
from assembler.sources.pinning import Pinner
from assembler.sources.pins import read_pins
from assembler.sources.store import Store
from assembler.workspace import Workspace

Index = Callable[..., str]
Pip = Callable[..., None]
Project = Callable[..., Workspace]

PURE = make_wheel("pure-thing", "1.0")
TAGGED = make_wheel("tagged", "2.0+cpu", tag="cp312-cp312-manylinux_2_28_x86_64")


def run(workspace: Workspace, **options: object) -> FetchResult:
    profile = workspace.stack().select(None)
    return fetch(workspace, profile, SilentProgress(), **options)  # type: ignore[arg-type]


def laid_out(workspace: Workspace) -> dict[str, bytes]:
    top = workspace.build / "sources" / "tiny"
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in top.rglob("*")
        if path.is_file() and path.parent != top
    }


def test_pip_is_asked_for_the_profiles_python(
    server: Server, index: Index, pip_environment: Pip, project: Project, tmp_path: Path
) -> None:
    """Wheels of CPython 3.12 are found whatever python runs this, and constraints do not matter."""
    (tmp_path / "constraints.txt").write_text("tagged<1\npure-thing==0.1\n")
    address = index(PURE, TAGGED, make_wheel("pure-thing", "3.0"))
    pip_environment(index_url=address, constraint=str(tmp_path / "constraints.txt"), user="true")
    workspace = project(python="3.12", one=wheel_entry(PURE), two=wheel_entry(TAGGED))
    result = run(workspace)
    assert sorted(result.fetched) == sorted([PURE.file, TAGGED.file])
    assert laid_out(workspace) == {
        f"one/{PURE.file}": PURE.data,
        f"two/{TAGGED.file}": TAGGED.data,
    }
    text = (workspace.build / "sources" / "tiny" / "variants.yaml").read_text()
    assert 'pure_thing_version: ["1.0"]\n' in text
    assert 'tagged_version: ["2.0+cpu"]\n' in text
    assert read_fetched(workspace, workspace.stack().select(None)) == result.pins

    asked = len(server.log)
    again = run(workspace)
    assert (again.fetched, again.cached, len(server.log)) == ((), 2, asked)


def test_find_links_come_before_the_second_place(
    pip_environment: Pip, project: Project, server: Server, index: Index, tmp_path: Path
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / TAGGED.file).write_bytes(TAGGED.data)
    pip_environment(index_url=index(PURE), find_links=str(links))
    second = server.put("/second/x.whl", TAGGED.data)
    workspace = project(python="3.12", one=wheel_entry(TAGGED, url=second))
    assert run(workspace).fetched == (TAGGED.file,)
    assert ("/second/x.whl", "") not in server.log
    (links / TAGGED.file).unlink()
    Store(workspace.store).path(TAGGED.sha256).unlink()
    assert run(workspace).fetched == (TAGGED.file,)
    assert ("/second/x.whl", "") in server.log


def test_an_index_with_a_password_is_left_to_pip(
    pip_environment: Pip, project: Project, index: Index
) -> None:
    address = index(PURE, user="me:hunter2").replace("http://", "http://me:hunter2@")
    pip_environment(index_url=address)
    workspace = project(one=wheel_entry(PURE))
    assert run(workspace).fetched == (PURE.file,)


def test_other_bytes_on_the_index_are_refused(
    pip_environment: Pip, project: Project, index: Index
) -> None:
    other = make_wheel("pure-thing", "1.0", text="rebuilt")
    for hashes in (True, False):
        pip_environment(index_url=index(other, hashes=hashes))
        workspace = project(one=wheel_entry(PURE))
        with pytest.raises(HashMismatchError) as caught:
            run(workspace)
        for word in (PURE.file, PURE.sha256, other.sha256):
            assert word in str(caught.value)
        assert not (workspace.build / "sources").exists()
        assert not Store(workspace.store).has(other.sha256)


def test_places_without_the_file_are_said(
    pip_environment: Pip, project: Project, index: Index
) -> None:
    pip_environment(index_url=index(make_wheel("pure-thing", "9.0")))
    with pytest.raises(SourceUnavailableError, match=r"pure-thing 1\.0 is not to be had"):
        run(project(one=wheel_entry(PURE)))


def test_an_unreachable_index_is_one_sentence(pip_environment: Pip, project: Project) -> None:
    pip_environment(index_url="http://me:hunter2@127.0.0.1:9/simple/")
    workspace = project(one=wheel_entry(PURE), two=wheel_entry(TAGGED))
    result = command(workspace, "fetch")
    assert result.returncode == 5
    assert result.stderr.count("\n") == 1
    assert "could not be reached for pure-thing 1.0, tagged 2.0+cpu" in result.stderr
    assert "--offline" in result.stderr
    assert "hunter2" not in result.stderr + result.stdout


def command(workspace: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assembler", *arguments],
        cwd=workspace.root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_offline_uses_the_store_alone(
    server: Server, pip_environment: Pip, project: Project
) -> None:
    data = b"some data"
    pin = entry(
        kind="url", name="data", version="1", file="d", sha256=sha(data), url=server.put("/d", data)
    )
    workspace = project(one=pin)
    with pytest.raises(SourceUnavailableError, match="lacks d"):
        run(workspace, offline=True)
    run(workspace)
    assert run(workspace, offline=True).cached == 1
    path = Store(workspace.store).path(sha(data))
    path.chmod(0o644)
    path.write_bytes(b"rotten da")
    assert run(workspace, offline=True).cached == 1
    assert run(workspace, verify=True).fetched == ("d",)
    assert laid_out(workspace) == {"one/d": data}


def test_a_wrong_size_is_the_pins_fault(server: Server, project: Project) -> None:
    url = server.put("/d", b"data")
    values = {"kind": "url", "name": "d", "version": "1", "file": "d", "sha256": sha(b"data")}
    run(project(one=entry(**values, url=url)))
    with pytest.raises(ConfigError, match="has 4 bytes where its pin says 5"):
        run(project(one=entry(**values, url=url, size=5)))


def test_what_is_no_longer_pinned_goes(server: Server, project: Project) -> None:
    def pin(name: str) -> str:
        url, digest = server.put(f"/{name}", name.encode()), sha(name.encode())
        return entry(kind="url", name=name, version="1", file=name, sha256=digest, url=url)

    workspace = project(one=pin("a") + pin("b"), two=pin("c"))
    run(workspace)
    assert sorted(laid_out(workspace)) == ["one/a", "one/b", "two/c"]
    workspace = project(one=pin("b") + pin("e"), two="")
    assert run(workspace).fetched == ("e",)
    assert sorted(laid_out(workspace)) == ["one/b", "one/e"]


def test_a_killed_fetch_goes_on(server: Server, pip_environment: Pip, project: Project) -> None:
    data = random.Random(2).randbytes(2_000_000)
    release = threading.Event()
    url = server.put("/big", data, wait=release)
    workspace = project(
        one=entry(kind="url", name="big", version="1", file="big", sha256=sha(data), url=url)
    )
    store = Store(workspace.store)
    child = subprocess.Popen([sys.executable, "-m", "assembler", "fetch", "-q"], cwd=workspace.root)
    try:
        wait_for(lambda: size(store.partial(sha(data))) >= len(data) // 4)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
    finally:
        child.kill()
        release.set()
    have = size(store.partial(sha(data)))
    result = command(workspace, "fetch", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["fetched"] == ["big"]
    assert server.log[-1] == ("/big", f"bytes={have}-")
    assert laid_out(workspace) == {"one/big": data}


def test_a_source_only_the_user_has_is_asked_for_once(project: Project, tmp_path: Path) -> None:
    tree = tmp_path / "ATOM"
    tree.mkdir()
    (tree / "atom.py").write_text("x = 1\n")
    workspace = project(tree=entry(kind="path", name="atom"))
    result = command(workspace, "fetch")
    assert result.returncode == 0
    assert result.stderr.count("atom is left out") == 1
    assert "--source atom=PATH" in result.stderr
    given = command(workspace, "fetch", "--source", f"atom={tree}", "--json")
    assert json.loads(given.stdout)["left_out"] == []
    assert "left out" not in command(workspace, "fetch").stderr
    assert "left out" in command(workspace, "fetch", "--source", "atom=").stderr
    wrong = command(workspace, "fetch", "--source", f"mori={tree}")
    assert wrong.returncode == 3
    assert "recipes take atom" in wrong.stderr
    assert "--source mori=" in wrong.stderr
    # What another profile takes does not disturb this one.
    stack = workspace.root / "stack.toml"
    both = STACK.format(python="3.11", wheels="")
    stack.write_text(both + both.replace('default_profile = "tiny"', "").replace(".tiny", ".big"))
    text = entry(kind="path", name="atom") + entry("big", kind="path", name="mori")
    (workspace.recipes / "tree" / "sources.toml").write_text(text)
    assert command(workspace, "fetch").returncode == 0


def test_pin_completes_and_moves(
    server: Server, pip_environment: Pip, project: Project, index: Index
) -> None:
    newer = make_wheel("pure-thing", "1.1")
    pip_environment(index_url=index(PURE, newer))
    bare = '# ours\n[[tiny]]\nkind = "pypi"\nname = "pure-thing" # kept\nversion = "1.0"\n'
    workspace = project(
        one=bare,
        two=entry(kind="url", name="d", version="1", url=server.put("/d", b"d")),
    )
    profile = workspace.stack().select(None)
    with pytest.raises(ConfigError, match="unpinned"):
        read_pins(workspace, profile)
    pinner = Pinner(workspace, profile, SilentProgress())
    assert [(one.name, one.new) for one in pinner.recipes()] == [("pure-thing", "1.0"), ("d", "1")]
    pin = read_pins(workspace, profile)["one"][0]
    assert (pin.sha256, pin.size, pin.file) == (PURE.sha256, len(PURE.data), PURE.file)
    assert not any(change.real for change in pinner.recipes())
    (change,) = pinner.recipes(["pure-thing"])
    assert (change.old, change.new) == ("1.0", "1.1")
    text = (workspace.recipes / "one" / "sources.toml").read_text()
    assert text.startswith("# ours\n")
    assert "# kept" in text
    assert run(workspace).cached == 2


def test_pin_refuses_other_bytes_of_a_pinned_name(
    pip_environment: Pip, project: Project, index: Index
) -> None:
    other = make_wheel("pure-thing", "1.0", text="rebuilt")
    pip_environment(index_url=index(other))
    workspace = project(one=wheel_entry(PURE))
    before = (workspace.recipes / "one" / "sources.toml").read_text()
    result = command(workspace, "pin")
    assert result.returncode == 4
    assert PURE.sha256 in result.stderr
    assert other.sha256 in result.stderr
    assert (workspace.recipes / "one" / "sources.toml").read_text() == before


def test_wheel_lists_are_resolved_closed_and_stable(
    pip_environment: Pip, project: Project, index: Index
) -> None:
    """The recipes' own wheels lend their dependencies, and never stand in the list themselves."""
    own = make_wheel(
        "tagged",
        "2.0+cpu",
        tag="cp312-cp312-manylinux_2_28_x86_64",
        requires=("msgpack", 'typing-extensions; python_version >= "3.12"'),
    )
    wheels = [
        make_wheel("msgpack", "1.0"),
        make_wheel("typing-extensions", "4.0"),
        make_wheel("never", "1.0"),
        make_wheel("app", "1.0", requires=("tagged", 'never; python_version < "3.12"')),
    ]
    # A build for other hardware, newer, which must not be dragged in.
    foreign = make_wheel("tagged", "9.0", requires=("nvidia-runtime",))
    pip_environment(index_url=index(own, foreign, *wheels))
    workspace = project(python="3.12", one=wheel_entry(own), wheels="")
    (workspace.recipes / "wheels" / "tiny.in").write_text("app  # the application\n")
    profile = workspace.stack().select(None)
    pinner = Pinner(workspace, profile, SilentProgress())
    assert [one.name for one in pinner.wheels()] == ["app", "msgpack", "typing-extensions"]
    pins = read_pins(workspace, profile)
    assert list(pins) == ["one", "app", "msgpack-python", "typing_extensions"]
    assert not any(change.real for change in pinner.wheels())
    assert run(workspace).cached == 4

    index(make_wheel("msgpack", "1.5"), *wheels, own)
    (workspace.recipes / "wheels" / "tiny.in").write_text("app\nmsgpack\n")
    assert not any(change.real for change in pinner.wheels())
    (change,) = [one for one in pinner.wheels(upgrade=True) if one.real]
    assert (change.name, change.old, change.new) == ("msgpack", "1.0", "1.5")
