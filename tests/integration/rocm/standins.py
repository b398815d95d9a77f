"""Stand-ins of the upstream artefacts: their true layouts and file names, a few kilobytes each.

GPU code in them is real: compiled by clang 22 for the targets that the true ones are built for.
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.gfx.gfxmake import kpack

# What fat wheels are built for: the stack's targets, two of a family that the tests add, one that
# nobody asks for.
FAT = ("gfx942", "gfx950", "gfx1200", "gfx1201", "gfx90a")
# AITER's repository has code objects for CDNA alone.
CDNA = ("gfx942", "gfx950", "gfx90a")
# What AOTriton's images for a family are called, and for which of its members they are compiled.
FAMILY, FAMILY_TARGET = "gfx120x", "gfx1201"
FILE_TIME = (2025, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Code:
    """Compiled GPU code: bare code objects by target, one library with code for all of them."""

    objects: Mapping[str, bytes]
    library: bytes
    host: bytes


@dataclass(frozen=True)
class Artefact:
    """A file as an index serves it."""

    name: str
    version: str
    file: str
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Its hash."""
        return hashlib.sha256(self.data).hexdigest()


def wheel(
    name: str,
    version: str,
    tag: str,
    files: Mapping[str, bytes | str],
    *,
    requires: tuple[str, ...] = (),
    scripts: str = "",
    pure: bool = False,
) -> Artefact:
    """Return a wheel with a correct RECORD and a license file."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-File: LICENSE\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    head = (
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: {str(pure).lower()}\nTag: {tag}\n"
    )
    whole: dict[str, bytes | str] = {
        **files,
        f"{info}/licenses/LICENSE": "stand-in\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": head,
    }
    if scripts:
        whole[f"{info}/entry_points.txt"] = scripts
    stream, record = io.BytesIO(), ""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in whole.items():
            data = content.encode() if isinstance(content, str) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            entry = zipfile.ZipInfo(path, FILE_TIME)
            program = data[:4] == b"\x7fELF" or data[:2] == b"#!"
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", FILE_TIME), f"{record}{info}/RECORD,,\n")
    return Artefact(name, version, f"{stem}-{tag}.whl", stream.getvalue())


TORCH_INIT = "from torch import cuda, version\nfrom torch.version import __version__\n"
TORCH_CUDA = """
def is_available():
    return False
"""


def torch_modules(version: str, rocm: str) -> dict[str, bytes | str]:
    """PyTorch as far as tests of packages look at it, on a machine without a GPU."""
    return {
        "torch/__init__.py": TORCH_INIT,
        "torch/version.py": f"__version__ = {version!r}\nhip = {rocm!r}\ncuda = None\n",
        "torch/cuda.py": TORCH_CUDA,
    }


TRITON_INIT = """
import os
from types import SimpleNamespace

__version__ = "3.8.0"


def jit(function):
    return function


def compile(source, target):
    folder = os.path.join(os.path.dirname(__file__), "backends", "amd", "made")
    with open(os.path.join(folder, target.arch), "rb") as file:
        return SimpleNamespace(asm={"hsaco": file.read()})
"""
TRITON_TARGET = """
from typing import NamedTuple


class GPUTarget(NamedTuple):
    backend: str
    arch: str
    warp_size: int
"""
TRITON_SOURCE = """
class ASTSource:
    def __init__(self, function, signature, constexprs):
        assert set(constexprs) < set(signature)
"""


def triton_modules(code: Code) -> dict[str, bytes | str]:
    """Triton with a compiler that knows one program, which clang compiled before."""
    return {
        "triton/__init__.py": TRITON_INIT,
        "triton/language/__init__.py": "class constexpr: pass\n",
        "triton/compiler/__init__.py": TRITON_SOURCE,
        "triton/backends/__init__.py": "",
        "triton/backends/compiler.py": TRITON_TARGET,
        "triton/backends/amd/__init__.py": "",
        "triton/backends/amd/compiler.py": "",
        "triton/backends/amd/driver.py": "",
        "triton/_C/libtriton.so": code.host + b"__CLANG_OFFLOAD_BUNDLE__",
        **{f"triton/backends/amd/made/{name}": data for name, data in code.objects.items()},
    }


def fat_torch(code: Code, version: str, tag: str) -> Artefact:
    """PyTorch for ROCm 7.2: all in one wheel, files of single targets spelled as upstream."""
    files: dict[str, bytes | str] = {
        **torch_modules(version, "7.2"),
        "torch/lib/libtorch_hip.so": code.library,
        "torch/lib/libamdhip64.so": code.host,
        "torch/lib/libhsa-runtime64.so": code.host,
        "torch/lib/rocblas/library/TensileManifest.txt": "stand-in\n",
        "torch/lib/hipblaslt/library/hipblasltExtOpLibrary.dat": "stand-in\n",
        "torch/share/miopen/db/miopen.db": "stand-in\n",
        "torch/include/torch/torch.h": "#pragma once\n",
        f"torch/lib/aotriton.images/amd-{FAMILY}/flash/attn_fwd.hsaco": code.objects[FAMILY_TARGET],
        "torch/bin/protoc": code.host,
        "torch/test/test_api.py": "",
        "torch/lib/libonnx.a": "!<arch>\n",
    }
    for target, data in code.objects.items():
        xnack = "-xnack+" if target == "gfx90a" else ""
        library = f"torch/lib/rocblas/library/TensileLibrary_Type_HH_{target}"
        files |= {
            f"{library}.co": data,
            f"{library}.dat": f"table of {target}\n",
            f"torch/lib/rocblas/library/Kernels.so-000-{target}{xnack}.hsaco": data,
            f"torch/lib/hipblaslt/library/{target}/extop_{target}.co": data,
            f"torch/lib/hipsparselt/library/Kernels.so-000-{target}{xnack}.hsaco": data,
            # databases go on with the number of compute units, in hexadecimal
            f"torch/share/miopen/db/{target}130.HIP.fdb.txt": f"database of {target}\n",
            f"torch/lib/aotriton.images/amd-{target}/flash/attn_fwd.hsaco": data,
        }
    return wheel("torch", version, tag, files, requires=("triton-rocm==3.8.0",))


def rocm72(code: Code) -> list[Artefact]:
    """The wheels of the 7.2 row."""
    tag = "cp312-cp312-manylinux_2_28_x86_64"
    return [
        fat_torch(code, "2.14.1+rocm7.2", tag),
        wheel(
            "torchvision",
            "0.29.0+rocm7.2",
            tag,
            {
                "torchvision/__init__.py": "",
                "torchvision/ops/__init__.py": "",
                "torchvision/_C.so": code.library,
            },
        ),
        wheel("torchaudio", "2.11.0+rocm7.2", tag, {"torchaudio/__init__.py": ""}),
        wheel(
            "triton-rocm",
            "3.8.0",
            "cp312-cp312-linux_x86_64",
            {**triton_modules(code), "triton/backends/nvidia/bin/ptxas": code.host},
        ),
        *both(code),
    ]


def both(code: Code) -> list[Artefact]:
    """The wheels that both rows have."""
    return [
        wheel(
            "flydsl",
            "0.3.1",
            "cp312-cp312-manylinux_2_27_x86_64",
            {
                "flydsl/__init__.py": "",
                "flydsl/compiler/__init__.py": "import torch\n",
                "flydsl/lib/libfly_jit_runtime.so": code.host,
            },
        ),
        wheel(
            "amd-mori",
            "1.2.4",
            "cp312-cp312-manylinux_2_39_x86_64",
            {
                "mori/__init__.py": "",
                "mori/libmori_application.so": code.host,
                "mori/libmori_pybinds.so": code.library,
                "mori/umbp_master": code.host,
            },
            scripts="[console_scripts]\nmori = mori.cli:main\n",
        ),
    ]


def rocm10(code: Code, targets: tuple[str, ...]) -> list[Artefact]:
    """The split wheels of the 10.0 row: host wheels without GPU code, and one a target with it."""
    tag, local = "cp312-cp312-linux_x86_64", "rocm10.0.0"
    found = [
        wheel(
            "torch",
            f"2.11.0+{local}",
            tag,
            {
                **torch_modules(f"2.11.0+{local}", "10.0"),
                "torch/_rocm_init.py": "import rocm_sdk\n",
                "torch/lib/libtorch_hip.so": code.host,
                "torch/include/torch/torch.h": "#pragma once\n",
            },
            requires=("rocm[libraries]==10.0.0",),
        ),
        wheel(
            "torchvision",
            f"0.26.0+{local}",
            tag,
            {
                "torchvision/__init__.py": "",
                "torchvision/ops/__init__.py": "",
                "torchvision/_C.so": code.host,
            },
        ),
        wheel("torchaudio", "2.11.0", tag, {"torchaudio/__init__.py": ""}),
        wheel("triton", f"3.8.0+git4cff872c.{local}", tag, triton_modules(code)),
        wheel(
            "rocm-sdk-core",
            "10.0.0",
            "py3-none-linux_x86_64",
            {
                "_rocm_sdk_core/__init__.py": "",
                "_rocm_sdk_core/lib/libamdhip64.so.7": code.host,
                "_rocm_sdk_core/lib/llvm/bin/clang": '#!/bin/sh\nexec clang-22 "$@"\n',
            },
        ),
        wheel(
            "rocm-sdk-libraries",
            "10.0.0",
            "py3-none-linux_x86_64",
            {
                "_rocm_sdk_libraries/__init__.py": "",
                "_rocm_sdk_libraries/lib/librocblas.so.5": code.host,
            },
        ),
    ]
    for target in targets:
        data = code.objects[target]
        found += [
            wheel(
                f"amd-torch-device-{target}",
                f"2.11.0+{local}",
                tag,
                {f"torch/.kpack/torch_{target}.kpack": kpack([("libtorch_hip.so", target, data)])},
            ),
            wheel(
                f"amd-torchvision-device-{target}",
                f"0.26.0+{local}",
                tag,
                {
                    f"torchvision/.kpack/torchvision_{target}.kpack": kpack(
                        [("_C.so", target, data)]
                    )
                },
            ),
            wheel(
                f"rocm-sdk-device-{target}",
                "10.0.0",
                "py3-none-linux_x86_64",
                {
                    f"_rocm_sdk_libraries/.kpack/blas_{target}.kpack": kpack(
                        [("librocblas.so.5", target, data)]
                    ),
                    f"_rocm_sdk_libraries/lib/rocblas/library/Tensile_{target}.co": data,
                },
            ),
        ]
    return found


SDK_MAIN = """
import sys


def main():
    assert sys.argv[1:] == ["version"], sys.argv
    print("10.0.0")
"""


def rocm_sdist() -> Artefact:
    """ROCm's source distribution, which holds the module rocm_sdk."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, text in (
            ("src/rocm_sdk/__init__.py", ""),
            ("src/rocm_sdk/__main__.py", SDK_MAIN),
            ("LICENSE", "stand-in\n"),
        ):
            entry = tarfile.TarInfo(f"rocm-10.0.0/{path}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return Artefact("rocm", "10.0.0", "rocm-10.0.0.tar.gz", stream.getvalue())


AITER_SETUP = """
import os, shutil, subprocess
from setuptools import Distribution, setup

this_dir = os.getcwd()


def _is_triton_installed():
    return None


def _run_install_triton():
    print("[aiter] Installing triton via .github/scripts/install_triton.sh")
    install_triton = os.path.join(this_dir, ".github", "scripts", "install_triton.sh")
    subprocess.check_call(["bash", install_triton])


AITER_USE_SYSTEM_TRITON = int(os.environ.get("AITER_USE_SYSTEM_TRITON", "0"))
_run_install_triton()
assert os.environ["ENABLE_CK"] == "0"
root = os.environ["ROCM_HOME"]
with open(os.path.join(root, ".info", "version")) as file:
    assert file.read().strip()
if os.environ["PREBUILD_KERNELS"] == "1":
    module = os.path.join(root, "modules", os.environ["GPU_ARCHS"] + ".so")
    shutil.copy(module, "aiter/jit/module_aiter_core.so")
shutil.copytree("hsa", "aiter_meta/hsa", dirs_exist_ok=True)
shutil.copytree("csrc", "aiter_meta/csrc", dirs_exist_ok=True)
open("aiter_meta/__init__.py", "w").close()
with open("aiter/install_mode", "w") as file:
    file.write("install")


class Platform(Distribution):
    def has_ext_modules(self):
        return True


setup(
    name="amd-aiter", version=os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"],
    packages=["aiter", "aiter_meta"], package_data={"": ["**/*"]}, include_package_data=False,
    distclass=Platform,
)
"""


AITER_INIT = """
import os

if os.environ.get("AITER_TRITON_ONLY") != "1":
    raise RuntimeError("Get GPU arch from rocminfo failed")
"""


def core_py(patch: str) -> str:
    """Return a file to which the recipe's patch applies: its old lines at their places."""
    head, body = patch.partition("\n@@")[2].split("\n", 1)
    start = int(head.split("-", 1)[1].split(",")[0])
    old = [line[1:] for line in body.splitlines() if line[:1] in (" ", "-")]
    return "\n".join(["#"] * (start - 1) + old) + "\n"


def git_tree(folder: Path, files: Mapping[str, bytes | str], tag: str) -> Path:
    """Make a repository with one tagged commit."""
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    who = (
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    )
    for command in (
        ("init", "-q"),
        ("add", "-A", "-f"),
        (*who, "commit", "-q", "-m", "stand-in"),
        (*who, "tag", tag),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
    return folder


def aiter_tree(folder: Path, code: Code, patch: str, targets: tuple[str, ...] = CDNA) -> Path:
    """AITER's repository: code objects of every target, whatever GPU_ARCHS says."""
    files: dict[str, bytes | str] = {
        "setup.py": AITER_SETUP,
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n'
        'build-backend = "setuptools.build_meta"\n',
        "LICENSE": "stand-in\n",
        "aiter/__init__.py": AITER_INIT,
        "aiter/ops/__init__.py": "",
        "aiter/ops/triton/__init__.py": "import triton\n",
        ".github/scripts/install_triton.sh": "exit 1\n",
        "aiter/jit/core.py": core_py(patch),
        "aiter/configs/a8w8_tuned_gemm.csv": "cu_num,M\n",
        "csrc/kernels/x.cu": "// stand-in\n",
        "hsa/codegen.py": "",
    }
    for target in targets:
        files[f"hsa/{target}/fmha_v3_fwd/fwd_hd128_bf16.co"] = code.objects[target]
        files[f"hsa/{target}/fmha_v3_fwd/fmha_fwd.csv"] = "name\n"
        files[f"aiter/ops/triton/configs/gemm/aot/{target[3:]}_M=64/gemm.hsaco"] = code.objects[
            target
        ]
    return git_tree(folder, files, "v0.1.20.post1")


def atom_tree(folder: Path) -> Path:
    """ATOM's repository."""
    pyproject = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "atom"
version = "0.1.5"
dependencies = ["transformers==5.2.0", "zmq", "fastapi>=0.115,<0.137"]
[tool.setuptools]
packages = ["atom", "atom.examples", "atom.entrypoints"]
"""
    files = {
        "pyproject.toml": pyproject,
        "LICENSE": "stand-in\n",
        "atom/__init__.py": "import aiter\n",
        "atom/config.py": "import torch\n",
        "atom/examples/__init__.py": "",
        "atom/examples/simple_inference.py": "",
        "atom/entrypoints/__init__.py": "",
        "atom/entrypoints/openai_server.py": "",
    }
    return git_tree(folder, files, "v0.1.5")
