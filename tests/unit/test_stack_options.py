"""A profile, however it was chosen, has options that choose it again."""

from __future__ import annotations

import pytest

from assembler.workspace import Workspace
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "variants", "flavour", "words"),
    [
        ("cpu", {}, None, ["--profile", "cpu"]),
        ("cpu", {}, "debug", ["--profile", "cpu", "--flavour", "debug"]),
        ("rocm", {"rocm": "7.2"}, None, ["--profile", "rocm"]),
        (
            "rocm",
            {"mori_build": "source", "rocm": "10.0"},
            "debug",
            ["--profile", "rocm", "--variant", "rocm=10.0", "--variant", "mori_build=source",
             "--flavour", "debug"],
        ),
    ],
)  # fmt: skip
def test_options_choose_the_same_again(
    name: str, variants: dict[str, str], flavour: str | None, words: list[str]
) -> None:
    stack = Workspace.at(ROOT).stack()
    profile = stack.select(name).with_variants(variants).with_flavour(flavour)
    assert list(stack.options(profile)) == words


def test_the_order_of_choices_does_not_name_a_stack() -> None:
    rocm = Workspace.at(ROOT).stack().select("rocm")
    one = rocm.with_variants({"rocm": "10.0", "mori_build": "source"})
    assert one == rocm.with_variants({"mori_build": "source", "rocm": "10.0"})
