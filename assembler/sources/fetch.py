"""All sources of a profile: pins read, missing files brought, and laid out for the recipes."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from assembler.errors import ConfigError, SourceUnavailableError
from assembler.progress import Progress
from assembler.sources.debian import Moved, upstream_version
from assembler.sources.entries import SOURCES_FILE, recipe_folder, recipe_name
from assembler.sources.given import Given
from assembler.sources.pins import Pin, Unpinned, Wheel, read_pins, source_folder
from assembler.sources.pypi import Target
from assembler.sources.store import Store, held
from assembler.stack import Profile
from assembler.variants import FAMILY_AXIS, GFX_AXIS, read_axes
from assembler.workspace import Workspace

VARIANTS_FILE = "variants.yaml"
PINS_FILE = "pins.json"

# A source tree may take a given one's place for these kinds.
_TREES = ("path", "git")


@dataclass(frozen=True)
class FetchResult:
    """What a fetch did.

    ``pins`` are the profile's pins by recipe, as they are now: given trees included, left-out ones
    not. ``fetched`` names the files that were brought, ``cached`` counts those that were here.
    ``left_out`` names the sources that only the user can give and did not. Sizes in bytes.
    """

    pins: Mapping[str, tuple[Pin, ...]]
    fetched: tuple[str, ...]
    fetched_size: int
    cached: int
    moved: tuple[Moved, ...]
    left_out: tuple[str, ...]
    seconds: float


def fetch(
    workspace: Workspace,
    profile: Profile,
    progress: Progress,
    *,
    jobs: int = 8,
    locked: bool = False,
    offline: bool = False,
    verify: bool = False,
    given: Mapping[str, Given] | None = None,
    only: Collection[str] | None = None,
) -> FetchResult:
    """Bring every source of the profile into the store and lay them out for the recipes.

    With ``only`` just those of the recipes it names are brought; others are laid out if they are
    there.

    Afterwards ``workspace.sources(profile)/<recipe>/<file>`` are links into the store, and
    ``variants.yaml`` beside them holds each pin's version. Files already there are neither asked
    about nor hashed again (``verify`` hashes them). ``locked`` refuses to re-pin Debian packages
    that moved, ``offline`` to use the network.
    """
    started = time.monotonic()
    store = Store(workspace.store)
    store.sweep()
    pins = read_pins(workspace, profile, unpinned=only is not None)
    given = given or {}
    others = _others(workspace, profile) if set(given) - _takers(pins) else frozenset()
    pins, left_out = _with_trees(pins, given, store, progress, offline=offline, others=others)
    wanted = {
        pin.sha256: _pinned(pin)
        for recipe, group in pins.items()
        for pin in group
        if only is None or recipe in only
    }
    missing = [pin for pin in wanted.values() if not _present(store, pin, verify=verify)]
    if missing and offline:
        some = ", ".join(pin.file for pin in missing[:3])
        some += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SourceUnavailableError(
            f"the store {store.root} lacks {some}",
            remedy="run `assembler fetch` once with a network, or copy a filled store there",
        )
    moved: tuple[Moved, ...] = ()
    if missing:
        pins, moved = _bring(workspace, profile, progress, store, pins, missing, jobs, locked)
    lay_out(workspace.sources(profile), store, pins, profile, _chosen(workspace, profile))
    fetched = {
        pin.sha256: pin
        for recipe, group in pins.items()
        for pin in group
        if only is None or recipe in only
    }
    sizes = {sha256: store.size(sha256) for sha256 in fetched}
    kept = {sha256 for sha256 in wanted if sha256 not in {pin.sha256 for pin in missing}}
    new = [pin for sha256, pin in fetched.items() if sha256 not in kept]
    return FetchResult(
        pins=pins,
        fetched=tuple(pin.file for pin in new),
        fetched_size=sum(sizes[pin.sha256] for pin in new),
        cached=len(fetched) - len(new),
        moved=moved,
        left_out=left_out,
        seconds=time.monotonic() - started,
    )


def _pinned(pin: Pin) -> Pin:
    if isinstance(pin, Unpinned):
        raise ConfigError(
            f"{pin.label} is not pinned", remedy=f"run `assembler pin {pin.name}` and review it"
        )
    return pin


def _present(store: Store, pin: Pin, *, verify: bool) -> bool:
    if not store.has(pin.sha256):
        return False
    if verify and not store.verify(pin.sha256):
        return False
    if pin.size is None or store.size(pin.sha256) == pin.size:
        return True
    if store.verify(pin.sha256):
        raise ConfigError(
            f"{pin.file} has {store.size(pin.sha256)} bytes where its pin says {pin.size}, though "
            "its SHA-256 is the pinned one",
            remedy="correct the pin's size, or let `assembler pin` do it",
        )
    return False


def _takers(pins: Mapping[str, tuple[Pin, ...]]) -> frozenset[str]:
    return frozenset(pin.name for group in pins.values() for pin in group if pin.kind in _TREES)


def _others(workspace: Workspace, profile: Profile) -> frozenset[str]:
    """Return the names of source trees that the other profiles take."""
    found: set[str] = set()
    for one in workspace.stack().profile.values():
        # Another profile's faulty pins are not this command's business.
        with suppress(ConfigError):
            found |= _takers(read_pins(workspace, one)) if one.name != profile.name else set()
    return frozenset(found)


def _with_trees(
    pins: Mapping[str, tuple[Pin, ...]],
    given: Mapping[str, Given],
    store: Store,
    progress: Progress,
    *,
    offline: bool,
    others: Set[str],
) -> tuple[dict[str, tuple[Pin, ...]], tuple[str, ...]]:
    """Put given source trees in their pins' places; return also the names nobody gave.

    ``others`` are names that other profiles take, which may have been given for them.
    """
    takers = _takers(pins)
    for name in given:
        if name not in takers and name not in others:
            known = ", ".join(sorted(takers | others)) or "none at all"
            raise ConfigError(
                f"no recipe takes a source called {name!r}",
                remedy=f"forget it with --source {name}= (recipes take {known})",
            )
    result: dict[str, tuple[Pin, ...]] = {}
    left_out: list[str] = []
    for recipe, group in pins.items():
        kept = []
        for pin in group:
            if pin.kind in _TREES and pin.name in given:
                from assembler.sources.trees import snapshot

                kept.append(snapshot(pin.name, given[pin.name], store, progress, offline=offline))
            elif pin.kind == "path":
                left_out.append(pin.name)
            else:
                kept.append(pin)
        if kept:
            result[recipe] = tuple(kept)
    return result, tuple(left_out)


def _bring(
    workspace: Workspace,
    profile: Profile,
    progress: Progress,
    store: Store,
    pins: Mapping[str, tuple[Pin, ...]],
    missing: list[Pin],
    jobs: int,
    locked: bool,
) -> tuple[dict[str, tuple[Pin, ...]], tuple[Moved, ...]]:
    from assembler.sources.bring import Bringer
    from assembler.sources.repin import replace_pins

    bringer = Bringer(store, target_of(profile), progress, jobs=jobs, locked=locked)
    brought = bringer.bring(missing)
    if not brought.replaced:
        return dict(pins), ()
    folders = {recipe_name(one): recipe_folder(workspace, one) for one in profile.recipes}
    changed: dict[str, tuple[Pin, ...]] = {}
    for recipe, group in pins.items():
        changed[recipe] = tuple(brought.replaced.get(pin, pin) for pin in group)
        new = {
            brought.replaced[pin].name: brought.replaced[pin]
            for pin in group
            if pin in brought.replaced
        }
        if new:
            replace_pins(folders[recipe] / SOURCES_FILE, profile.pin_table, new)
    return changed, brought.moved


def target_of(profile: Profile) -> Target:
    """Return what the profile's wheels must run on."""
    return Target.of(
        python=profile.python,
        platform=profile.platform,
        glibc=profile.virtual_packages.get("__glibc", "2.17"),
    )


def variant_key(name: str) -> str:
    """Return the variant that holds a pin's version: ``amd-aiter`` → ``amd_aiter_version``."""
    return re.sub(r"[^0-9A-Za-z_]", "_", name) + "_version"


def variants(
    pins: Iterable[Pin], choices: Mapping[str, str | Sequence[str]] = MappingProxyType({})
) -> str:
    """Return variants.yaml: the choices, and each pin's version (Debian's without revision).

    It is all that rattler-build needs beside the profile's own variant files.
    """
    values: dict[str, str | Sequence[str]] = dict(choices)
    for pin in pins:
        version = upstream_version(pin.version) if pin.kind == "debian" else pin.version
        if version:
            values[variant_key(pin.name)] = version
    lists = {key: [one] if isinstance(one, str) else list(one) for key, one in values.items()}
    return "".join(f"{key}: {json.dumps(lists[key])}\n" for key in sorted(lists))


def _chosen(workspace: Workspace, profile: Profile) -> dict[str, str | Sequence[str]]:
    """Return the axes that the profile's choices leave one value, and the targets' families."""
    axes = read_axes(workspace.variant_files(profile)).choose(profile.choose)
    single: dict[str, str | Sequence[str]] = {
        axis: values[0] for axis, values in axes.values.items() if len(values) == 1
    }
    single.pop(GFX_AXIS, None)
    families = {FAMILY_AXIS: axes.gfx_families} if GFX_AXIS in axes.values else {}
    return single | profile.choose | families


def lay_out(
    folder: Path,
    store: Store,
    pins: Mapping[str, tuple[Pin, ...]],
    profile: Profile,
    chosen: Mapping[str, str | Sequence[str]],
) -> None:
    """Make ``folder`` hold exactly these pins' files by recipe, variants.yaml and pins.json.

    ``chosen`` are axes with their values, which go into variants.yaml too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):  # two fetches at once would take away each other's scratch files
        _lay_out(folder, store, pins, profile, chosen)


def _lay_out(
    folder: Path,
    store: Store,
    pins: Mapping[str, tuple[Pin, ...]],
    profile: Profile,
    chosen: Mapping[str, str | Sequence[str]],
) -> None:
    wanted: dict[str, dict[str, Pin]] = {}
    for recipe, group in pins.items():
        for pin in group:
            wanted.setdefault(source_folder(recipe, pin), {})[pin.file] = pin
    for name, files in wanted.items():
        for pin in files.values():
            if not pin.sha256 or not store.has(pin.sha256):
                continue
            store.link(pin.sha256, folder / name / pin.file)
        here = folder / name
        for path in here.iterdir() if here.is_dir() else ():
            if path.name not in files:
                path.unlink()
    for path in folder.iterdir():
        if path.is_dir() and path.name not in wanted:
            shutil.rmtree(path)
    choices = {"profile": profile.name, "python_version": profile.python, **chosen}
    _write(
        folder / VARIANTS_FILE, variants((pin for group in pins.values() for pin in group), choices)
    )
    data = {
        recipe: [pin.model_dump(mode="json", exclude_defaults=True) for pin in group]
        for recipe, group in sorted(pins.items())
    }
    _write(folder / PINS_FILE, json.dumps(data, indent=1, sort_keys=True) + "\n")


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read_fetched(workspace: Workspace, profile: Profile) -> dict[str, tuple[Pin, ...]]:
    """Return the pins of the last fetch by recipe: what ``workspace.sources(profile)`` holds.

    Unlike ``read_pins`` it includes the trees that the user gave. ConfigError before any fetch.
    """
    path = workspace.sources(profile) / PINS_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"the sources of profile {profile.name!r} have not been fetched",
            remedy=f"run `assembler fetch --profile {profile.name}`",
        ) from None
    return {
        recipe: tuple(_model(one).model_validate(one) for one in group)
        for recipe, group in data.items()
    }


def _model(data: Mapping[str, object]) -> type[Pin]:
    if "conda_name" in data:
        return Wheel
    return Pin if data.get("sha256") else Unpinned
