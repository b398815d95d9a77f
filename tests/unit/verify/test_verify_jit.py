"""What will compile at the first request: each system, each verdict, each variable."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from assembler.verify.findings import Severity
from assembler.verify.gates import jit as gate
from assembler.verify.jit import Unit, find_units
from assembler.verify.jit.ops import Op, parse_ops
from assembler.verify.jit.rules import rules
from assembler.verify.policy import Policy
from assembler.verify.sandbox.probe import program
from tests.verify_making import Files, Item, make_tree

SITE = "opt/atom/lib/python3.11/site-packages"
POLICY = Policy(targets=("gfx942", "gfx950"))
CONFIG = {
    "module_norm": {"srcs": ["f'{AITER_CSRC_DIR}/norm.cu'"], "torch_exclude": "False"},
    "module_enum": {"srcs": ["f'{AITER_CSRC_DIR}/enum.cu'"], "torch_exclude": "True"},
    "module_mha_fwd": {"srcs": [], "blob_gen_cmd": "f'{CK_DIR}/generate.py'"},
    "module_gemm_tune": {"srcs": []},
    "libmha_fwd": {"srcs": []},
}
OPS = """
from ..jit.core import compile_ops
MD_NAME = "module_norm"

@compile_ops(MD_NAME, fc_name="layernorm")
def norm(x): ...

@compile_ops("module_enum")
def enum(x): ...

@core.compile_ops("module_mha_fwd", gen_func=variants)
def mha_fwd(q): ...

@compile_ops("module_gemm_tune")
def tune(x): ...

@other("module_norm")
def unrelated(x): ...
"""
AITER: Files = {
    f"{SITE}/aiter/jit/optCompilerConfig.json": json.dumps(CONFIG),
    f"{SITE}/aiter/ops/norm.py": OPS,
    f"{SITE}/aiter_meta/csrc/norm.cu": "x",
    f"{SITE}/aiter_meta/csrc/enum.cu": "x",
}
EXECUTABLE = Item(program(), mode=0o755)
TOOLS: Files = {
    "opt/rocm/bin/hipcc": EXECUTABLE,
    "opt/rocm/include/hip/hip_runtime.h": "x",
    "usr/bin/ninja": EXECUTABLE,
    "usr/bin/g++": EXECUTABLE,
    "usr/include/python3.11/Python.h": "x",
    f"{SITE}/torch/include/torch/extension.h": "x",
}


def version(number: str) -> Files:
    return {f"{SITE}/amd_aiter-{number}.dist-info/METADATA": "Name: amd-aiter"}


def look(root: Path, files: Files, **env: str) -> dict[str, Unit]:
    tree = make_tree(root, files, env={"PATH": "/usr/bin", **env}, prefix="opt/atom")
    return {f"{unit.system}:{unit.name}": unit for unit in find_units(tree, POLICY)}


def test_declarations_are_parsed_and_not_imported() -> None:
    assert list(parse_ops(OPS)) == [
        Op("norm", "module_norm", variants=False),
        Op("enum", "module_enum", variants=False),
        Op("mha_fwd", "module_mha_fwd", variants=True),
        Op("tune", "module_gemm_tune", variants=False),
    ]
    assert list(parse_ops("def broken(:")) == []


def test_aiter_without_prebuilt_modules_or_tools_cannot(tmp_path: Path) -> None:
    units = look(tmp_path, AITER)
    assert {name: unit.verdict for name, unit in units.items()} == {
        "aiter:module_norm": "cannot",
        "aiter:module_enum": "cannot",
        "aiter:module_mha_fwd": "cannot",
        "aiter:module_gemm_tune": "not-asked",
        "aiter:libmha_fwd": "not-asked",
    }
    norm = units["aiter:module_norm"]
    assert norm.asked_by == ("norm",)
    assert "HIP's compiler hipcc" in norm.missing
    assert "PyTorch's C++ headers" in norm.missing
    assert "PyTorch's C++ headers" not in units["aiter:module_enum"].missing
    assert "composable_kernel's headers" in units["aiter:module_mha_fwd"].missing
    assert norm.seconds == 18


def test_aiter_with_its_tools_compiles(tmp_path: Path) -> None:
    units = look(tmp_path, {**AITER, **TOOLS})
    assert units["aiter:module_norm"].verdict == "compiles"
    assert units["aiter:module_mha_fwd"].missing == ("composable_kernel's headers",)


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    files = {path: data for path, data in {**AITER, **TOOLS}.items() if "norm.cu" not in path}
    assert look(tmp_path, files)["aiter:module_norm"].missing == (
        f"its source {SITE}/aiter_meta/csrc/norm.cu",
    )


def test_a_prebuilt_module_counts_unless_every_variant_is_its_own(tmp_path: Path) -> None:
    built: Files = {
        f"{SITE}/aiter/jit/module_norm.so": "host code alone",
        f"{SITE}/aiter/jit/module_mha_fwd.so": "one variant",
    }
    units = look(tmp_path, {**AITER, **built})
    assert units["aiter:module_norm"].verdict == "prebuilt"
    assert units["aiter:module_mha_fwd"].verdict == "cannot"
    assert "variant" in units["aiter:module_mha_fwd"].why


def code_object(flags: int) -> bytes:
    """Return an AMDGPU ELF file without sections; the flags name its processor."""
    ident = b"\x7fELF\x02\x01\x01\x40\x03" + bytes(7)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, 0, flags, 64, 56, 0, 64, 0, 0)


def test_a_prebuilt_module_for_other_targets_is_none(tmp_path: Path) -> None:
    built: Files = {f"{SITE}/aiter/jit/module_norm.so": code_object(0x54C)}
    unit = look(tmp_path, {**AITER, **built})["aiter:module_norm"]
    assert (unit.verdict, unit.targets_missing) == ("cannot", ("gfx950",))
    assert "no code for gfx950" in unit.why


# -- variables of the image's Env ------------------------------------------------------------------

BUILT: Files = {f"{SITE}/aiter/jit/module_norm.so": "host code", "modules/module_enum.so": "x"}


def test_ck_free_mode_sends_attention_to_triton_from_its_version_on(tmp_path: Path) -> None:
    new = look(tmp_path / "new", {**AITER, **version("0.1.13")}, ENABLE_CK="0")
    old = look(tmp_path / "old", {**AITER, **version("0.1.7.post2.dev18")}, ENABLE_CK="0")
    assert new["aiter:module_mha_fwd"].verdict == "not-asked"
    assert new["aiter:module_norm"].verdict == "cannot"
    assert old["aiter:module_mha_fwd"].verdict == "cannot"
    assert "since 0.1.13 only" in old["aiter:module_mha_fwd"].why


def test_triton_only_mode_asks_for_nothing(tmp_path: Path) -> None:
    files = {**AITER, **version("0.1.16.post6")}
    verdicts = {unit.verdict for unit in look(tmp_path, files, AITER_TRITON_ONLY="1").values()}
    assert verdicts == {"not-asked"}


def test_a_module_folder_of_its_own_hides_the_package_s(tmp_path: Path) -> None:
    units = look(tmp_path, {**AITER, **BUILT, **version("0.1.20")}, AITER_JIT_DIR="/modules")
    assert units["aiter:module_norm"].verdict == "cannot"
    assert units["aiter:module_enum"].verdict == "prebuilt"


def test_rebuilding_ignores_what_is_prebuilt(tmp_path: Path) -> None:
    units = look(tmp_path, {**AITER, **BUILT, **version("0.1.20")}, AITER_REBUILD="2")
    assert units["aiter:module_norm"].verdict == "cannot"
    assert "AITER_REBUILD" in units["aiter:module_norm"].why


# -- the other systems -----------------------------------------------------------------------------


def test_templates_are_never_prebuilt(tmp_path: Path) -> None:
    folder = f"{SITE}/aiter_meta/csrc/cpp_itfs"
    files: Files = {
        f"{folder}/utils.py": "def compile_template_op(): ...",
        f"{folder}/pa/pa_v1.py": "return compile_template_op(x)",
        f"{folder}/pa/pa_test.py": "compile_template_op(x)",
        f"{folder}/pa/plain.py": "x = 1",
    }
    units = look(tmp_path, files)
    assert list(units) == ["cpp_itfs:pa/pa_v1"]
    unit = units["cpp_itfs:pa/pa_v1"]
    assert unit.verdict == "cannot"
    assert "make" in unit.missing


TRITON: Files = {
    f"{SITE}/triton/backends/amd/driver.py": "compile_module_from_src(src, 'hip_utils')",
    f"{SITE}/triton/backends/amd/compiler.py": "amd.link_hsaco(a, b)",
}
CACHE = {"TRITON_CACHE_DIR": "/cache"}


def test_triton_needs_a_c_compiler_once(tmp_path: Path) -> None:
    bare = look(tmp_path / "bare", TRITON)["triton:hip_utils"]
    assert (bare.verdict, bare.missing) == ("cannot", ("a C compiler", "Python.h"))
    able = look(tmp_path / "able", {**TRITON, **TOOLS, "usr/bin/gcc": EXECUTABLE})
    assert able["triton:hip_utils"].verdict == "compiles"
    named = {**TRITON, **TOOLS, "opt/cc/mycc": EXECUTABLE}
    assert look(tmp_path / "named", named, CC="/opt/cc/mycc -v")["triton:hip_utils"].verdict == (
        "compiles"
    )


def test_triton_with_a_cache_is_ahead_for_the_targets_that_it_holds(tmp_path: Path) -> None:
    cache: Files = {
        "cache/AA/hip_utils.cpython-311.so": "x",
        "cache/BB/kernel.hsaco": code_object(0x54C),
    }
    units = look(tmp_path / "half", {**TRITON, **cache}, **CACHE)
    assert units["triton:hip_utils"].verdict == "prebuilt"
    assert "without file(1)" in units["triton:hip_utils"].why
    assert units["triton:kernels"].verdict == "compiles"
    assert units["triton:kernels"].targets_missing == ("gfx950",)
    both: Files = {**cache, "cache/CC/kernel.hsaco": code_object(0x54F)}
    assert look(tmp_path / "both", {**TRITON, **both}, **CACHE)["triton:kernels"].verdict == (
        "prebuilt"
    )


def test_an_old_triton_starts_the_linker(tmp_path: Path) -> None:
    files = {**TRITON, f"{SITE}/triton/backends/amd/compiler.py": "subprocess ld.lld"}
    assert look(tmp_path, files)["triton:kernels"].missing == ("LLVM's ld.lld",)


FLYDSL: Files = {f"{SITE}/flydsl/compiler/__init__.py": "x"}


def test_flydsl_runs_from_its_cache_alone_when_told_to(tmp_path: Path) -> None:
    env = {"FLYDSL_RUNTIME_CACHE_DIR": "/fly", "FLYDSL_RUNTIME_RUN_ONLY": "1"}
    filled: Files = {**FLYDSL, "fly/kernel.pkl": "x"}
    assert look(tmp_path / "a", filled, **env)["flydsl:kernels"].verdict == "prebuilt"
    empty = look(tmp_path / "b", FLYDSL, **env)["flydsl:kernels"]
    assert empty.verdict == "cannot"
    assert any("cache" in missing for missing in empty.missing)


def test_flydsl_needs_rocm_s_linker_and_bitcode(tmp_path: Path) -> None:
    assert look(tmp_path / "a", FLYDSL)["flydsl:kernels"].verdict == "cannot"
    rocm: Files = {"rocm/llvm/bin/ld.lld": EXECUTABLE, "rocm/amdgcn/bitcode/ocml.bc": "x"}
    units = look(tmp_path / "b", {**FLYDSL, **rocm}, ROCM_PATH="/rocm")
    assert units["flydsl:kernels"].verdict == "compiles"


MORI: Files = {
    f"{SITE}/mori/jit/core.py": "x",
    f"{SITE}/mori/_jit-sources/src/ops/kernels/ep_intranode.hip": "x",
    f"{SITE}/mori/_jit-sources/src/ops/kernels/common.hpp": "x",
}
MORI_TOOLS: Files = {
    **TOOLS,
    "opt/rocm/lib/llvm/bin/llvm-link": EXECUTABLE,
    "opt/rocm/lib/llvm/bin/opt": EXECUTABLE,
}


def test_mori_wants_its_compiler_even_for_what_is_cached(tmp_path: Path) -> None:
    cache: Files = {
        f"mori/{target}_mlx5_f0/aa/ep_intranode.hsaco": "x" for target in POLICY.targets
    }
    env = {"MORI_JIT_CACHE_DIR": "/mori"}
    name = "mori:ep_intranode"
    assert list(look(tmp_path / "a", MORI)) == [name]
    assert look(tmp_path / "a2", {**MORI, **cache}, **env)[name].verdict == "cannot"
    assert look(tmp_path / "b", {**MORI, **MORI_TOOLS}, **env)[name].verdict == "compiles"
    full = {**MORI, **MORI_TOOLS, **cache}
    assert look(tmp_path / "c", full, **env)[name].verdict == "prebuilt"
    several = look(tmp_path / "d", full, **env, MORI_GPU_ARCHS="gfx942;gfx950")[name]
    assert several.verdict == "cannot"
    assert "first known name" in several.why


# -- the gate and its rules ------------------------------------------------------------------------


def test_what_cannot_fails_in_an_image_and_is_noted_in_a_package(tmp_path: Path) -> None:
    image = gate.check(make_tree(tmp_path / "i", AITER, prefix="opt/atom"), POLICY)
    assert image.verdict == "fail"
    assert {finding.id for finding in image.findings} == {"jit/cannot"}
    assert image.facts["counts"] == {"aiter": {"cannot": 3, "not-asked": 2}}
    package = gate.check(make_tree(tmp_path / "p", AITER, kind="wheel", prefix=""), POLICY)
    assert package.verdict == "pass"
    assert {finding.severity for finding in package.findings} == {Severity.NOTE}


def test_what_compiles_is_a_warning(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {**TRITON}, env={"PATH": "/bin"}, prefix="opt/atom")
    severities = {
        finding.subject: finding.severity for finding in gate.check(tree, POLICY).findings
    }
    assert severities == {
        "triton:hip_utils": Severity.ERROR, "triton:kernels": Severity.WARNING
    }  # fmt: skip


def test_an_image_without_such_systems_is_passed_over(tmp_path: Path) -> None:
    assert gate.check(make_tree(tmp_path, {}), POLICY).verdict == "skipped"


def test_every_rule_names_its_source_and_known_needs() -> None:
    table = rules()
    known = {need.id for need in table.need}
    for system in table.systems.values():
        assert set(system.needs) <= known
    links = [row.link for row in (*table.switch, *table.tool_only, *table.cost)]
    links += [system.link for system in table.systems.values()]
    assert all(link.startswith("https://github.com/") for link in links)


@pytest.mark.parametrize("data", ["[]", "{", '{"module_x": 3}'])
def test_a_faulty_list_of_modules_is_no_crash(data: str, tmp_path: Path) -> None:
    assert look(tmp_path, {f"{SITE}/aiter/jit/optCompilerConfig.json": data}) == {}
