"""Pin files written by program: entries replaced or completed, comments and order kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assembler.errors import ConfigError
from assembler.sources.entries import parse, same_artefact
from assembler.sources.pins import Pin

# The order in which keys are written; ``why`` last, as people write it.
KEYS = (
    "kind", "name", "version", "file", "sha256", "size", "url",
    "suite", "architecture", "commit", "submodules", "index", "target", "when", "why",
)  # fmt: skip


def replace_pins(path: Path, table: str, pins: Mapping[str, Pin]) -> None:
    """Write new values into the entries of ``[[table]]`` that have these pins' names.

    Keys that are there keep their place and their comments; new ones are added. The file is
    replaced by one rename.
    """
    import tomlkit
    from tomlkit.items import Table

    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    for entry in document.get(table, []):
        pin = pins.get(str(entry.get("name")))
        when = {str(axis): str(value) for axis, value in entry.get("when", {}).items()}
        if pin is None or not isinstance(entry, Table) or when != dict(pin.when):
            continue
        for key, value in values_of(pin).items():
            if key not in entry or entry[key] != value:
                entry[key] = value
    _replace(path, tomlkit.dumps(document))


def write_targets(path: Path, table: str, pins: Iterable[Pin]) -> None:
    """Write the pins of single targets into targets.toml, beside those that are there."""
    import tomlkit

    kept: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        kept = {name: list(entries) for name, entries in parse(path).items()}
    entries = kept.setdefault(table, [])
    for pin in pins:
        new = values_of(pin)
        entries[:] = [one for one in entries if not same_artefact(one, new)] + [new]
    text = "# Written by `assembler pin`: the artefacts of single GPU targets; do not edit.\n"
    for name in sorted(kept):
        for entry in sorted(kept[name], key=lambda one: (one["name"], str(one.get("when")))):
            text += f"\n[[{name}]]\n"
            for key, value in entry.items():
                inline = tomlkit.inline_table()
                if isinstance(value, dict):
                    inline.update(value)
                text += f"{key} = {tomlkit.item(inline if inline else value).as_string()}\n"
    _replace(path, text)


def values_of(pin: Pin) -> dict[str, Any]:
    """Return what is written of a pin, in the order of the file's keys."""
    found: dict[str, Any] = {}
    for key in KEYS:
        value = getattr(pin, key)
        if value not in (None, "", ()):
            plain = list(value) if isinstance(value, tuple) else value
            found[key] = dict(value) if key == "when" else plain
    return found


def _replace(path: Path, text: str) -> None:
    try:
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except PermissionError:
        raise ConfigError(
            f"{path} cannot be written, and pins in it have moved",
            remedy="make it writable, or use `--locked` to be told which",
        ) from None
