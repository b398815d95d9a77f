"""How fast images are assembled, against the least that the same bytes cost with tar and zstd.

    python benchmarks/image_assembly.py [--profile cpu] [--rounds 3] [--work FOLDER] [--json]

Both sides of a ratio run in turn, on the same files, on the same machine, with the same number of
threads. Needs the channel and lock that `assembler clean-image` makes, and GNU tar, zstd and bash.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from assembler.digest import chunks
from assembler.image.compression import Codec
from assembler.image.documents import LAYER_NAME, LAYER_PACKAGES
from assembler.image.layout import Layout
from assembler.image.tarstream import Pieces
from assembler.workspace import Workspace

ROOT = Path(__file__).parents[1]
PIPELINE = (
    "set -o pipefail; tar cf - -C {tree} {names} | tee >(sha256sum > {out}.tar.sum) "
    "| zstd -3 -T{threads} | tee >(sha256sum > {out}.zst.sum) > {out}"
)


def seconds(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    started = time.monotonic()
    action()
    return time.monotonic() - started


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command in the checkout and return its output; the benchmark ends when it fails."""
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")
    return done.stdout


def peak(command: list[str]) -> int:
    """Run a command and return the peak resident size of its own process in bytes."""
    program = (
        "import json,resource,subprocess,sys,os\n"
        "code=subprocess.call(sys.argv[1:],stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024)\n"
        "sys.exit(code)\n"
    )
    return int(run(sys.executable, "-c", program, *command))


def unpack(layout: Path, tree: Path) -> None:
    """Write an image's layers into a folder, lowest first."""
    source = Layout(layout)
    manifest = source.document(source.entries()[0]["digest"])
    assert manifest is not None
    for layer in manifest["layers"]:
        with source.blob(layer["digest"]).open("rb") as blob:
            pieces = Pieces(Codec("zstd", 3).expand(chunks(blob)))
            with tarfile.open(fileobj=pieces, mode="r|") as archive:  # type: ignore[call-overload]
                archive.extractall(tree, filter="tar")


class Bench:
    """The folders of one run, and the commands it times."""

    def __init__(
        self, profile: str, work: Path, rounds: int, channel: Path | None, lock: Path | None
    ) -> None:
        self.workspace = Workspace.at(ROOT, channel=channel)
        self.profile = self.workspace.stack().select(profile)
        self.lock = (lock or self.workspace.lock_folder(self.profile)).absolute()
        self.work = work
        self.rounds = rounds
        self.threads = min(os.cpu_count() or 1, 4)

    def image(self, layout: str, cache: str) -> list[str]:
        """Return the command that assembles into folders of this run."""
        return [
            sys.executable, "-m", "assembler", "image", "--quiet", "--profile", self.profile.name,
            "--channel", str(self.workspace.channel), "--lock", str(self.lock),
            "-o", str(self.work / layout), "--cache", str(self.work / cache),
            "--jobs", str(self.threads),
        ]  # fmt: skip

    def forget(self, layout: str, cache: str) -> None:
        """Remove a layout and every segment; the unpacked python stays."""
        shutil.rmtree(self.work / layout, ignore_errors=True)
        for name in ("segments", "layers"):
            shutil.rmtree(self.work / cache / name, ignore_errors=True)

    def tar(self) -> None:
        """Pack and hash the image's files with tar, zstd and sha256sum."""
        names = " ".join(sorted(path.name for path in (self.work / "tree").iterdir()))
        script = PIPELINE.format(
            tree=self.work / "tree", names=names, out=self.work / "tar.zst", threads=self.threads
        )
        run("bash", "-c", script)

    def compile(self) -> None:
        """Compile the tree's modules with its own python."""
        prefix = self.work / "tree" / self.profile.image.prefix.strip("/")
        python = prefix / "bin" / f"python{self.profile.python}"
        library = prefix / "lib" / f"python{self.profile.python}"
        command = [python, "-m", "compileall", "-q", "-f", "-j", str(self.threads)]
        command += ["--invalidation-mode", "unchecked-hash", library]
        # Some modules are templates or for other Pythons; compileall then ends with status 1.
        subprocess.run(command, check=False, capture_output=True)

    def change_one(self, layout: str, cache: str) -> str:
        """Make the smallest package of the biggest shared layer one that was never seen.

        Its segment and its layer's blob go, so assembling again costs what a new build of that
        package would cost.
        """
        source = Layout(self.work / layout)
        manifest = source.document(source.entries()[0]["digest"])
        assert manifest is not None
        shared = [
            layer for layer in manifest["layers"]
            if " " in layer["annotations"][LAYER_PACKAGES]
            and layer["annotations"][LAYER_NAME] != "base"
        ]  # fmt: skip
        layer = max(shared, key=lambda layer: layer["size"])
        source.blob(layer["digest"]).unlink()
        names = layer["annotations"][LAYER_PACKAGES].split()
        segments = []
        for path in (self.work / cache / "segments").rglob("*.json"):
            facts = json.loads(path.read_text())
            if facts["name"].rsplit("-", 2)[0] in names:
                segments.append((facts["size"], facts["name"], path))
        _, name, path = min(segments)
        path.unlink()
        path.with_suffix(".segment").unlink()
        return str(name)


def measure(bench: Bench) -> dict[str, object]:
    """Run everything and return the figures."""
    run(*bench.image("image", "cache"))
    unpack(bench.work / "image", bench.work / "tree")
    cold, packed, compiled = [], [], []
    for _ in range(bench.rounds):
        bench.forget("cold", "cache")
        cold.append(seconds(lambda: run(*bench.image("cold", "cache"))))
        packed.append(seconds(bench.tar))
        compiled.append(seconds(bench.compile))
    changed = []
    for _ in range(bench.rounds):
        bench.change_one("cold", "cache")
        changed.append(seconds(lambda: run(*bench.image("cold", "cache"))))
    nothing = [seconds(lambda: run(*bench.image("cold", "cache"))) for _ in range(bench.rounds)]
    bench.forget("cold", "cache")
    memory = peak(bench.image("cold", "cache"))
    size = sum(path.stat().st_size for path in Layout(bench.work / "cold").blobs.iterdir())
    middle = statistics.median
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}, load {os.getloadavg()[0]:.1f}",
        "rounds": bench.rounds,
        "threads": bench.threads,
        "cold_seconds": middle(cold),
        "tar_zstd_sha256_seconds": middle(packed),
        "compileall_seconds": middle(compiled),
        "cold_to_tar": middle([one / two for one, two in zip(cold, packed, strict=True)]),
        "cold_to_tar_and_compileall": middle(
            [one / (two + three) for one, two, three in zip(cold, packed, compiled, strict=True)]
        ),
        "one_package_changed_seconds": middle(changed),
        "nothing_changed_seconds": middle(nothing),
        "peak_memory_bytes": memory,
        "image_bytes": size,
        "tar_zst_bytes": (bench.work / "tar.zst").stat().st_size,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--channel", type=Path)
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="an empty folder, kept afterwards")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for program in ("bash", "tar", "zstd", "sha256sum"):
        if not shutil.which(program):
            sys.exit(f"{program} is not installed")
    with tempfile.TemporaryDirectory(prefix="image-bench-") as scratch:
        work = (arguments.work or Path(scratch)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(arguments.profile, work, arguments.rounds, arguments.channel, arguments.lock)
        figures = measure(bench)
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<32} {value:.3f}" if isinstance(value, float)
              else f"{name.replace('_', ' '):<32} {value}")  # fmt: skip


if __name__ == "__main__":
    main()
