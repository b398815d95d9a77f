"""Layers cut to a size: nothing lost, nothing twice, within the size and the budget, stable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assembler.errors import ConfigError
from assembler.image.cut import (
    ROOM,
    Item,
    cut_package,
    file_weight,
    header_weight,
    parse_size,
    plan_slices,
)
from assembler.image.entry import parents
from assembler.image.plan import MOST_LAYERS, PlannedPackage, plan_layers

LIMIT = ROOM + 20_000


@st.composite
def packages_of_items(draw):
    """Files in folders, some of them hard links to files before them."""
    items: list[Item] = []
    plain: list[str] = []
    for number in range(draw(st.integers(0, 40))):
        folder = draw(st.sampled_from(["", "a/", "a/b/", "lib/python/", "x" * 120 + "/"]))
        path = f"opt/{folder}{number}".encode()
        if plain and draw(st.integers(0, 4)) == 0:
            target = draw(st.sampled_from(plain))
            items.append(Item(f"{number}", path, header_weight(path), target))
        else:
            size = draw(st.one_of(st.integers(0, 3000), st.integers(0, 40_000)))
            items.append(Item(f"{number}", path, file_weight(path, size)))
            plain.append(f"{number}")
    return items


def folders_of(paths):
    return {folder for path in paths for folder in parents(path)}


@given(packages_of_items(), st.integers(0, 25_000))
@settings(max_examples=200)
def test_every_file_is_in_exactly_one_part(items, added_weight):
    added = [b"opt/conda-meta/x.json"]
    parts = cut_package(items, added, added_weight, LIMIT)
    found = [name for part in parts for name in part.members]
    assert sorted(found) == sorted(item.name for item in items)
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    by_name = {item.name: item for item in items}
    for part in parts:
        chosen = [by_name[name] for name in part.members]
        paths = [item.path for item in chosen] + (added if part.last else [])
        weight = ROOM + sum(item.weight for item in chosen) + added_weight * part.last
        weight += sum(map(header_weight, folders_of(paths)))
        assert part.weight == weight
        assert part.oversize == (weight > LIMIT)
        # A hard link lies in one layer with its target.
        assert all(item.target in part.members for item in chosen if item.target is not None)
        if part.oversize:
            # One file with its links, or the additions; never two things that could be apart.
            assert sum(item.target is None for item in chosen) + part.last == 1


@given(packages_of_items())
def test_the_same_package_is_cut_the_same(items):
    one = cut_package(items, [b"opt/m"], 10, LIMIT)
    assert one == cut_package(list(items), [b"opt/m"], 10, LIMIT)
    assert len({part.key for part in one}) == len(one)


def test_a_package_that_fits_is_one_part():
    items = [Item("a", b"opt/a", file_weight(b"opt/a", 10))]
    (part,) = cut_package(items, [], 0, LIMIT)
    assert part.last
    assert not part.oversize


@given(
    st.lists(st.integers(1, 60_000), min_size=1, max_size=30), st.integers(1, 60),
    st.integers(5_000, 80_000),
)  # fmt: skip
def test_slices_hold_every_package_within_size_and_budget(sizes, budget, limit):
    packages = [PlannedPackage(f"lib{n}", size) for n, size in enumerate(sizes)]
    weights = {package.name: package.size for package in packages}

    def parts(name):
        path = f"opt/{name}/".encode()
        count = weights[name] // 1000
        items = [Item(f"{n}", path + b"%d" % n, 512) for n in range(count)]
        return cut_package(items, [], 0, limit)

    try:
        slices = plan_slices(packages, budget, limit, weights, parts)
    except ConfigError:
        # The plan with a layer for each package is the one with the fewest cuts.
        least = sum(max(1, len(parts(name)) if weights[name] > limit else 1) for name in weights)
        assert budget < MOST_LAYERS
        assert least > budget or len(weights) > budget
        return
    assert len(slices) <= budget
    assert len({piece.name for piece in slices}) == len(slices)
    whole = [name for piece in slices if piece.part is None for name in piece.packages]
    cut = [piece for piece in slices if piece.part is not None]
    assert sorted({*whole, *(piece.packages[0] for piece in cut)}) == sorted(weights)
    assert len(whole) == len(set(whole))
    for piece in slices:
        if piece.part is None and len(piece.packages) > 1:
            assert sum(weights[name] for name in piece.packages) <= limit
    for name in {piece.packages[0] for piece in cut}:
        pieces = [piece for piece in cut if piece.packages == (name,)]
        assert [piece.part for piece in pieces] == list(parts(name))
        assert name not in whole


def test_layers_that_fit_stay_as_they_are():
    packages = [PlannedPackage("python", 9_000_000), PlannedPackage("libx", 100)]
    weights = {"python": 30_000_000, "libx": 1000}
    slices = plan_slices(packages, 20, 10**9, weights, lambda name: pytest.fail("read"))
    assert [(piece.name, piece.packages, piece.size) for piece in slices] == [
        (layer.name, layer.packages, layer.size) for layer in plan_layers(packages, 20)
    ]


def test_a_size_that_needs_more_layers_than_there_may_be():
    packages = [PlannedPackage(f"lib{n}", 1000) for n in range(9)]
    weights = {package.name: 1000 for package in packages}
    with pytest.raises(ConfigError, match="there are 9 layers, but only 8 may"):
        plan_slices(packages, 8, 1500, weights, lambda name: pytest.fail("read"))
    assert len(plan_slices(packages, 9, 1500, weights, lambda name: ())) == 9


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("1.5 gb", 1_500_000_000), ("512MiB", 512 << 20), ("1000", 1000),
     ("7b", 7)],
)  # fmt: skip
def test_sizes_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-5GB", "5 apples", "GB", "1e9", "٣GB", "0.1"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
