"""Measures ``assembler verify`` on an image: unpacking, each gate, the smokes, and the memory.

    python benchmarks/verify_image.py [--image build/images/atom-cpu] [--profile cpu] [--runs 3]

Every run is a process of its own with an empty scratch folder, start of the interpreter included.
Prints one JSON object: seconds are medians over the runs, ``without_smokes`` is the wall time less
the smokes' own, ``peak`` the highest resident size in bytes of verify itself (children excluded).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEASURED = """
import re, sys
from pathlib import Path
from assembler.cli.main import run
code = run(sys.argv[1:])
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)
print(int(peak) * 1024, file=sys.stderr)
sys.stdout.flush(), sys.stderr.flush()
import os
os._exit(code)
"""


def once(image: Path, profile: str) -> dict[str, float]:
    """Verify an image from scratch and return what it took."""
    with tempfile.TemporaryDirectory(dir=image.absolute().parent) as scratch:
        arguments = ["verify", "-q", "--json", "--profile", profile, "--scratch", scratch]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *arguments, str(image)],
            capture_output=True,
            text=True,
            env=os.environ,
            check=False,
        )
        wall = time.perf_counter() - started
    if not done.stdout.startswith("{"):
        raise SystemExit(done.stderr)
    (subject,) = json.loads(done.stdout)["subjects"]
    gates = {gate["gate"]: gate["seconds"] for gate in subject["gates"]}
    smoke = next(gate for gate in subject["gates"] if gate["gate"] == "smoke")
    programs = sum(run["seconds"] for run in smoke["facts"].get("runs", []))
    return {
        "wall": wall,
        "without_smokes": wall - programs,
        "opening": wall - sum(gates.values()),
        "peak": int(done.stderr.split()[-1]),
    } | {f"gate_{name}": seconds for name, seconds in gates.items()}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, default=Path("build/images/atom-cpu"))
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs = [once(options.image, options.profile) for _ in range(options.runs)]
    row: dict[str, float] = {
        name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]
    }
    row["peak"] = max(run["peak"] for run in runs)
    print(json.dumps({"image": str(options.image), "runs": options.runs} | row, indent=2))


if __name__ == "__main__":
    main()
