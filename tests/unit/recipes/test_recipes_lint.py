"""Recipes name no GPU target, no index, no branch and no dead switch; patches say why."""

from __future__ import annotations

import shutil

import pytest

from assembler.build.lint import lint, switches
from assembler.workspace import Workspace
from tests.conftest import ROOT

HOST = ".".join(("pypi", "org"))


def rules(workspace: Workspace) -> list[str]:
    return [fault.rule for fault in lint(workspace)]


def test_the_recipes_have_no_fault() -> None:
    assert list(map(str, lint(Workspace.at(ROOT)))) == []


@pytest.fixture
def clean(tiny: Workspace) -> Workspace:
    shutil.rmtree(tiny.recipes / "tiny-device")  # it makes code for its targets by their names
    assert rules(tiny) == []
    return tiny


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("# for gfx942 only", "gfx-name"),
        (f"# see https://{HOST}/project/x", "index-host"),
        ("# pip install --index-url https://download.pytorch.org/whl/rocm7.2", "index-host"),
        ("# git clone https://github.com/ROCm/aiter", "moving-source"),
        ("# https://github.com/ROCm/aiter.git@main", "moving-source"),
        ("# https://github.com/x/y/releases/latest/download/z", "moving-source"),
    ],
)
def test_faulty_lines_are_found_with_their_place(clean: Workspace, line: str, rule: str) -> None:
    recipe = clean.recipes / "tiny" / "recipe.yaml"
    recipe.write_text(f"{line}\n{recipe.read_text()}")
    [fault] = lint(clean)
    assert (fault.path, fault.line, fault.rule) == ("recipes/tiny/recipe.yaml", 1, rule)


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        ("export ATOM_CK_FREE=1", "dead-switch"),
        ("PREBUILD_TRITON_ARCHS=x make", "dead-switch"),
        ("export SOME_NEW_SWITCH=1", "unknown-switch"),
    ],
)
def test_switches_that_nothing_reads_are_found(clean: Workspace, script: str, rule: str) -> None:
    recipe = clean.recipes / "tiny" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("build:\n", f"build:\n  script: [{script!r}]\n"))
    assert rules(clean) == [rule]


def test_an_images_environment_is_checked_too(clean: Workspace) -> None:
    stack = clean.root / "stack.toml"
    stack.write_text(
        stack.read_text().replace('LANG = "C', 'AITER_FORCE_TRITON_ATTN = "1"\nLANG = "C')
    )
    assert rules(clean) == ["dead-switch"]


def test_a_patch_says_why_where_and_until_when(clean: Workspace) -> None:
    patch = clean.recipes / "tiny" / "patches" / "0001-x.patch"
    patch.parent.mkdir()
    body = "\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    patch.write_text(f"why: it fails\nupstream: none\n{body}")
    assert rules(clean) == ["patch-header"]
    patch.write_text(f"why: it fails\nupstream: none\ndrop when: x 2.0\n{body}")
    assert rules(clean) == []


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ('kind = "git"\nurl = "https://github.com/ROCm/aiter.git"', 0),
        ('kind = "git"\nurl = "https://example.org/aiter.git"', 1),
        ('kind = "git"\nurl = "http://github.com/ROCm/aiter.git"', 1),
        ('kind = "url"\nurl = "https://download.pytorch.org/whl/x.whl"', 0),
        ('kind = "url"\nurl = "https://mirror.example.org/x.whl"', 1),
    ],
)
def test_pins_come_from_known_hosts(clean: Workspace, entry: str, count: int) -> None:
    (clean.recipes / "tiny" / "sources.toml").write_text(f'[[tiny]]\nname = "x"\n{entry}\n')
    assert rules(clean) == ["pin-host"] * count


def test_targets_of_single_artefacts_stand_in_the_generated_file_alone(clean: Workspace) -> None:
    text = '[[tiny]]\nname = "x-gfx942"\nkind = "pypi"\n'
    (clean.recipes / "tiny" / "targets.toml").write_text(text)
    assert rules(clean) == []
    (clean.recipes / "tiny" / "sources.toml").write_text(text)
    assert rules(clean) == ["gfx-name"]


def test_no_switch_is_both_known_and_dead() -> None:
    known, never = switches()
    assert not set(known) & set(never)
    assert all(known.values())
    assert all(never.values())
