"""FlyDSL: kernels compiled by MLIR in process and linked by ROCm's ld.lld.

A cache (FLYDSL_RUNTIME_CACHE_DIR, or aiter/jit/flydsl_cache, which aiter sets when it is there)
holds finished ones; with FLYDSL_RUNTIME_RUN_ONLY=1 a kernel that it lacks is an error instead of a
build.
"""

from __future__ import annotations

from assembler.verify.jit.rules import rules
from assembler.verify.jit.units import Unit, environment, missing_needs, package_folders
from assembler.verify.tree import Tree

SYSTEM = "flydsl"
MARKER = "flydsl/compiler/__init__.py"
CACHE = "FLYDSL_RUNTIME_CACHE_DIR"
AITER_CACHE = "aiter/jit/flydsl_cache"


def find(tree: Tree) -> tuple[Unit, ...]:
    """Return the unit of each installed FlyDSL."""
    return tuple(_judge(tree, folder) for folder in package_folders(tree, MARKER))


def _judge(tree: Tree, site: str) -> Unit:
    table = rules()
    env = environment(tree)
    folder = env.get(CACHE, "").strip("/") or f"{site}/{AITER_CACHE}".lstrip("/")
    cached = sum(1 for entry in tree.under(folder) if entry.kind == "file")
    base = {"system": SYSTEM, "name": "kernels", "link": table.systems[SYSTEM].link}
    ahead = next(
        (s for s in table.switches(SYSTEM, "kernels") if s.effect == "ahead" and s.is_set(env)),
        None,
    )
    if ahead is not None and cached:
        why = f"{cached} files in the cache; {ahead.variable}: {ahead.why}"
        return Unit.model_validate(base | {"verdict": "prebuilt", "why": why})
    missing = missing_needs(tree, table.needs_of(SYSTEM))
    why = f"{cached} files in the cache, others compile at their first request"
    if not cached:
        why = "no cache: every kernel compiles at its first request"
    if ahead is not None:
        missing = (*missing, "a kernel cache, which FLYDSL_RUNTIME_RUN_ONLY demands")
    return Unit.model_validate(
        base | {"verdict": "cannot" if missing else "compiles", "why": why, "missing": missing}
    )
