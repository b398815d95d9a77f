"""How long commands that find nothing to do take, process start included.

    python benchmarks/lock_check.py [--profile cpu] [--rounds 7]

Needs what `assembler clean-image` makes. `python -c pass` is the other side: what starting the
interpreter alone costs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(command: list[str]) -> float:
    """Run a command in the project's folder and return its wall time."""
    started = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def main() -> None:
    """Run the benchmark and print its rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    assembler = [sys.executable, "-m", "assembler"]
    rows = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "assembler lock --check": [
            *assembler,
            "lock",
            "--check",
            "-q",
            "--profile",
            options.profile,
        ],
        "assembler image": [*assembler, "image", "-q", "--profile", options.profile],
        "assembler clean-image": [*assembler, "clean-image", "-q", "--profile", options.profile],
    }
    for command in rows.values():
        seconds(command)  # warm
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.rounds):
        for name, command in rows.items():
            times[name].append(seconds(command))
    print(f"{'nothing to do':28}{'min':>8}{'median':>8}{'max':>8}  s, {options.rounds} rounds")
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:28}{min(measured):8.2f}{median:8.2f}{max(measured):8.2f}")


if __name__ == "__main__":
    main()
