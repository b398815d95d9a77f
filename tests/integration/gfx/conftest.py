"""GPU code made by clang 22 on the spot, and LLVM's own tools to compare with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = """
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void *, unsigned, unsigned, void **, unsigned long, void *);
extern "C" unsigned __hipPushCallConfiguration(dim3, dim3, unsigned long, void *);
extern "C" unsigned __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void *);
__global__ void NAME_axpy(float a, float *x, float *y) {
  __shared__ float tile[64];
  int i = __builtin_amdgcn_workitem_id_x();
  tile[i & 63] = x[i];
  __builtin_amdgcn_s_barrier();
  y[i] += a * tile[(i + 1) & 63];
}
__global__ void NAME_fill(float *x) { x[__builtin_amdgcn_workitem_id_x()] = 1; }
"""
TARGETS = ("gfx942", "gfx950", "gfx90a:xnack+", "gfx1201")
TOOLS = ("clang++-22", "ld.lld-22", "clang-offload-bundler-22", "llvm-objdump-22",
         "llvm-readelf-22", "llvm-ar-22", "llvm-dis-22", "llc-22")  # fmt: skip


@dataclass(frozen=True)
class Llvm:
    """LLVM 22's tools, run in one folder."""

    folder: Path

    def run(
        self, tool: str, *arguments: str | Path, cwd: Path | None = None, **variables: str
    ) -> str:
        """Run a tool and return what it printed."""
        done = subprocess.run(
            [f"{tool}-22", *map(str, arguments)],
            cwd=cwd or self.folder, env=os.environ | variables,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def clang(self, *arguments: str | Path) -> None:
        """Compile HIP without ROCm: no headers, no device library, no runtime."""
        common = ("-x", "hip", "-nogpuinc", "-nogpulib", "-no-hip-rt", "-O2", "-fPIC")
        self.run("clang++", *common, *arguments)

    def source(self, name: str) -> Path:
        """Write a HIP source whose kernels carry the name."""
        place = self.folder / f"{name}.hip"
        place.write_text(SOURCE.replace("NAME", name))
        return place


@pytest.fixture(scope="session")
def llvm(tmp_path_factory: pytest.TempPathFactory) -> Llvm:
    """LLVM 22's tools, or a skip that says which are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} missing (clang-22, clang-tools-22, lld-22 and llvm-22 of the "
            "machine's apt sources have them)"
        )
    return Llvm(tmp_path_factory.mktemp("llvm"))


Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(llvm: Llvm) -> Build:
    """Compile one source for targets into a shared object, object, or bare device file."""
    made: dict[tuple[object, ...], Path] = {}

    def compile_one(
        kind: str = "shared",
        targets: tuple[str, ...] = TARGETS,
        sources: tuple[str, ...] = ("one",),
        options: tuple[str, ...] = (),
    ) -> Path:
        key = (kind, targets, sources, options)
        if key not in made:
            suffix = {"shared": "so", "object": "o", "device": "co", "device object": "o"}[kind]
            out = llvm.folder / f"f{len(made)}.{suffix}"
            how = {
                "shared": ("-shared", "-fuse-ld=lld"),
                "object": ("-c",),
                "device": ("--cuda-device-only", "--no-gpu-bundle-output"),
                "device object": ("--cuda-device-only", "--no-gpu-bundle-output", "-c"),
            }[kind]
            arches = [f"--offload-arch={target}" for target in targets]
            llvm.clang(*arches, *how, *options, *map(llvm.source, sources), "-o", out)
            made[key] = out
        return made[key]

    return compile_one
