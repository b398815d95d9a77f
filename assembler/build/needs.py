"""What a build needs of the machine beside its host packages: programs, a ROCm root, memory.

A recipe says it in ``extra.needs``, a list of tables; one with ``when`` counts only for those
choices of the profile:

    extra:
      needs:
        - when: {aiter_build: ck}
          programs: [hipcc]
          rocm: true
          cpus: 16
          memory: 64            # GB
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assembler.errors import ConfigError

GB = 1 << 30
ROCM_VARIABLES = ("ROCM_HOME", "ROCM_PATH")
ROCM_ROOT = Path("/opt/rocm")
MEMINFO = Path("/proc/meminfo")
CGROUP_MAX = Path("/sys/fs/cgroup/memory.max")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    when: dict[str, str] = {}
    programs: tuple[str, ...] = ()
    rocm: bool = False
    cpus: int = Field(default=1, ge=1)
    memory: float = Field(default=1, gt=0)


@dataclass(frozen=True)
class Needs:
    """Programs on PATH, whether a ROCm root, CPUs, and memory in bytes."""

    programs: tuple[str, ...] = ()
    rocm: bool = False
    cpus: int = 1
    memory: int = GB


LITTLE = Needs()


def read_needs(recipe: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]], where: str) -> Needs:
    """Return what a recipe needs for these choices; ConfigError when it says it wrongly."""
    programs: dict[str, None] = {}
    rocm, cpus, memory = False, 1, 1.0
    for data in (recipe.get("extra") or {}).get("needs") or ():
        try:
            table = _Table.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{where}: extra.needs: {key}: {first['msg']}", remedy="correct it"
            ) from None
        if all(axes.get(axis) == (value,) for axis, value in table.when.items()):
            programs |= dict.fromkeys(table.programs)
            rocm, cpus = rocm or table.rocm, max(cpus, table.cpus)
            memory = max(memory, table.memory)
    return Needs(tuple(programs), rocm, cpus, int(memory * GB))


@dataclass(frozen=True)
class Machine:
    """What this machine has: CPUs, memory in bytes, folders of programs, a ROCm root or None."""

    cpus: int
    memory: int
    path: str
    rocm_root: Path | None

    @classmethod
    def here(cls, *, cpus: int | None = None, memory: int | None = None) -> Machine:
        """Return this machine, or the part of it that the user grants."""
        roots = [Path(os.environ[name]) for name in ROCM_VARIABLES if os.environ.get(name)]
        whole = [root for root in (*roots, ROCM_ROOT) if (root / ".info" / "version").exists()]
        root = whole[0] if whole else None
        path = os.environ.get("PATH", os.defpath)
        if root is not None:
            path = f"{root / 'bin'}:{path}"
        return cls(cpus or len(os.sched_getaffinity(0)), memory or _memory(), path, root)

    def lacks(self, needs: Needs) -> str:
        """Say what of these needs is not here; empty when nothing is missing."""
        missing = [name for name in needs.programs if shutil.which(name, path=self.path) is None]
        words = [f"{', '.join(missing)} on PATH"] if missing else []
        if needs.rocm and self.rocm_root is None:
            words.append(f"ROCm root ({' or '.join(ROCM_VARIABLES)}, or {ROCM_ROOT})")
        return f"this machine has no {' and no '.join(words)}" if words else ""

    def fits(self, needs: Needs, running: Iterable[Needs]) -> bool:
        """Tell whether a build may start beside those that run; alone it always may."""
        others = list(running)
        return not others or (
            sum(one.cpus for one in others) + needs.cpus <= self.cpus
            and sum(one.memory for one in others) + needs.memory <= self.memory
        )


def _memory() -> int:
    """Return the bytes that builds may use now, within the container's limit if there is one."""
    lines = MEMINFO.read_text(encoding="utf-8").splitlines() if MEMINFO.exists() else []
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    limit = CGROUP_MAX.read_text(encoding="utf-8").strip() if CGROUP_MAX.exists() else ""
    return min([*found, *([int(limit)] if limit.isdigit() else [])], default=4 * GB)
