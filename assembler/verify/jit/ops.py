"""Which Python functions ask for which compiled module: aiter's ``compile_ops`` declarations.

Read from the syntax tree, never imported. The module's name is the decorator's first argument, a
string or a name that the same file sets to a string (the last time before the use). A ``gen_func``
argument means that the name is made from the call's arguments: one module per variant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from assembler.verify.tree import Tree

DECORATOR = "compile_ops"


@dataclass(frozen=True)
class Op:
    """A function that loads a compiled module when it is called."""

    function: str
    module: str
    variants: bool


def find_ops(tree: Tree, package: str) -> tuple[Op, ...]:
    """Return the declarations in every Python file below a package's folder."""
    found: list[Op] = []
    for entry in tree.under(package):
        if entry.kind == "file" and entry.name.endswith(".py"):
            data = tree.read(entry.path)
            if DECORATOR.encode() in data:
                found += parse_ops(data.decode("utf-8", errors="replace"))
    return tuple(found)


def parse_ops(source: str) -> Iterator[Op]:
    """Yield the declarations of one file; a file that is not Python has none."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    names: dict[str, str] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name) and isinstance(statement.value.value, str):
                    names[target.id] = statement.value.value
        elif isinstance(statement, ast.FunctionDef):
            for decorator in statement.decorator_list:
                op = _read(decorator, statement.name, names)
                if op is not None:
                    yield op


def _read(decorator: ast.expr, function: str, names: dict[str, str]) -> Op | None:
    if not isinstance(decorator, ast.Call):
        return None
    called = decorator.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name != DECORATOR:
        return None
    keywords = {word.arg: word.value for word in decorator.keywords if word.arg}
    first = decorator.args[0] if decorator.args else keywords.get("_md_name")
    module = _string(first, names)
    if module is None:
        return None
    return Op(function, module, variants="gen_func" in keywords)


def _string(value: ast.expr | None, names: dict[str, str]) -> str | None:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.Name):
        return names.get(value.id)
    return None
