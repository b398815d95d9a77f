"""A device package's own test: Triton compiles a kernel for its target. Needs no GPU."""

import os
import struct

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

target = os.environ["PKG_NAME"].rpartition("-")[2]
# CDNA has wavefronts of 64 lanes, RDNA of 32
lanes = 64 if target.startswith("gfx9") else 32


@triton.jit  # type: ignore[untyped-decorator]
def double(source, result, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Double every number."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = places < count
    tl.store(result + places, tl.load(source + places, mask=here) * 2, mask=here)


signature = {"source": "*fp32", "result": "*fp32", "count": "i32", "BLOCK": "constexpr"}
source = ASTSource(double, signature, constexprs={"BLOCK": 256})
binary = triton.compile(source, target=GPUTarget("hip", target, lanes)).asm["hsaco"]
assert binary[:4] == b"\x7fELF", binary[:4]
assert struct.unpack_from("<H", binary, 18)[0] == 224, "not for AMD GPUs"
print(f"Triton {triton.__version__} made {len(binary)} bytes of code for {target}")
