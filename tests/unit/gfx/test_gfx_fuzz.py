"""Whatever the bytes, the reader answers: a short round of mutation, and the corpus again.

benchmarks/gfx_fuzz.py does the same for longer and guided by coverage.
"""

from __future__ import annotations

import gfxcorpus
import gfxmake as make
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assembler.verify.gfx import CodeObject

SEEDS = gfxcorpus.seeds()
CASES = sorted(gfxcorpus.CORPUS.iterdir()) if gfxcorpus.CORPUS.is_dir() else []
quick = settings(
    max_examples=150, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in SEEDS if name != "constant"])
def test_seeds_hold_what_they_should(name: str) -> None:
    items = gfxcorpus.swallow(SEEDS[name], "x.conda" if name == "conda" else "x.bin")
    assert items
    assert all(isinstance(item, CodeObject) for item in items)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_the_corpus_again(case: object) -> None:
    data = case.read_bytes()
    for name in gfxcorpus.NAMES:
        assert len(gfxcorpus.swallow(data, name)) < 1000


@quick
@given(
    seed=st.sampled_from(sorted(SEEDS)),
    name=st.sampled_from(gfxcorpus.NAMES),
    cut=st.floats(0, 1),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=0, max_size=6
    ),
)
def test_mutated_files(seed: str, name: str, cut: float, edits: list[tuple[float, bytes]]) -> None:
    data = bytearray(SEEDS[seed])
    for where, what in edits:
        at = int(where * max(0, len(data) - len(what)))
        data[at : at + len(what)] = what
    keep = len(data) if cut > 0.5 else int(2 * cut * len(data))
    gfxcorpus.swallow(bytes(data[:keep]), name)


@quick
@given(
    parts=st.lists(
        st.one_of(st.sampled_from(sorted(SEEDS.values())), st.binary(max_size=64)), max_size=5
    ),
    wrap=st.booleans(),
)
def test_files_joined_in_any_way(parts: list[bytes], wrap: bool) -> None:
    data = b"".join(parts)
    gfxcorpus.swallow(make.host_elf((".hip_fatbin", data)) if wrap else data, "x.so")
