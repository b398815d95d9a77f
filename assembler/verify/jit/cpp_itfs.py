"""aiter's second system: C++ templates rendered and compiled by make and hipcc on the request path.

Every Python file below ``csrc/cpp_itfs`` that calls ``compile_template_op`` is one unit. The result
goes to ``$AITER_ROOT_DIR/build`` (default: below the home folder) and is never part of a wheel;
prebuilding does not cover it (ROCm/aiter#3706).
"""

from __future__ import annotations

from assembler.verify.jit.rules import rules
from assembler.verify.jit.units import Unit, environment, installed_version, missing_needs
from assembler.verify.tree import Tree

SYSTEM = "cpp_itfs"
FOLDER = "/csrc/cpp_itfs/"
CALL = b"compile_template_op("


def find(tree: Tree) -> tuple[Unit, ...]:
    """Return one unit for each template that can be compiled."""
    table = rules()
    switches = table.switches("aiter", "*")
    version = installed_version(tree, "amd-aiter")
    off = [s for s in switches if s.effect == "off" and s.is_set(environment(tree))]
    active = next((s for s in off if s.known_to(version) and s.modules == ("*",)), None)
    missing = missing_needs(tree, table.needs_of(SYSTEM))
    units: list[Unit] = []
    for entry in tree.files():
        if FOLDER not in f"/{entry.path}" or not entry.name.endswith(".py"):
            continue
        if entry.name in ("utils.py", "torch_utils.py") or entry.name.endswith("_test.py"):
            continue
        if CALL not in tree.read(entry.path):
            continue
        if active is not None:
            verdict, why = "not-asked", f"{active.variable}: {active.why}"
        else:
            verdict = "cannot" if missing else "compiles"
            why = "never prebuilt: built by make and hipcc for each set of arguments"
        units.append(
            Unit(
                system=SYSTEM,
                name=entry.path.rpartition(FOLDER)[2].removesuffix(".py"),
                verdict=verdict,
                why=why,
                link=table.systems[SYSTEM].link,
                missing=missing if verdict == "cannot" else (),
            )
        )
    return tuple(units)
