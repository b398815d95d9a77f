"""Triton: the driver's helper module, and the kernels.

``hip_utils`` is C source that Triton compiles once with the machine's C compiler and keeps in its
cache; its key takes in the path of libamdhip64, the prefix, and what file(1) says of Python, so a
cache made elsewhere is missed (upstream: triton/backends/amd/driver.py, runtime/build.py). Kernels
are compiled by LLVM inside libtriton: no program is needed, but it takes time at the first request
unless TRITON_CACHE_DIR holds them for the target.
"""

from __future__ import annotations

from assembler.verify.jit.rules import rules
from assembler.verify.jit.units import (
    Unit,
    environment,
    find_program,
    missing_needs,
    package_folders,
    processors_of,
)
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree

SYSTEM = "triton"
DRIVER = "triton/backends/amd/driver.py"
COMPILER = "triton/backends/amd/compiler.py"
HELPER = "hip_utils"
CACHE = "TRITON_CACHE_DIR"


def find(tree: Tree, policy: Policy) -> tuple[Unit, ...]:
    """Return the units of each Triton with an AMD backend."""
    units: list[Unit] = []
    for folder in package_folders(tree, DRIVER):
        start = f"{folder}/" if folder else ""
        if HELPER.encode() in tree.read(start + DRIVER):
            units.append(_helper(tree))
        units.append(_kernels(tree, policy, start))
    return tuple(units)


def _cached(tree: Tree, end: str) -> tuple[str, ...]:
    folder = environment(tree).get(CACHE, "").strip("/")
    if not folder:
        return ()
    return tuple(entry.path for entry in tree.under(folder) if entry.name.endswith(end))


def _helper(tree: Tree) -> Unit:
    table = rules()
    built = [path for path in _cached(tree, ".so") if HELPER in path.rpartition("/")[2]]
    base = {"system": SYSTEM, "name": HELPER, "link": table.systems[SYSTEM].link}
    if built:
        file_tool = "with" if find_program(tree, "file") else "without"
        return Unit.model_validate(
            base
            | {
                "verdict": "prebuilt",
                "why": f"{built[0]}, found again only under the same prefix and libamdhip64 path "
                f"and {file_tool} file(1), as when it was made",
            }
        )
    missing = missing_needs(tree, table.needs_of(SYSTEM))
    return Unit.model_validate(
        base
        | {
            "verdict": "cannot" if missing else "compiles",
            "why": "the AMD driver compiles it when a GPU is first used; "
            + (f"{CACHE} holds none" if environment(tree).get(CACHE) else f"{CACHE} is not set"),
            "missing": missing,
        }
    )


def _kernels(tree: Tree, policy: Policy, start: str) -> Unit:
    table = rules()
    cached = _cached(tree, ".hsaco")
    present = {name for path in cached for name in processors_of(tree, path)}
    lacking = tuple(target for target in policy.targets if target not in present)
    base = {"system": SYSTEM, "name": "kernels", "link": table.systems[SYSTEM].link}
    if cached and not lacking:
        why = f"{len(cached)} code objects in {CACHE}; kernels beyond these compile in process"
        return Unit.model_validate(base | {"verdict": "prebuilt", "why": why})
    # Triton before 3.5 starts ld.lld for the last step, later ones link inside libtriton.
    in_process = (
        b"link_hsaco" in tree.read(start + COMPILER) if tree.exists(start + COMPILER) else False
    )
    missing: tuple[str, ...] = ()
    if not in_process:
        missing = missing_needs(tree, tuple(need for need in table.need if need.id == "ld.lld"))
    return Unit.model_validate(
        base
        | {
            "verdict": "cannot" if missing else "compiles",
            "why": "every kernel at its first request, by LLVM inside libtriton"
            if not cached
            else f"{CACHE} holds kernels for {', '.join(sorted(present))}",
            "missing": missing,
            "targets_missing": lacking if cached else (),
        }
    )
