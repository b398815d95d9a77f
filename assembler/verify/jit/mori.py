"""MORI: device kernels compiled by hipcc, one unit for each ``.hip`` file of its sources.

The cache (MORI_JIT_CACHE_DIR) has a folder ``<gfx>_<nic>…`` for each target and network card. Up to
1.2.4 the compiler, llvm-link and opt must exist even when the cache has the kernel
(mori/jit/config.py, detect_build_config).
"""

from __future__ import annotations

from assembler.verify.jit.rules import rules
from assembler.verify.jit.units import Unit, environment, missing_needs, package_folders
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

SYSTEM = "mori"
MARKER = "mori/jit/core.py"
SOURCES = "mori/_jit-sources"
CACHE = "MORI_JIT_CACHE_DIR"


def find(tree: Tree, policy: Policy) -> tuple[Unit, ...]:
    """Return one unit for each kernel file of each installed MORI."""
    units: list[Unit] = []
    for folder in package_folders(tree, MARKER):
        start = f"{folder}/{SOURCES}".lstrip("/")
        units += [
            _judge(tree, policy, entry.name.removesuffix(".hip"))
            for entry in tree.under(start)
            if entry.kind == "file" and entry.name.endswith(".hip")
        ]
    return tuple(units)


def _judge(tree: Tree, policy: Policy, kernel: str) -> Unit:
    table = rules()
    env = environment(tree)
    folder = env.get(CACHE, "").strip("/")
    cached = [entry.path for entry in tree.under(folder)] if folder else []
    lacking = tuple(
        target
        for target in policy.targets
        if not any(
            f"/{target}_" in path and path.rpartition("/")[2].startswith(kernel) for path in cached
        )
    )
    missing = missing_needs(tree, table.needs_of(SYSTEM))
    wrong = next(
        (s for s in table.switches(SYSTEM, kernel) if s.effect == "wrong-target" and s.is_set(env)),
        None,
    )
    base = {"system": SYSTEM, "name": kernel, "link": table.systems[SYSTEM].link}
    if wrong is not None:
        why = f"{wrong.variable}={env[wrong.variable]}: {wrong.why}"
        missing = (*missing, "one target in MORI_GPU_ARCHS")
        return Unit.model_validate(
            base | {"verdict": "cannot", "why": why, "missing": missing, "link": wrong.link}
        )
    if cached and not lacking and not missing:
        return Unit.model_validate(base | {"verdict": "prebuilt", "why": f"in {CACHE}"})
    why = "cached, but MORI wants its compiler to exist all the same"
    if not cached or lacking:
        why = f"{CACHE} {'lacks it' if folder else 'is not set'}"
    return Unit.model_validate(
        base
        | {
            "verdict": "cannot" if missing else "compiles",
            "why": why,
            "missing": missing,
            "targets_missing": lacking if cached else (),
        }
    )
