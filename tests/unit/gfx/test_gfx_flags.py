import pytest

from assembler.targets import KNOWN
from assembler.verify.gfx.flags import decode_flags, processors, runs_on
from assembler.verify.gfx.model import Feature


def test_every_target_of_the_project_is_in_the_table() -> None:
    names = {row.name for row in processors().values() if row.architecture == "amdgcn"}
    assert set(KNOWN) <= names


def test_names_and_numbers_are_unique() -> None:
    rows = list(processors().values())
    assert len({row.name for row in rows}) == len(rows)
    assert all(0 < row.mach <= 0xFF for row in rows)


def test_generic_processors_cover_known_ones() -> None:
    names = {row.name for row in processors().values()}
    generic = [row for row in processors().values() if row.generic]
    assert generic
    for row in generic:
        assert row.covers
        assert set(row.covers) <= names
    assert runs_on("gfx9-4-generic") == {"gfx9-4-generic", "gfx942", "gfx950"}
    assert runs_on("gfx942") == {"gfx942"}


@pytest.mark.parametrize(
    ("flags", "version", "processor", "xnack", "sramecc", "generic"),
    [
        (0x54C, 5, "gfx942", Feature.ANY, Feature.ANY, None),
        (0x54F, 6, "gfx950", Feature.ANY, Feature.ANY, None),
        (0x73F, 4, "gfx90a", Feature.ON, Feature.ANY, None),
        (0xE3F, 4, "gfx90a", Feature.OFF, Feature.ON, None),
        (0x04E, 6, "gfx1201", Feature.UNSUPPORTED, Feature.UNSUPPORTED, None),
        (0x100055F, 6, "gfx9-4-generic", Feature.ANY, Feature.ANY, 1),
        (0x100055F, 5, "gfx9-4-generic", Feature.ANY, Feature.ANY, None),
        (0x13F, 3, "gfx90a", Feature.ON, Feature.OFF, None),
        (0x23F, 3, "gfx90a", Feature.OFF, Feature.ON, None),
        (0x036, 3, "gfx1030", Feature.UNSUPPORTED, Feature.UNSUPPORTED, None),
        (0x5FE, 6, "unknown-0xfe", Feature.ANY, Feature.ANY, None),
    ],
)
def test_flags_are_decoded_by_the_rules_of_their_version(
    flags: int, version: int, processor: str, xnack: Feature, sramecc: Feature, generic: int | None
) -> None:
    decoded = decode_flags(flags, version)
    assert decoded.processor == processor
    assert (decoded.xnack, decoded.sramecc) == (xnack, sramecc)
    assert decoded.generic_version == generic
    assert decoded.known is not processor.startswith("unknown")
