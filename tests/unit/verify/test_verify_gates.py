"""Each gate: a tiny tree that passes, and one that fails for just one reason."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from assembler.verify.findings import Finding, GateResult, Severity
from assembler.verify.gates import compilation, hygiene, loader, shadowing, size
from assembler.verify.policy import Policy, Size, read_policy
from assembler.verify.smoke import ExecRecord, SmokeRun, SmokeRuns
from tests.elf_making import Elf, make_elf
from tests.verify_making import Files, Item, make_tree

COMMON = read_policy("no-such-profile", host_paths=("/builder/home/",))
NEEDY = make_elf(Elf(needed=["libmissing.so"]))
MODERN = make_elf(Elf(needed=["libc.so.6"], wants={"libc.so.6": ["GLIBC_2.38"]}))
LIBC = make_elf(Elf(soname="libc.so.6", defines=["libc.so.6", "GLIBC_2.2.5", "GLIBC_2.36"]))
CLEAN: Files = {
    "opt/atom/bin/python": Item(
        make_elf(Elf(needed=["libc.so.6"], interpreter="/lib64/ld-linux-x86-64.so.2")), mode=0o755
    ),
    "opt/atom/lib/module.py": "print('hello')\n",
    "lib64/ld-linux-x86-64.so.2": Item(make_elf(Elf(soname="ld-linux-x86-64.so.2")), mode=0o755),
    "lib/x86_64-linux-gnu/libc.so.6": LIBC,
    "lib/x86_64-linux-gnu/libgcc_s.so.1": make_elf(Elf(soname="libgcc_s.so.1")),
    "tmp": Item(mode=0o1777),
}
GATES = {
    "no-compilation": compilation.check,
    "hygiene": hygiene.check,
    "loader": loader.check,
    "shadowing": shadowing.check,
    "size": size.check,
}


def judge(
    gate: str, root: Path, files: Files, policy: Policy = COMMON, **options: object
) -> GateResult:
    tree = make_tree(
        root,
        files,
        env={"PATH": "/opt/atom/bin"},
        entrypoint=("/opt/atom/bin/python",),
        prefix="opt/atom",
    )
    return GATES[gate](tree, policy)


def ids(findings: tuple[Finding, ...]) -> list[str]:
    return sorted({finding.id for finding in findings})


@pytest.mark.parametrize("gate", GATES)
def test_a_clean_image_passes_every_gate_without_a_finding(gate: str, tmp_path: Path) -> None:
    result = judge(gate, tmp_path, CLEAN)
    assert (result.verdict, result.findings) == ("pass", ())
    assert result.examined > 0


def pyc(mtime: int, size: int, flags: int = 0) -> bytes:
    return b"\xa7\r\r\n" + struct.pack("<III", flags, mtime, size) + b"code"


BAD: Mapping[str, tuple[str, str, Files]] = {
    "compiler": ("no-compilation", "compiler", {"usr/bin/gcc-12": Item(b"x", mode=0o755)}),
    "hipcc": ("no-compilation", "compiler", {"opt/rocm/bin/hipcc": Item(b"#!", mode=0o755)}),
    "assembler": ("no-compilation", "assembler", {"usr/bin/as": Item(b"x", mode=0o755)}),
    "linker": ("no-compilation", "linker", {"opt/atom/bin/ld.lld": Item(b"x", mode=0o755)}),
    "make": ("no-compilation", "build-tool", {"opt/atom/bin/ninja": Item(b"x", mode=0o755)}),
    "git": ("no-compilation", "version-control", {"usr/bin/git": Item(b"x", mode=0o755)}),
    "pip": ("no-compilation", "package-manager", {"opt/atom/bin/pip3": Item(b"x", mode=0o755)}),
    "header": ("no-compilation", "header", {"opt/atom/include/a.hpp": "x"}),
    "static": ("no-compilation", "static-library", {"opt/atom/lib/liba.a": "x"}),
    "source": ("no-compilation", "source", {"opt/atom/share/a.cu": "x"}),
    "setuid": ("hygiene", "setuid", {"usr/bin/su": Item(b"x", mode=0o4755)}),
    "world": ("hygiene", "world-writable", {"opt/data": Item(b"x", mode=0o666)}),
    "whiteout": ("hygiene", "whiteout-name", {"opt/.wh.gone": "x"}),
    "dangling": ("hygiene", "dangling-link", {"opt/link": Item(target="nowhere")}),
    "escaping": ("hygiene", "escaping-link", {"opt/link": Item(target="../../../etc/passwd")}),
    "fifo": ("hygiene", "special-file", {"opt/pipe": Item(fifo=True)}),
    "cache": ("hygiene", "cache", {"root/.cache/pip/x": "x"}),
    "host": ("hygiene", "host-path", {"opt/a.pc": "prefix=/builder/home/atom"}),
    "needed": ("loader", "not-found", {"opt/atom/lib/a.so": NEEDY}),
    "version": ("loader", "version", {"opt/atom/lib/a.so": MODERN}),
    "interpreter": (
        "loader", "interpreter",
        {"bin/tool": Item(make_elf(Elf(interpreter="/lib/ld-musl.so.1")), mode=0o755)},
    ),
    "damaged": ("loader", "damaged", {"opt/atom/lib/a.so": LIBC[:100]}),
    "dlopen": (
        "loader", "dlopen",
        {"opt/atom/lib/libamdhip64.so.7": make_elf(Elf(soname="libamdhip64.so.7"))},
    ),
    "strict": (
        "shadowing", "copies",
        {
            "opt/atom/lib/librccl.so.1": make_elf(Elf(soname="librccl.so.1")),
            "opt/atom/lib/torch/librccl.so.1": make_elf(Elf(soname="librccl.so.1")),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_one_bad_file_gives_one_error_of_its_kind(case: str, tmp_path: Path) -> None:
    gate, kind, files = BAD[case]
    result = judge(gate, tmp_path, {**CLEAN, **files})
    failing = tuple(finding for finding in result.findings if finding.fails)
    assert result.verdict == "fail"
    assert ids(failing) == [f"{gate}/{kind}"]
    assert all(finding.remedy and finding.what for finding in failing)


@pytest.mark.parametrize("case", BAD)
def test_an_exception_with_a_reason_turns_the_error_into_an_allowed_one(
    case: str, tmp_path: Path
) -> None:
    gate, kind, files = BAD[case]
    extra = tmp_path / "extra.toml"
    extra.write_text(
        f'[[allow]]\nid = "{gate}/{kind}"\nsubject = "*"\nreason = "a test wants it to be here"\n'
    )
    policy = read_policy("no-such-profile", extra=extra, host_paths=("/builder/home/",))
    result = judge(gate, tmp_path / "tree", {**CLEAN, **files}, policy)
    excused = [policy.excuse(finding) for finding in result.findings if finding.id.endswith(kind)]
    assert excused
    assert not any(finding.fails for finding in excused)
    assert all(finding.allowed == "a test wants it to be here" for finding in excused)


# -- hygiene ---------------------------------------------------------------------------------------


def warnings(result: GateResult) -> list[str]:
    return [finding.id for finding in result.findings if finding.severity is Severity.WARNING]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"opt/A.py": "x", "opt/a.py": "y"}, "case-clash"),
        ({"opt/secret": Item(b"x", mode=0o600)}, "unreadable"),
        ({"opt/bin/run": Item(b"#!/bin/bash\n", mode=0o755)}, "dead-script"),
        ({"opt/bin/run": Item(b"#!/bin/env ruby\n", mode=0o755), "bin/env": "x"}, "dead-script"),
        ({"opt/m.py": Item(b"x", mtime=50), "opt/__pycache__/m.cpython-311.pyc": pyc(49, 1)},
         "stale-byte-code"),
        ({"opt/atom/bin/.x-post-link.sh": "x"}, "link-script"),
    ],
)  # fmt: skip
def test_hygiene_warns(files: Files, kind: str, tmp_path: Path) -> None:
    result = judge("hygiene", tmp_path, {**CLEAN, **files})
    assert warnings(result) == [f"hygiene/{kind}"]
    assert result.verdict == "pass"


def test_byte_code_that_matches_or_is_hash_based_is_fresh(tmp_path: Path) -> None:
    files: Files = {
        "opt/m.py": Item(b"x", mtime=50),
        "opt/__pycache__/m.cpython-311.pyc": pyc(50, 1),
        "opt/n.py": Item(b"x", mtime=50),
        "opt/__pycache__/n.cpython-311.pyc": pyc(0, 0, flags=1),
    }
    assert judge("hygiene", tmp_path, {**CLEAN, **files}).findings == ()


def test_modules_that_start_like_programs_and_living_scripts_are_left_alone(tmp_path: Path) -> None:
    files: Files = {
        "opt/atom/lib/python3.11/base64.py": Item(b"#!/usr/bin/python3\n", mode=0o755),
        "opt/atom/bin/tool": Item(b"#!/opt/atom/bin/python\n", mode=0o755),
        "opt/atom/bin/other": Item(b"#!/bin/env python\n", mode=0o755),
        "bin/env": Item(b"x", mode=0o755),
    }
    assert judge("hygiene", tmp_path, {**CLEAN, **files}).findings == ()


@pytest.mark.parametrize("before", [0, (4 << 20) - 9, (4 << 20) - 1])
def test_a_host_path_is_found_wherever_a_piece_ends(before: int, tmp_path: Path) -> None:
    files: Files = {"opt/big": b"x" * before + b"/builder/home/me" + b"y" * 99}
    assert ids(judge("hygiene", tmp_path, {**CLEAN, **files}).findings) == ["hygiene/host-path"]


def test_a_file_of_the_user_himself_is_readable(tmp_path: Path) -> None:
    files: Files = {"home/nonroot/key": Item(b"x", mode=0o600, uid=65532)}
    assert judge("hygiene", tmp_path, {**CLEAN, **files}).findings == ()


def test_two_packages_that_claim_one_file_are_named(tmp_path: Path) -> None:
    def record(name: str) -> str:
        return json.dumps({"name": name, "files": ["lib/module.py"]})

    files: Files = {
        "opt/atom/conda-meta/a-1-0.json": record("a"),
        "opt/atom/conda-meta/b-1-0.json": record("b"),
    }
    (finding,) = judge("hygiene", tmp_path, {**CLEAN, **files}).findings
    assert finding.id == "hygiene/two-owners"
    assert "conda:a and conda:b" in finding.what


def test_a_debian_file_behind_a_merged_usr_has_one_owner(tmp_path: Path) -> None:
    files: Files = {
        "usr/lib/x": "x",
        "lib": Item(target="usr/lib"),
        "var/lib/dpkg/status.d/x.md5sums": "00000000000000000000000000000000  lib/x\n",
        "var/lib/dpkg/status.d/y.md5sums": "00000000000000000000000000000000  usr/lib/x\n",
    }
    (finding,) = judge("hygiene", tmp_path, files).findings
    assert (finding.id, finding.subject) == ("hygiene/two-owners", "usr/lib/x")


def test_links_that_work_only_at_run_time_are_left_alone(tmp_path: Path) -> None:
    files: Files = {
        "etc/mtab": Item(target="/proc/mounts"),
        "dev": Item(),
        "dev/fd": Item(target="/proc/self/fd"),
    }
    assert judge("hygiene", tmp_path, {**CLEAN, **files}).findings == ()


def test_a_package_may_not_have_absolute_links(tmp_path: Path) -> None:
    tree = make_tree(
        tmp_path, {"lib/a": Item(target="/lib/b"), "lib/b": "x"}, kind="conda", prefix=""
    )
    assert ids(hygiene.check(tree, COMMON).findings) == ["hygiene/escaping-link"]


# -- no compilation --------------------------------------------------------------------------------


def test_a_denied_name_counts_only_when_it_can_be_executed(tmp_path: Path) -> None:
    files: Files = {"opt/atom/share/doc/as": "text", "opt/atom/share/git": Item(b"x", mode=0o644)}
    assert judge("no-compilation", tmp_path, {**CLEAN, **files}).findings == ()


def test_folders_of_tests_are_told_and_those_of_license_texts_are_not(tmp_path: Path) -> None:
    site = "opt/atom/lib/python3.11/site-packages"
    files: Files = {
        f"{site}/pkg/tests/a.py": "x",
        f"{site}/pkg-1.dist-info/licenses/vendored/tests/LICENSE": "x",
    }
    result = judge("no-compilation", tmp_path, {**CLEAN, **files})
    assert [(one.id, one.subject) for one in result.findings] == [
        ("no-compilation/test-suite", f"{site}/pkg/tests")
    ]


def test_a_link_to_a_compiler_is_one(tmp_path: Path) -> None:
    files: Files = {"usr/bin/x": Item(b"x", mode=0o755), "usr/bin/cc": Item(target="x")}
    (finding,) = judge("no-compilation", tmp_path, {**CLEAN, **files}).findings
    assert finding.subject == "usr/bin/cc"


def test_in_a_package_the_deny_list_only_warns(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"include/a.h": "x"}, kind="conda", prefix="")
    result = compilation.check(tree, COMMON)
    assert result.verdict == "pass"
    assert ids(result.findings) == ["no-compilation/header"]


def runs(*execs: ExecRecord, untraced: str | None = None) -> SmokeRuns:
    one = SmokeRun(
        id="imports", summary="imports", outcome="pass", exit_code=0, seconds=1, timeout=2,
        output="", execs=execs,
    )  # fmt: skip
    return SmokeRuns(sandbox="bwrap", description="", user="1:1", runs=(one,), untraced=untraced)


def test_a_compiler_that_a_smoke_starts_is_an_error_and_so_is_one_it_looks_for(
    tmp_path: Path,
) -> None:
    tree = make_tree(tmp_path, CLEAN)
    started = runs(
        ExecRecord(path="/opt/atom/bin/python", argv=("python",)),
        ExecRecord(path="/usr/bin/gcc", argv=("gcc", "-c", "x.c")),
        ExecRecord(path="/usr/local/bin/hipcc", argv=("hipcc",), error="ENOENT"),
        ExecRecord(path="/usr/bin/hipcc", argv=("hipcc",), error="ENOENT"),
    )
    found = compilation.check(tree, COMMON, started).findings
    assert [(one.id, one.subject) for one in found] == [
        ("no-compilation/started", "imports: /usr/bin/gcc"),
        ("no-compilation/looked-for", "imports: hipcc"),
    ]


def test_a_quiet_smoke_is_clean_and_its_programs_are_listed(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, CLEAN)
    result = compilation.check(tree, COMMON, runs(ExecRecord(path="/bin/python", argv=())))
    assert result.findings == ()
    assert result.facts["programs"] == ["/bin/python"]


def test_that_nobody_watched_is_said(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, CLEAN)
    assert "no strace" in compilation.check(tree, COMMON, runs(untraced="no strace")).note
    assert "not asked for" in compilation.check(tree, COMMON).note


# -- size ------------------------------------------------------------------------------------------


def test_each_budget_fails_for_itself(tmp_path: Path) -> None:
    files: Files = {
        "opt/atom/lib/big": b"x" * 5000,
        "opt/atom/conda-meta/big-1-0.json": json.dumps({"name": "big", "files": ["lib/big"]}),
    }
    cases = {
        "size/image": Size(image_unpacked=4000),
        "size/image-compressed": Size(image_compressed=2500),
        "size/package": Size(package_unpacked={"big": 4999, "*": 10**9}),
        "size/layers": Size(layers=2),
        "size/layer": Size(layer_compressed=900, layer_compressed_warning=900),
    }
    tree = make_tree(tmp_path, files, prefix="opt/atom", layers=(1000, 1000, 900))
    for identity, budgets in cases.items():
        assert ids(size.check(tree, Policy(size=budgets)).findings) == [identity]
    enough = Size(
        image_unpacked=10**4, image_compressed=2900, package_unpacked={"big": 5000}, layers=3
    )
    assert size.check(tree, Policy(size=enough)).findings == ()


def test_hard_links_are_counted_once(tmp_path: Path) -> None:
    tree = make_tree(tmp_path, {"a": b"x" * 100, "b": Item(hard="a")})
    assert size.check(tree, Policy()).facts["unpacked"] == 100


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_345_678_901, "12.3 GB")]
)
def test_sizes_in_words(count: int, words: str) -> None:
    assert size.words(count) == words


# -- loader in packages ----------------------------------------------------------------------------


def test_a_package_is_held_against_the_glibc_of_the_base(tmp_path: Path) -> None:
    wants = make_elf(Elf(needed=["libm.so.6"], wants={"libm.so.6": ["GLIBC_2.29", "GLIBC_2.38"]}))
    tree = make_tree(tmp_path, {"lib/a.so": wants}, kind="conda", prefix="")
    assert ids(loader.check(tree, Policy(glibc="2.36")).findings) == ["loader/glibc"]
    assert loader.check(tree, Policy(glibc="2.38")).findings == ()


def test_a_search_path_of_the_builder_is_told(tmp_path: Path) -> None:
    leaky = make_elf(Elf(runpath="$ORIGIN:/builder/lib"))
    result = judge("loader", tmp_path, {**CLEAN, "opt/atom/lib/a.so": leaky})
    (finding,) = result.findings
    assert (finding.id, finding.severity, finding.subject) == (
        "loader/foreign-path", Severity.WARNING, "/builder/lib",
    )  # fmt: skip


def test_a_library_for_another_machine_does_not_satisfy_a_need(tmp_path: Path) -> None:
    files: Files = {
        "opt/atom/lib/a.so": make_elf(Elf(needed=["libb.so"], runpath="$ORIGIN")),
        "opt/atom/lib/libb.so": make_elf(Elf(soname="libb.so", machine=183)),
    }
    assert ids(judge("loader", tmp_path, {**CLEAN, **files}).findings) == ["loader/not-found"]


def test_shadowing_says_who_takes_which(tmp_path: Path) -> None:
    copy = make_elf(Elf(soname="libx.so.1"))
    files: Files = {
        "opt/atom/lib/libx.so.1": copy,
        "opt/atom/lib/sub/libx.so.1": copy,
        "opt/atom/lib/one.so": make_elf(Elf(needed=["libx.so.1"], runpath="$ORIGIN")),
        "opt/atom/lib/sub/two.so": make_elf(Elf(needed=["libx.so.1"], runpath="$ORIGIN")),
    }
    (finding,) = judge("shadowing", tmp_path, {**CLEAN, **files}).findings
    assert (finding.id, finding.severity) == ("shadowing/split", Severity.WARNING)
    assert "opt/atom/lib/libx.so.1 (taken by one.so)" in finding.what
    assert "opt/atom/lib/sub/libx.so.1 (taken by two.so)" in finding.what
