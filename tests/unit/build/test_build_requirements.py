from __future__ import annotations

import pytest

from assembler.build.requirements import conda_requirements
from assembler.errors import BuildError


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy", "numpy"),
        ("typing-extensions>=4.10.0", "typing_extensions >=4.10.0"),
        ("fastapi<0.137,>=0.115", "fastapi <0.137,>=0.115"),
        ("sympy~=1.13.3", "sympy 1.13.*,>=1.13.3"),
        ("transformers==5.12.1", "transformers ==5.12.1"),
        ("x==1.*", "x 1.*"),
        ("torch>=2", "pytorch >=2"),
        ("uvicorn[standard]>=0.20", "uvicorn >=0.20"),
    ],
)
def test_specifiers_become_conda_constraints(line: str, expected: str) -> None:
    assert conda_requirements([line], "3.11", where="test") == (expected,)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('colorama; sys_platform == "win32"', False),
        ('uvloop; sys_platform != "win32" and platform_python_implementation == "CPython"', True),
        ('tomli; python_version < "3.11"', False),
        ('pyyaml; extra == "pyyaml"', False),
        ('x; platform_machine == "x86_64"', True),
    ],
)
def test_markers_are_read_for_the_target_not_for_this_machine(line: str, kept: bool) -> None:
    assert bool(conda_requirements([line], "3.11", where="test")) is kept


def test_a_faulty_requirement_names_its_package() -> None:
    with pytest.raises(BuildError, match="broken requires 'a b c'"):
        conda_requirements(["a b c"], "3.11", where="broken")
