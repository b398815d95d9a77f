"""Fuzzes the GPU code reader, guided by coverage (needs the package atheris).

    python benchmarks/gfx_fuzz.py FOLDER -max_total_time=600 -rss_limit_mb=300

FOLDER receives the corpus; the seeds of tests/unit/gfx are laid in first. Every further argument is
libFuzzer's. A crash, a hang of ten seconds, or memory above the limit ends it with the input kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests/unit/gfx")]

with atheris.instrument_imports(include=["assembler.verify.gfx"]):
    import assembler.verify.gfx  # noqa: F401

import gfxcorpus  # noqa: E402 - after the path is set

MAX_LENGTH = 1 << 15


def one_input(data: bytes) -> None:
    """Read one input: its first byte chooses the file's name."""
    if data:
        name = gfxcorpus.NAMES[data[0] % len(gfxcorpus.NAMES)]
        gfxcorpus.swallow(data[1:], name)


def main() -> None:
    """Lay the seeds into the folder and start libFuzzer."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in gfxcorpus.seeds().items():
        for number in (0, 1, 2, 3):
            (folder / f"seed-{name}-{number}").write_bytes(bytes([number]) + data)
    for case in gfxcorpus.CORPUS.glob("*"):
        (folder / f"seed-corpus-{case.name}").write_bytes(b"\0" + case.read_bytes())
    options = [f"-max_len={MAX_LENGTH}", "-timeout=10", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, *sys.argv[2:], str(folder)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
