"""The image engine's table: targets beside what a result reached, for a terminal and for the docs.

A result is what `benchmarks.image` writes. Everything here is a function of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.process import ROOT

FOLDER = "docs/explanation"
PAGE, DATA, PLOT = "performance.md", "performance-image.json", "performance-image.svg"
BEGIN = "<!-- made by `python -m benchmarks image --write`: begin -->"
END = "<!-- made by `python -m benchmarks image --write`: end -->"
MEMORY = 300_000_000
FASTER = {"pip": 5.0, "uv": 4.0}


@dataclass(frozen=True)
class Row:
    """One figure. ``ratio`` is of the two sides, or of the value to its limit; None: not measured.

    ``met`` is None when nothing was measured, and ``reached`` then says why.
    """

    figure: str
    target: str
    reached: str
    ratio: float | None = None
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The row as text."""
        verdict = {True: "yes", False: "**no**", None: "not measured"}[self.met]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return (self.figure, self.target, self.reached, ratio, verdict)


HEADS = ("figure", "target", "reached", "ratio", "met")


def size(count: float) -> str:
    """Return bytes for people, in powers of ten."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:.{0 if count >= 100 * step else 1}f} {unit}"
    return f"{count:.0f} B"


def rows(result: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the table of a result."""
    figures = result["figures"]
    return (
        _cold(figures),
        *(_dockerfile(figures, kind, way) for kind in ("BuildKit", "buildah") for way in FASTER),
        *_sizes(figures),
        *_repeated(figures),
        _memory(figures),
        _repull(figures),
    )


def _why(figures: Mapping[str, Any], *names: str) -> str:
    missing = figures["missing"]
    return next((missing[name] for name in names if name in missing), "no result")


def _cold(figures: Mapping[str, Any]) -> Row:
    name, target = "cold assembly, to `tar`, `zstd -3` and both SHA-256 sums", "≤ 1.6"
    if "assembly" not in figures:
        return Row(name, target, _why(figures, "assembly"))
    found = figures["assembly"]
    pairs = zip(found["seconds"], found["tar_seconds"], strict=True)
    ratio = median(ours / theirs for ours, theirs in pairs)
    reached = f"{median(found['seconds']):.1f} s, {median(found['tar_seconds']):.1f} s"
    return Row(name, target, reached, ratio, ratio <= 1.6)


def _dockerfile(figures: Mapping[str, Any], kind: str, way: str) -> Row:
    name, least = f"Dockerfile with {way}, {kind}, to cold assembly", FASTER[way]
    found = figures.get(kind, {}).get(way)
    if found is None:
        reached = _why(figures, kind, f"{kind}-{way}", way)
        return Row(name, f"≥ {least:.0f}", reached)
    ratio = found["seconds"] / found["ours"]
    reached = f"{found['seconds']:.1f} s, {found['ours']:.1f} s"
    return Row(name, f"≥ {least:.0f}", reached, ratio, ratio >= least)


def _sizes(figures: Mapping[str, Any]) -> tuple[Row, ...]:
    """As pip compiles, so do we; uv does not, so the like of its image is ours without bytecode."""
    whole, bytecode = figures["image_bytes"], figures["bytecode_bytes"]
    return (
        _size(figures, "compressed size, to the Dockerfile's with pip", "pip", whole),
        _size(figures, "compressed size, to the Dockerfile's with uv (no bytecode)", "uv", whole),
        _size(figures, "the same, less our bytecode", "uv", whole - bytecode),
    )


def _size(figures: Mapping[str, Any], name: str, way: str, ours: int) -> Row:
    """Compare with the smaller of the images that were made in this way."""
    target = "≤ 0.85"
    sizes = [
        figures[kind][way]["bytes"]
        for kind in ("BuildKit", "buildah")
        if way in figures.get(kind, {})
    ]
    if not sizes:
        return Row(name, target, _why(figures, way, "BuildKit", f"BuildKit-{way}", "buildah"))
    ratio = ours / min(sizes)
    return Row(name, target, f"{size(ours)}, {size(min(sizes))}", ratio, ratio <= 0.85)


def _repeated(figures: Mapping[str, Any]) -> tuple[Row, ...]:
    changed, nothing = "one small package changed", "nothing changed, start of the process included"
    targets = "≤ 1 s and that package", "≤ 1 s, nothing rewritten"
    atom = figures.get("repull")
    real = Row("ATOM changed", targets[0], _why(figures, "repull")) if atom is None else _atom(atom)
    if "repeated" not in figures:
        why = _why(figures, "repeated")
        return Row(changed, targets[0], why), real, Row(nothing, targets[1], why)
    found = figures["repeated"]
    package = found["changed_package"].rsplit("-", 2)[0]
    still = found["rewritten_files"]
    last = _within(
        nothing, targets[1], median(found["nothing_seconds"]), f", {still} files rewritten"
    )
    return (
        _within(
            changed, targets[0], median(found["changed_seconds"]),
            f" ({package}, {size(found['changed_bytes'])})",
        ),
        real,
        Row(last.figure, last.target, last.reached, last.ratio, bool(last.met) and still == 0),
    )  # fmt: skip


def _atom(found: Mapping[str, Any]) -> Row:
    """The package itself costs what compileall, tar, zstd and sha256sum take for its files."""
    seconds, package = found["assembly_seconds"], found["package_seconds"]
    reached = f"{seconds:.2f} s, the package alone {package:.2f} s"
    ratio = seconds / (1 + package)
    return Row("ATOM changed", "≤ 1 s and that package", reached, ratio, ratio <= 1)


def _within(name: str, target: str, seconds: float, rest: str) -> Row:
    return Row(name, target, f"{seconds:.2f} s{rest}", seconds, seconds <= 1)


def _memory(figures: Mapping[str, Any]) -> Row:
    name, target = "peak memory, largest process", "≤ 300 MB"
    if "assembly" not in figures:
        return Row(name, target, _why(figures, "assembly"))
    peak = figures["assembly"]["peak_bytes"]
    return Row(name, target, size(peak), peak / MEMORY, peak <= MEMORY)


def _repull(figures: Mapping[str, Any]) -> Row:
    name, target = "bytes a node pulls again after ATOM changed", "ATOM's layer, config, manifest"
    if "repull" not in figures:
        return Row(name, target, _why(figures, "repull"))
    found = figures["repull"]
    layers = ", ".join(found["layers"])
    packages = {text.partition("=")[0] for text in found["packages"]}
    reached = f"{size(found['bytes'])} of {size(found['image_bytes'])} (layers: {layers})"
    met = len(found["layers"]) == 1 and "atom" in packages
    return Row(name, target, reached, found["bytes"] / found["image_bytes"], met)


def about(result: Mapping[str, Any]) -> str:
    """Return what a result was measured on, in one sentence a fact."""
    machine, load = result["machine"], result["load"]
    versions = ", ".join(f"{name} {text}" for name, text in sorted(result["versions"].items()))
    return (
        f"Measured on {result['measured']}, profile `{result['profile']}`: {machine['processor']}, "
        f"{machine['cores']} cores, {size(machine['memory_bytes'])}; {machine['system']}, "
        f"{machine['kernel']}; CPython {machine['python']}, {versions}. "
        f"Load before {load['before'][0]}, after {load['after'][0]}; "
        f"{result['seconds'] / 60:.1f} minutes in all. Medians of {result['rounds']} rounds; the "
        "Dockerfile ways once each, each beside a cold assembly of ours."
    )


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with the facts under it."""
    lines = [
        f"| {' | '.join(HEADS)} |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row.cells)} |" for row in rows(result)),
    ]
    return "\n".join([*lines, "", about(result)])


def text(result: Mapping[str, Any]) -> str:
    """Return the table for a terminal."""
    table = [
        [cell.replace("*", "").replace("`", "") for cell in cells]
        for cells in (HEADS, *(row.cells for row in rows(result)))
    ]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(HEADS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in table
    ]
    return "\n".join([*lines, "", about(result)])


def page(before: str, result: Mapping[str, Any]) -> str:
    """Return the docs page with the table between its marks put anew."""
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{FOLDER}/{PAGE} has lost its marks: {BEGIN} … {END}")
    block = f"{markdown(result)}\n\n![What each way takes, and what comes out]({PLOT})"
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"


def write(result: Mapping[str, Any]) -> None:
    """Write result, plot and table into the docs."""
    from benchmarks import image_plot

    folder = ROOT / FOLDER
    image_plot.draw(result, folder / PLOT)
    (folder / DATA).write_text(json.dumps(result, indent=2) + "\n")
    place: Path = folder / PAGE
    place.write_text(page(place.read_text(), result))
