"""What a build run did: packages made, packages that failed, what was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from assembler.build.plan import BuildPlan
from assembler.targets import family_of


@dataclass(frozen=True)
class Built:
    """A package that this run made."""

    path: str
    why: str
    seconds: float
    size: int
    left_out: tuple[dict[str, Any], ...]
    parts: tuple[dict[str, Any], ...] = ()


@dataclass
class BuildResult:
    """What a build run did, for which GPU targets."""

    plan: BuildPlan
    gfx_targets: tuple[str, ...] = ()
    built: list[Built] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def unasked(self) -> dict[str, int]:
        """Bytes of device files by target, of targets that nobody asked for: in no package."""
        found: dict[str, int] = {}
        asked = {*self.gfx_targets, *map(family_of, self.gfx_targets)}
        for part in (part for item in self.built for part in item.parts):
            if part["target"] not in asked:
                found[part["target"]] = found.get(part["target"], 0) + part["bytes"]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the result for ``--json``."""
        return {
            "built": [asdict(item) for item in self.built],
            "failed": self.failed,
            "removed": list(self.removed),
            "up_to_date": [item.path for item in self.plan.packages if item.up_to_date],
            "left_out": list(self.plan.left_out),
            "unasked_targets": self.unasked,
            "seconds": round(self.seconds, 1),
        }
