"""aiter's operator modules: which are prebuilt, which will compile, and with what.

Read from the installed package: ``aiter/jit/optCompilerConfig.json`` lists the modules with their
sources and flags, ``compile_ops`` declarations say which functions ask for which, and
``aiter/jit/*.so`` are the prebuilt ones. Source: aiter/jit/core.py of ROCm/aiter.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from assembler.verify.jit.ops import Op, find_ops
from assembler.verify.jit.rules import Switch, rules
from assembler.verify.jit.units import (
    Unit,
    environment,
    estimate,
    installed_version,
    lacking,
    missing_needs,
    package_folders,
)
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

SYSTEM = "aiter"
DISTRIBUTION = "amd-aiter"
CONFIG = "aiter/jit/optCompilerConfig.json"
_CK = re.compile(r"\bCK_DIR\b|\bCK_3RDPARTY_DIR\b|/ck_|py_itfs_ck|ck_tile")
_PLACE = re.compile(r"\{(AITER_CSRC_DIR|AITER_GRADLIB_DIR|CK_DIR|AITER_META_DIR)\}")
_QUOTED = re.compile(r"""^f?(['"])(.*)\1$""", re.DOTALL)


@dataclass(frozen=True)
class Installed:
    """One installed aiter: its site-packages folder, version, modules and declarations."""

    site: str
    version: str | None
    modules: Mapping[str, Mapping[str, Any]]
    ops: Mapping[str, tuple[Op, ...]]
    meta: str


def read_installed(tree: Tree, config: str) -> Installed | None:
    """Read one installed aiter; None when its list of modules is no JSON object."""
    site = posixpath.dirname(posixpath.dirname(posixpath.dirname(config)))
    try:
        modules = json.loads(tree.read(config))
    except ValueError:
        return None
    if not isinstance(modules, dict):
        return None
    by_module: dict[str, list[Op]] = {}
    for op in find_ops(tree, f"{site}/aiter".lstrip("/")):
        by_module.setdefault(op.module, []).append(op)
    return Installed(
        site=site,
        version=installed_version(tree, DISTRIBUTION),
        modules={name: spec for name, spec in modules.items() if isinstance(spec, dict)},
        ops={name: tuple(ops) for name, ops in by_module.items()},
        meta=f"{site}/aiter_meta".lstrip("/"),
    )


def find(tree: Tree, policy: Policy) -> tuple[Unit, ...]:
    """Return one unit for each module that aiter's list or its declarations name."""
    units: list[Unit] = []
    for folder in package_folders(tree, CONFIG):
        installed = read_installed(tree, f"{folder}/{CONFIG}".lstrip("/"))
        if installed is not None:
            names = dict.fromkeys([*installed.modules, *installed.ops])
            units += [_judge(tree, policy, installed, name) for name in names]
    return tuple(units)


def _judge(tree: Tree, policy: Policy, installed: Installed, name: str) -> Unit:
    table = rules()
    ops = installed.ops.get(name, ())
    base: dict[str, Any] = {
        "system": SYSTEM,
        "name": name,
        "link": table.systems[SYSTEM].link,
        "asked_by": tuple(dict.fromkeys(op.function for op in ops)),
        "at_import": table.imported(SYSTEM, name),
    }
    switches, foreign = _switches(tree, installed, name)
    off = next((switch for switch in switches if switch.effect == "off"), None)
    if off is not None:
        why = f"{off.variable}={off.value} in the image's Env: {off.why}"
        return Unit(**base | {"verdict": "not-asked", "why": why, "link": off.link})
    exempt = table.exempt(SYSTEM, name)
    if exempt is not None or not ops:
        why = exempt.why if exempt is not None else "no Python function asks for it"
        return Unit(**base | {"verdict": "not-asked", "why": why})
    rebuild = next((switch for switch in switches if switch.effect == "rebuild"), None)
    built = None if rebuild else _prebuilt(tree, installed, name, switches)
    targets = lacking(tree, built, policy.targets) if built is not None else ()
    if built is not None and not targets and not any(op.variants for op in ops):
        return Unit(**base | {"verdict": "prebuilt", "why": built})
    why = _why(built, targets, rebuild) + foreign
    missing = _missing(tree, installed, name)
    verdict = "cannot" if missing else "compiles"
    return Unit(
        **base
        | estimate(table, SYSTEM, name)
        | {"verdict": verdict, "why": why, "missing": missing, "targets_missing": targets}
    )


def _why(built: str | None, targets: Iterable[str], rebuild: Switch | None) -> str:
    if rebuild is not None:
        return f"{rebuild.variable} is set: {rebuild.why}"
    if built is None:
        return "no prebuilt file"
    if list(targets):
        return f"{built} has no code for {', '.join(targets)}"
    return f"{built} is there, but every variant of the arguments is a module of its own"


def _switches(tree: Tree, installed: Installed, name: str) -> tuple[tuple[Switch, ...], str]:
    """Return the switches in force, and words about those that this version does not know."""
    env = environment(tree)
    is_set = [switch for switch in rules().switches(SYSTEM, name) if switch.is_set(env)]
    known = tuple(switch for switch in is_set if switch.known_to(installed.version))
    foreign = "".join(
        f"; {switch.variable} is set, which aiter knows since {switch.since} only "
        f"(this is {installed.version})"
        for switch in is_set
        if switch not in known
    )
    return known, foreign


def _prebuilt(
    tree: Tree, installed: Installed, name: str, switches: Iterable[Switch]
) -> str | None:
    """Return the file that Python imports for a module, where aiter looks for it."""
    folder = f"{installed.site}/aiter/jit"
    if any(switch.effect == "hidden" for switch in switches):
        folder = environment(tree)["AITER_JIT_DIR"]
    entry = tree.file_at(f"{folder}/{name}.so".lstrip("/"))
    return entry.path if entry is not None else None


def _missing(tree: Tree, installed: Installed, name: str) -> tuple[str, ...]:
    """Return what the image lacks to build a module."""
    spec = installed.modules.get(name)
    if spec is None:
        return (f"an entry in {CONFIG}",)
    more = []
    if str(spec.get("torch_exclude")) != "True":
        more.append("torch-headers")
    if _CK.search(json.dumps(spec)):
        more.append("ck-headers")
    missing = [*missing_needs(tree, rules().needs_of(SYSTEM, *more))]
    absent = [path for path in sources(installed, spec) if not tree.exists(path)]
    if absent:
        count = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        missing.append(f"its source {absent[0]}{count}")
    return tuple(missing)


def sources(installed: Installed, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tree paths of a module's sources, with aiter's folder names put in."""
    places = {
        "AITER_CSRC_DIR": f"{installed.meta}/csrc",
        "AITER_GRADLIB_DIR": f"{installed.meta}/gradlib",
        "CK_DIR": f"{installed.meta}/3rdparty/composable_kernel",
        "AITER_META_DIR": installed.meta,
    }
    found = []
    for text in spec.get("srcs", ()):
        quoted = _QUOTED.match(str(text))
        path = _PLACE.sub(lambda place: places[place[1]], quoted[2] if quoted else str(text))
        if "{" not in path:
            found.append(path)
    return tuple(found)
