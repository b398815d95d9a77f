"""Parts of a stack: --only, --up-to, what the machine lacks, and what was not fetched."""

from __future__ import annotations

import json

import pytest

from assembler.build.builder import Builder
from assembler.build.needs import GB, Machine
from assembler.channel.index import read_records
from assembler.errors import ConfigError, MissingToolError
from assembler.progress import SilentProgress
from assembler.sources.fetch import fetch
from assembler.workspace import Workspace
from tests.conftest import run_assembler


def names(workspace: Workspace) -> set[str]:
    return {record.name for record in read_records(workspace.channel)}


def builder(workspace: Workspace, machine: Machine | None = None) -> Builder:
    profile = workspace.stack().select(None)
    fetch(workspace, profile, SilentProgress())
    return Builder(workspace, profile, SilentProgress(), jobs=2, machine=machine)


def need(workspace: Workspace, recipe: str, words: str) -> None:
    file = workspace.recipes / recipe / "recipe.yaml"
    file.write_text(f"{file.read_text()}extra:\n  needs:\n    - {words}\n")


def test_only_builds_what_is_named_and_keeps_the_rest(tiny: Workspace) -> None:
    builder(tiny).run(only=["tiny-lib"])
    assert names(tiny) == {"tiny-lib"}
    builder(tiny).run(only=["tiny-device*"])
    assert names(tiny) == {"tiny-lib", "tiny-device-gfx942", "tiny-device-gfx950"}


def test_up_to_builds_what_a_package_is_built_with_and_what_it_needs(tiny: Workspace) -> None:
    builder(tiny).run(up_to=["tiny-device-gfx942"])
    assert names(tiny) == {"tiny-device-gfx942", "tiny-tool", "tiny-lib"}


def test_a_name_that_is_none_is_a_sentence_with_a_guess(tiny: Workspace) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tiny-tool'"):
        builder(tiny).run(only=["tiny-tol"])
    done = run_assembler("build", "--only", "tiny-tol", cwd=tiny.root)
    assert done.returncode == 3
    assert "did you mean" in done.stderr


def test_a_need_fails_before_anything_starts(tiny: Workspace) -> None:
    need(tiny, "tiny-lib", "programs: [hipcc-of-no-machine]")
    with pytest.raises(
        MissingToolError, match="tiny-lib cannot be built here: this machine has no"
    ):
        builder(tiny).run()
    assert not tiny.channel.exists() or names(tiny) == set()
    assert not list((tiny.build / "logs").glob("**/*.log"))


def test_the_rest_goes_on_with_keep_going(tiny: Workspace) -> None:
    need(tiny, "tiny-lib", "programs: [hipcc-of-no-machine]")
    done = run_assembler("build", "--keep-going", cwd=tiny.root)
    assert done.returncode == 6
    assert "skipped: tiny-lib" in done.stderr
    assert "hipcc-of-no-machine on PATH" in done.stderr
    assert {"tiny-device-gfx942", "tiny"} <= names(tiny)
    assert not names(tiny) & {"tiny-lib", "tiny-tool"}


def test_list_says_what_is_lacking(tiny: Workspace) -> None:
    need(tiny, "tiny-lib", "rocm: true")
    done = run_assembler("build", "--list", "--json", cwd=tiny.root, env={"ROCM_HOME": ""})
    rows = {row["package"].split("/")[1].split("-1.0")[0]: row
            for row in json.loads(done.stdout)["packages"]}  # fmt: skip
    assert rows["tiny-lib"]["state"] == "lacking"
    assert "no ROCm root" in rows["tiny-lib"]["lacks"]
    assert rows["tiny"]["state"] == "build"


def test_builds_that_fill_the_machine_run_one_after_the_other(tiny: Workspace) -> None:
    """Two builds that want all the memory each write when they run; their times never overlap."""
    folder = tiny.root / "turns"
    folder.mkdir()
    for recipe in ("tiny-device", "tiny-lib"):
        file = tiny.recipes / recipe / "recipe.yaml"
        need(tiny, recipe, "memory: 6")
        script = f'    - test "$(ls {folder})" = "" && touch {folder}/x; sleep 0.2; rm {folder}/x\n'
        text = file.read_text()
        assert "  script:\n" in text
        file.write_text(text.replace("  script:\n", f"  script:\n{script}", 1))
    here = Machine.here()
    builder(tiny, Machine(8, 8 * GB, here.path, None)).run()
    assert {"tiny-lib", "tiny-device-gfx942", "tiny-device-gfx950"} <= names(tiny)


def test_builds_are_told_how_many_compilers_may_run(tiny: Workspace) -> None:
    need(tiny, "tiny-lib", "cpus: 16")
    file = tiny.recipes / "tiny-lib" / "recipe.yaml"
    check = '    - test "$MAX_JOBS $CMAKE_BUILD_PARALLEL_LEVEL" = "3 3"\n'
    file.write_text(file.read_text().replace("  script:\n", f"  script:\n{check}", 1))
    here = Machine.here()
    builder(tiny, Machine(3, 8 * GB, here.path, None)).run(only=["tiny-lib"])
    assert names(tiny) == {"tiny-lib"}


WHEEL = """
[[wheel]]
kind = "pypi"
name = "six-of-one"
version = "1.0"
file = "six_of_one-1.0-py3-none-any.whl"
sha256 = "{digest}"
size = 1
conda_name = "six-of-one"
"""


def test_while_wheels_are_not_fetched_nothing_is_removed(tiny: Workspace) -> None:
    """A fresh clone with a full channel: what the wheels' packages are called is not known yet."""
    builder(tiny).run()
    stack = tiny.root / "stack.toml"
    text = stack.read_text().replace('"atom-device", "tiny"]', '"atom-device"]')
    stack.write_text(text)
    done = run_assembler("build", "--list", cwd=tiny.root)
    assert "remove      noarch/tiny-1.0" in done.stdout
    stack.write_text(
        text.replace("variants = [", 'wheels = "recipes/wheels/tiny.toml"\nvariants = [', 1)
    )
    wheels = tiny.recipes / "wheels" / "tiny.toml"
    wheels.parent.mkdir()
    wheels.write_text(WHEEL.format(digest="0" * 64))
    done = run_assembler("build", "--list", cwd=tiny.root)
    assert done.returncode == 0, done.stderr
    assert "remove " not in done.stdout
    assert done.stdout.endswith("1 wheel is not fetched yet: run `assembler fetch`\n")
    done = run_assembler("build", "--list", "--json", cwd=tiny.root)
    found = json.loads(done.stdout)
    assert (found["stale"], found["unfetched"]) == ([], ["six-of-one"])
    assert run_assembler("build", "--list", "--only", "six*", cwd=tiny.root).returncode == 0
    done = run_assembler("build", "--list", "--only", "six-of-tow", cwd=tiny.root)
    assert done.returncode == 3
    assert "did you mean 'six-of-one'" in done.stderr
    # What is asked for by name is fetched, and nothing is removed when that fails.
    before = names(tiny)
    done = run_assembler("build", "--only", "six*", "--offline", cwd=tiny.root)
    assert done.returncode == 5, done.stderr
    assert "six_of_one" in done.stderr
    assert names(tiny) == before
