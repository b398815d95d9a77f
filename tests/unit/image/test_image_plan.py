"""The layer plan: nothing lost, nothing twice, within the budget, stable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assembler.errors import ConfigError
from assembler.image.plan import (
    BIG,
    MOST_LAYERS,
    PlannedPackage,
    class_of,
    depths,
    plan_layers,
    read_classes,
)

names = st.one_of(
    st.integers(0, 3000).map(lambda number: f"lib{number}"),
    st.sampled_from(["python", "pip", "pytorch", "triton", "atom", "atom-stack", "atom-device"]),
    st.sampled_from(["amd-aiter-device-gfx942", "amd-aiter-device-gfx950", "x-device-gfx942"]),
)
sizes = st.one_of(st.integers(0, BIG - 1), st.integers(BIG, 10 << 30))
packages = st.lists(
    st.builds(PlannedPackage, names, sizes, st.integers(0, 9)),
    min_size=1,
    max_size=60,
    unique_by=lambda package: package.name,
)


@given(packages, st.integers(1, MOST_LAYERS))
def test_every_package_is_in_exactly_one_layer(chosen, budget):
    layers = plan_layers(chosen, budget)
    found = [name for layer in layers for name in layer.packages]
    assert sorted(found) == sorted(package.name for package in chosen)
    assert len(layers) <= budget
    assert all(layer.packages for layer in layers)
    assert sum(layer.size for layer in layers) == sum(package.size for package in chosen)
    assert len({layer.name for layer in layers}) == len(layers)


@pytest.mark.parametrize("count", [1, 2, 100, 2000])
def test_two_thousand_packages_fit_any_budget(count):
    chosen = [PlannedPackage(f"lib{n}", n * 1_000_003 % (2 * BIG)) for n in range(count)]
    for budget in (1, 2, 20, 100):
        layers = plan_layers(chosen, budget)
        assert len(layers) <= budget
        assert sum(len(layer.packages) for layer in layers) == count


@given(packages, st.randoms())
def test_the_order_of_the_lock_does_not_matter(chosen, random):
    shuffled = list(chosen)
    random.shuffle(shuffled)
    assert plan_layers(shuffled) == plan_layers(chosen)


@given(packages, st.integers(0, 59), st.integers(0, 99))
@settings(max_examples=60)
def test_a_package_that_changes_a_little_moves_nothing(chosen, which, percent):
    at = which % len(chosen)
    old = chosen[at]
    low = (1 << old.size.bit_length()) // 2
    new = low + (low - 1) * percent // 100 if low else 0
    if (old.size >= BIG) != (new >= BIG):
        return
    changed = [*chosen[:at], PlannedPackage(old.name, new, old.depth), *chosen[at + 1 :]]
    before = [layer.packages for layer in plan_layers(chosen, MOST_LAYERS)]
    assert [layer.packages for layer in plan_layers(changed, MOST_LAYERS)] == before


def test_rarely_changed_is_below_and_the_application_on_top():
    chosen = [
        PlannedPackage("atom", 10_000),
        PlannedPackage("atom-device", 100),
        PlannedPackage("amd-aiter-device-gfx950", 1 << 20),
        PlannedPackage("amd-aiter-device-gfx942", 1 << 20),
        PlannedPackage("pytorch", 200 << 20, 3),
        PlannedPackage("numpy", 10 << 20, 1),
        PlannedPackage("python", 12 << 20),
        PlannedPackage("pip", 1 << 20, 1),
    ]
    layers = plan_layers(chosen)
    assert [layer.name for layer in layers] == [
        "python", "python-tools", "numpy", "pytorch", "device-gfx942", "device-gfx950", "app",
    ]  # fmt: skip
    assert layers[-1].packages == ("atom", "atom-device")


def test_device_layers_leave_the_host_alone():
    host = [PlannedPackage("python", 5 << 20), PlannedPackage("libx", 100)]
    one = plan_layers([*host, PlannedPackage("a-device-gfx942", 5)])
    two = plan_layers(
        [*host, PlannedPackage("a-device-gfx942", 5), PlannedPackage("b-device-gfx950", 7)]
    )
    assert one == two[:-1]


@pytest.mark.parametrize("budget", [0, -1, MOST_LAYERS + 1])
def test_budgets_that_engines_cannot_mount(budget):
    with pytest.raises(ConfigError, match="choose one from 1 to 100"):
        plan_layers([PlannedPackage("a", 1)], budget)


def test_classes_are_ranked_and_libraries_the_rest():
    assert [change.name for change in read_classes()] == [
        "python", "library", "host", "device", "app",
    ]  # fmt: skip
    assert class_of("anything").name == "library"
    assert class_of("amd-aiter-device-gfx942").name == "device"


def test_depths_follow_the_longest_chain_and_survive_cycles():
    found = depths({
        "a": [], "b": ["a"], "c": ["b >=1", "a"], "x": ["y"], "y": ["x 1.*"], "z": ["not-here"],
        "d": ["channel::c"],
    })  # fmt: skip
    assert {name: found[name] for name in "abczd"} == {"a": 0, "b": 1, "c": 2, "z": 0, "d": 3}
    assert set(found) == set("abcxyzd")


def test_chains_longer_than_the_stack():
    chain = {f"p{n}": [f"p{n + 1}"] for n in range(5000)}
    assert depths(chain)["p0"] == 4999
