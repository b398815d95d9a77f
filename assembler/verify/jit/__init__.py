"""What will compile at the first request: one module a system, all giving the same kind of unit."""

from __future__ import annotations

from assembler.verify.jit import aiter_modules, cpp_itfs, flydsl, mori, triton
from assembler.verify.jit.units import Unit, Verdict
from assembler.verify.policy import Policy
from assembler.verify.tree import Tree


def find_units(tree: Tree, policy: Policy) -> tuple[Unit, ...]:
    """Return the units of every system that the tree holds."""
    return (
        *aiter_modules.find(tree, policy),
        *cpp_itfs.find(tree),
        *triton.find(tree, policy),
        *flydsl.find(tree),
        *mori.find(tree, policy),
    )


__all__ = ["Unit", "Verdict", "find_units"]
