"""GPU target names and how each tool of the stack spells a list of them.

One list of LLVM processor names (``gfx_target`` in recipes/variants.yaml) is the only place where
targets are chosen; this module checks the names and translates the list into every tool's dialect.
Names are those of LLVM's AMDGPU usage document, as of LLVM 22.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from assembler.errors import ConfigError

KNOWN: tuple[str, ...] = (
    "gfx900", "gfx902", "gfx904", "gfx906", "gfx908", "gfx909", "gfx90a", "gfx90c",
    "gfx942", "gfx950",
    "gfx1010", "gfx1011", "gfx1012", "gfx1013",
    "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036",
    "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153",
    "gfx1200", "gfx1201", "gfx1250", "gfx1251",
)  # fmt: skip

SEMICOLON = ";"
COMMA = ","

# Variable -> separator. MORI_GPU_ARCHS is a build variable only: at run time MORI takes the first
# name of the list for the GPU it runs on (vllm-project/vllm#49737), so images never set it.
DIALECTS: Mapping[str, str] = MappingProxyType(
    {
        "PYTORCH_ROCM_ARCH": SEMICOLON,
        "GPU_ARCHS": SEMICOLON,
        "AMDGPU_TARGETS": SEMICOLON,
        "GPU_TARGETS": SEMICOLON,
        "CMAKE_HIP_ARCHITECTURES": SEMICOLON,
        "MORI_GPU_ARCHS": SEMICOLON,
        "HCC_AMDGPU_TARGET": COMMA,
    }
)
# Variables of tools that compile for one target at a time.
SINGLE_TARGET_DIALECTS: tuple[str, ...] = ("FLYDSL_GPU_ARCH",)


def check_targets(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, checked and in the given order without repetitions.

    Raises ConfigError that names the nearest known target for one that is not known.
    """
    seen: dict[str, None] = {}
    for name in names:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]}? Known" if near else "known"
            raise ConfigError(
                f"{name!r} is not a gfx target", remedy=f"{guess} targets are {', '.join(KNOWN)}"
            )
        seen[name] = None
    return tuple(seen)


def spelled_targets(name: str) -> tuple[str, ...]:
    """Return the targets that a name inside a file's name stands for.

    Databases write the number of compute units behind the target (``gfx942130``), some libraries
    name families (``gfx11xx``, ``gfx120x``); a name that is none of these stands for itself.

    >>> spelled_targets("gfx942130"), spelled_targets("gfx90a68")
    (('gfx942',), ('gfx90a',))
    >>> spelled_targets("gfx120x")
    ('gfx1200', 'gfx1201')
    """
    if name in KNOWN:
        return (name,)
    stem = name.rstrip("x")
    if stem != name:
        family = tuple(one for one in KNOWN if one.startswith(stem) and len(one) == len(name))
        return family or (name,)
    longest = max((one for one in KNOWN if name.startswith(one)), key=len, default=name)
    return (longest,)


def family_of(name: str) -> str:
    """Return the family that a target belongs to: its name without stepping.

    >>> family_of("gfx1101"), family_of("gfx90a")
    ('gfx11', 'gfx9')
    """
    return name[:-2]


def owner_of(targets: Iterable[str]) -> str:
    """Return whose a file for these targets is: the target's, or for several their family's.

    Empty for a file that is for none. ConfigError when the targets are of several families.

    >>> owner_of(["gfx942"]), owner_of(["gfx1200", "gfx1201"])
    ('gfx942', 'gfx12')
    """
    names = tuple(targets)
    if len(names) <= 1:
        return "".join(names)
    families = sorted({family_of(name) for name in names})
    if len(families) > 1:
        raise ConfigError(
            f"a file is for targets of several families ({', '.join(families)})",
            remedy="give it a rule of its own in the recipe's parts.toml",
        )
    return families[0]


def build_environment(names: Iterable[str]) -> dict[str, str]:
    """Return the variables that tell every build tool which targets to build for.

    Single-target tools are told only when the list has exactly one name.
    """
    targets = check_targets(names)
    environment = {name: separator.join(targets) for name, separator in DIALECTS.items()}
    if len(targets) == 1:
        environment |= dict.fromkeys(SINGLE_TARGET_DIALECTS, targets[0])
    return environment
