"""Pin files written by program: entries replaced or completed, comments and order kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assembler.errors import ConfigError
from assembler.sources.pins import Pin

# The order in which keys are written; ``why`` last, as people write it.
KEYS = (
    "kind", "name", "version", "file", "sha256", "size", "url",
    "suite", "architecture", "commit", "submodules", "why",
)  # fmt: skip


def replace_pins(path: Path, table: str, pins: Mapping[str, Pin]) -> None:
    """Write new values into the entries of ``[[table]]`` that have these pins' names.

    Keys that are there keep their place and their comments; new ones are added. The file is
    replaced by one rename.
    """
    import tomlkit
    from tomlkit.items import Table

    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
        for entry in document.get(table, []):
            pin = pins.get(str(entry.get("name")))
            if pin is None or not isinstance(entry, Table):
                continue
            for key in KEYS:
                value = getattr(pin, key)
                if value in (None, "", ()):
                    continue
                plain = list(value) if isinstance(value, tuple) else value
                if key not in entry or entry[key] != plain:
                    entry[key] = plain
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(tomlkit.dumps(document), encoding="utf-8")
        beside.replace(path)
    except PermissionError:
        raise ConfigError(
            f"{path} cannot be written, and pins in it have moved",
            remedy="make it writable, or use `--locked` to be told which",
        ) from None
