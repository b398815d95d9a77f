"""The plot of a result: seconds and compressed sizes, ours and others'. Same result, same SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

OURS, THEIRS, LEAST = "#c8102e", "#8a8d91", "#4a6fa5"
Bar = tuple[str, float, str]


def seconds(figures: Mapping[str, Any]) -> list[Bar]:
    """Return name, seconds and colour of every way that was measured."""
    bars: list[Bar] = []
    if found := figures.get("repeated"):
        bars.append(("nothing changed", median(found["nothing_seconds"]), OURS))
        bars.append(("one package changed", median(found["changed_seconds"]), OURS))
    if found := figures.get("assembly"):
        bars.append(("tar, zstd, SHA-256", median(found["tar_seconds"]), LEAST))
        bars.append(("assembler, nothing cached", median(found["seconds"]), OURS))
    return bars + _ways(figures, "seconds")


def sizes(figures: Mapping[str, Any]) -> list[Bar]:
    """Return name, megabytes and colour of every image that was made."""
    return [("assembler", figures["image_bytes"] / 1e6, OURS)] + [
        (name, count / 1e6, colour) for name, count, colour in _ways(figures, "bytes")
    ]


def _ways(figures: Mapping[str, Any], what: str) -> list[Bar]:
    return [
        (f"Dockerfile, {way}, {kind}", figures[kind][way][what], THEIRS)
        for kind in ("BuildKit", "buildah")
        for way in ("uv", "pip")
        if way in figures.get(kind, {})
    ]


def draw(result: Mapping[str, Any], place: Path) -> None:
    """Write the plot as SVG; SystemExit without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(
            "the plot needs matplotlib: pip install -c constraints.txt -e .[bench]"
        ) from None
    settings: Any = {
        "svg.hashsalt": "assembler",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        panels = (
            ("seconds, to a compressed image (less is better)", seconds(result["figures"]), "%.1f"),
            ("megabytes, compressed (less is better)", sizes(result["figures"]), "%.0f"),
        )
        heights = [len(bars) + 1 for _, bars, _ in panels]
        figure = Figure(figsize=(8, 0.34 * sum(heights) + 0.6), layout="constrained")
        axes = figure.subplots(2, 1, height_ratios=heights)
        for panel, (title, bars, form) in zip(axes, panels, strict=True):
            names = [name for name, _, _ in bars]
            drawn = panel.barh(
                names, [value for _, value, _ in bars], color=[colour for _, _, colour in bars],
                height=0.7,
            )  # fmt: skip
            panel.bar_label(drawn, fmt=form, padding=4)
            panel.invert_yaxis()
            panel.margins(x=0.12)
            panel.set_title(title, loc="left", fontsize=10)
            panel.tick_params(axis="y", length=0)
        figure.savefig(place, format="svg", metadata={"Date": None, "Creator": None})
