from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assembler.build.keys import SourceFile, explain
from assembler.build.normal import Stamp
from assembler.build.plan import BuildPlan, make_plan
from assembler.build.recipes import Recipe, Rendered
from assembler.errors import BuildError


def rendered(
    name: str,
    *,
    host: tuple[str, ...] = (),
    run: tuple[str, ...] = (),
    subdir: str = "noarch",
    build: str = "h0000000_0",
    **variant: str,
) -> Rendered:
    return Rendered(
        recipe=Recipe(name, Path(name), Path(name)),
        file=Path(name),
        name=name,
        version="1.0",
        build=build,
        number=0,
        subdir=subdir,
        variant=variant,
        host=host,
        run=run,
    )


def plan(
    *items: Rendered,
    inputs: dict[str, dict[str, Any]] | None = None,
    channel: dict[str, dict[str, Any]] | None = None,
    sources: dict[str, tuple[SourceFile, ...]] | None = None,
) -> BuildPlan:
    default = {item.recipe.name: {"recipe": {"build.sh": "a"}} for item in items}
    return make_plan(
        items,
        profile="test",
        recipe_inputs=default | (inputs or {}),
        sources=sources or {},
        gfx_targets={},
        channel=channel or {},
    )


def published(found: BuildPlan) -> dict[str, dict[str, Any]]:
    return {item.path: {"input_key": item.key, "inputs": item.inputs} for item in found.packages}


CHAIN = (rendered("lib"), rendered("tool", host=("lib",)), rendered("other"))


def test_everything_is_built_at_first_and_nothing_afterwards() -> None:
    first = plan(*CHAIN)
    assert {item.why for item in first.packages} == {"not in the channel"}
    assert not plan(*CHAIN, channel=published(first)).todo


def test_a_changed_script_rebuilds_its_package_and_what_is_built_with_it() -> None:
    first = plan(*CHAIN)
    changed = {"lib": {"recipe": {"build.sh": "b"}}}
    second = plan(*CHAIN, inputs=changed, channel=published(first))
    assert {item.rendered.name: item.why for item in second.todo} == {
        "lib": "changed recipe: build.sh",
        "tool": "changed host: lib",
    }
    assert second.stale == tuple(
        sorted(item.path for item in first.packages if item.rendered.name in {"lib", "tool"})
    )


def test_a_changed_source_is_a_changed_file_name() -> None:
    old = plan(rendered("lib"), sources={"lib": (SourceFile("a.whl", "1" * 64, 5),)})
    new = plan(rendered("lib"), sources={"lib": (SourceFile("a.whl", "2" * 64, 5),)})
    assert old.packages[0].path != new.packages[0].path


def test_waves_respect_host_requirements_and_put_the_largest_first() -> None:
    sources = {
        "lib": (SourceFile("s", "1" * 64, 1),),
        "other": (SourceFile("b", "2" * 64, 9),),
    }
    steps = plan(*CHAIN, sources=sources).waves()
    assert [[item.rendered.name for item in step] for step in steps] == [["other", "lib"], ["tool"]]


def test_a_cycle_is_an_error_that_names_its_members() -> None:
    with pytest.raises(BuildError, match="a, b need each other"):
        plan(rendered("a", host=("b",)), rendered("b", host=("a",)))


def test_packages_of_another_profile_or_origin_are_never_stale() -> None:
    channel = {
        "noarch/foreign-1-0.conda": {},
        "noarch/theirs-1-0.conda": {"inputs": {"profile": "rocm"}, "input_key": "0"},
        "noarch/gone-1-0.conda": {"inputs": {"profile": "test"}, "input_key": "0"},
    }
    assert plan(rendered("lib"), channel=channel).stale == ("noarch/gone-1-0.conda",)


def test_the_builds_of_one_recipe_are_told_apart() -> None:
    found = plan(
        rendered("sel", build="gfx942_h0000000_0", gfx_target="gfx942"),
        rendered("sel", build="gfx950_h1111111_0", gfx_target="gfx950"),
    )
    assert len({item.path for item in found.packages}) == 2
    assert all(
        item.build.startswith(item.rendered.variant["gfx_target"]) for item in found.packages
    )


def test_the_build_string_carries_the_key() -> None:
    stamp = Stamp("abcdef0" + "1" * 57, {})
    assert stamp.build_string("py311_h0123456_3") == "py311_habcdef0_3"
    assert stamp.build_string("pyh0123456_0") == "pyhabcdef0_0"


def test_explanations_name_what_changed() -> None:
    assert explain(None, {}) == "not in the channel"
    assert explain({"gfx": ["gfx942"]}, {"gfx": ["gfx942", "gfx950"]}) == "changed gfx"
    assert explain({"a": 1}, {"a": 1}) == "its file is gone"


ABI = ("numbers", "python_abi 3.11.* *_cp311")
MODULES = (
    rendered("array", run=ABI, subdir="linux-64"),
    rendered("numbers", run=("python",), host=("tool",)),
    rendered("plain", subdir="linux-64"),
    rendered("python", subdir="linux-64"),
    rendered("tool", run=ABI),
)


def test_what_python_compiles_comes_after_it_and_has_its_key() -> None:
    found = {item.rendered.name: item for item in plan(*MODULES).packages}
    assert [name for name, item in found.items() if item.python] == ["python", "array"]
    assert found["array"].after == ("python",)
    assert found["array"].python == (found["python"].path,)
    assert found["array"].inputs["python"] == found["python"].key
    assert (found["python"].inputs["python"], found["python"].after) == ("itself", ())
    assert found["python"].is_python
    assert not found["array"].is_python
    assert "python" not in found["tool"].inputs


def test_what_python_needs_to_run_comes_first_and_is_left_uncompiled() -> None:
    libraries = (
        rendered("python", run=("__glibc >=2.36", "libz"), subdir="linux-64"),
        rendered("libz", run=("python_abi",), subdir="linux-64"),
    )
    found = {item.rendered.name: item for item in plan(*MODULES[:1], *libraries).packages}
    assert found["array"].after == ("libz", "python")
    assert found["array"].python == (found["libz"].path, found["python"].path)
    assert not found["libz"].python
    assert not found["python"].python


def test_a_profile_whose_python_comes_from_elsewhere_compiles_nothing() -> None:
    found = plan(*(item for item in MODULES if item.name != "python")).packages
    assert not any(item.python or "python" in item.inputs for item in found)


def test_a_changed_python_rebuilds_what_it_compiled() -> None:
    first = plan(*MODULES)
    changed = {"python": {"recipe": {"build.sh": "b"}}}
    second = plan(*MODULES, inputs=changed, channel=published(first))
    assert {item.rendered.name: item.why for item in second.todo} == {
        "python": "changed recipe: build.sh",
        "array": "changed python",
    }
    (alone,) = second.select(["array"], ()).todo
    assert alone.lacks.startswith("the python that compiles its modules is not in the channel")
    assert not any(item.lacks for item in second.select(["array", "python"], ()).todo)
    assert {item.rendered.name for item in second.select((), ["array"]).todo} == {"array", "python"}
