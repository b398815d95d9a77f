"""What a measurement ran on: the facts without which its figures mean nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


def facts() -> dict[str, object]:
    """Return processor, memory, kernel and interpreter of this machine."""
    return {
        "processor": _field("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": int(_field("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) * 1024,
        "kernel": f"{platform.system()} {platform.release()}",
        "system": _field("/etc/os-release", r'PRETTY_NAME="([^"]+)"') or platform.system(),
        "python": platform.python_version(),
    }


def load() -> list[float]:
    """Return the load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def versions(commands: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the version that each program that is here tells of itself, and of our compressor."""
    found = {"zstandard": metadata.version("zstandard")}
    for name, command in commands.items():
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        number = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
        if done.returncode == 0 and number:
            found[name] = number.group()
    return found


def _field(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return ""
    return match.group(1).strip() if match else ""
