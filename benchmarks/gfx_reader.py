"""Measures the GPU code reader: a wheel with thousands of code objects, and one large file.

    python benchmarks/gfx_reader.py --wheel amd_aiter-….whl [--large libtriton.so] [--runs 3]

Each run is a process of its own, start of the interpreter included. Prints one JSON object; times
are the best of the runs in seconds, memory is the highest peak (VmHWM) in bytes. The large file is
compared with ``sha256sum`` of the same file; without --large it is 1 GiB of random bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ = """
import json, re, sys
from pathlib import Path
from assembler.verify.gfx import CodeObject, inventory
items = list(inventory(Path(sys.argv[1])))
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)
found = sum(isinstance(item, CodeObject) for item in items)
print(json.dumps([found, len(items) - found, int(peak) * 1024]))
"""


def best(command: list[str], runs: int) -> tuple[float, list[str]]:
    """Return the shortest wall time of several runs, and what each printed."""
    times, said = [], []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        times.append(time.perf_counter() - started)
        said.append(done.stdout)
    return min(times), said


def read(path: Path, runs: int) -> dict[str, object]:
    """Measure the inventory of one path."""
    seconds, said = best([sys.executable, "-c", READ, str(path)], runs)
    answers = [json.loads(text) for text in said]
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "code_objects": answers[0][0],
        "troubles": answers[0][1],
        "seconds": round(seconds, 3),
        "peak_memory": max(answer[2] for answer in answers),
    }


def large(path: Path, runs: int) -> dict[str, object]:
    """Measure one large file beside sha256sum, both with the file in the page cache."""
    hashed, _ = best(["sha256sum", str(path)], runs)
    row = read(path, runs)
    seconds = row["seconds"]
    assert isinstance(seconds, float)
    return row | {
        "sha256sum_seconds": round(hashed, 3),
        "times_sha256sum": round(seconds / hashed, 2),
        "megabytes_per_second": round(path.stat().st_size / seconds / 1e6),
    }


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="a wheel with GPU code, e.g. of amd-aiter")
    parser.add_argument("--large", type=Path, help="a large file [1 GiB of random bytes]")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows: dict[str, object] = {}
    if options.wheel:
        rows["wheel"] = read(options.wheel, options.runs)
    if options.large:
        rows["large"] = large(options.large, options.runs)
    else:
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            for _ in range(1024):
                file.write(os.urandom(1 << 20))
            file.flush()
            rows["large"] = large(Path(file.name), options.runs)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
