"""Images whose layers are cut to a size."""

from __future__ import annotations

import pytest
from image_packages import Item, layers, lock_of, make_conda, members

from assembler.errors import ConfigError
from assembler.image.request import Options

LIMIT = 60_000


@pytest.fixture
def big(channel, site):
    """A package of five layers: links to files far away, modules, and one file over the limit."""
    files = [Item(f"share/big/{number:02}", bytes([number]) * 20_000) for number in range(10)]
    make_conda(
        channel, "big",
        [
            *files[:5],
            Item("lib/far", kind="hardlink", target="share/big/00"),
            Item("share/huge", b"h" * 100_000),
            *files[5:],
            Item(f"{site}/big/__init__.py", b"BIG = True\n"),
            Item("lib/near", kind="symlink", target="far"),
        ],
    )  # fmt: skip
    return channel


def test_layers_keep_to_the_size_and_to_engines_rules(make_image, big):
    result = make_image(lock_of(big), big, options=Options(max_layer_size=LIMIT))
    cut = [layer for layer in result.layers if "big" in layer.packages]
    assert [layer.packages for layer in cut] == [("big",)] * len(cut)
    assert len(cut) > 4
    (huge,) = [layer for layer in result.layers if layer.unpacked_size > LIMIT]
    assert result.notes == (f"layer {huge.name!r} is over the size asked for: one file of it is",)
    for layer, data in zip(result.layers, layers(result.layout), strict=True):
        seen: set[str] = set()
        for info, _ in members(data):
            assert info.name not in seen
            parent = info.name.rpartition("/")[0]
            assert not parent or parent in seen
            if info.islnk():
                assert info.linkname in seen
            seen.add(info.name)
        files = {info.name for info, _ in members(data) if not info.isdir()}
        if layer is huge:
            assert files == {"opt/atom/share/huge"}
    assert len(result.layers) <= 20


def test_the_size_counts_in_the_budget(make_image, big):
    for budget in (20, 10):
        result = make_image(lock_of(big), big, options=Options(budget=budget, max_layer_size=LIMIT))
        assert len(result.layers) <= budget
    with pytest.raises(ConfigError, match="raise --max-layer-size or --max-layers") as caught:
        make_image(lock_of(big), big, options=Options(budget=3, max_layer_size=LIMIT))
    assert "but only 3 may be" in caught.value.saw


def test_a_size_that_nothing_exceeds_changes_no_layer(make_image, big, tmp_path):
    lock = lock_of(big)
    plain = make_image(lock, big, tmp_path / "plain")
    sized = make_image(lock, big, tmp_path / "sized", options=Options(max_layer_size=10**9))
    assert [layer.digest for layer in plain.layers] == [layer.digest for layer in sized.layers]
    assert plain.digest != sized.digest  # the label tells


def test_parts_are_cached_and_a_lost_one_is_the_same_again(make_image, big, tmp_path):
    lock, options = lock_of(big), Options(max_layer_size=LIMIT)
    first = make_image(lock, big, options=options)
    assert make_image(lock, big, options=options).up_to_date
    for path in sorted((tmp_path / "cache" / "segments").rglob("*.segment"))[::2]:
        path.unlink()
    second = make_image(lock, big, tmp_path / "second", options=options)
    third = make_image(lock, big, tmp_path / "third", cache=tmp_path / "fresh", options=options)
    assert first.digest == second.digest == third.digest
