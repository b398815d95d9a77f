"""Where things are: one object that knows the project's folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from assembler.errors import ConfigError
from assembler.stack import Profile, Stack, read_stack

STORE_VARIABLE = "ASSEMBLER_STORE"
# rattler-build writes the project's path into shell scripts, between quotes but unescaped.
UNQUOTABLE = '"$`\\\n'


@dataclass(frozen=True)
class Workspace:
    """The folders of one checkout; all paths absolute.

    ``store`` may lie outside the checkout (``ASSEMBLER_STORE``) so that several checkouts, or CI
    runs, share downloads. ``channel`` may be given with ``-c``.
    """

    root: Path
    channel: Path
    build: Path
    store: Path
    locks: Path

    @classmethod
    def at(cls, root: Path, *, channel: Path | None = None) -> Workspace:
        """Return the workspace of the checkout at ``root``.

        Raises ConfigError for a path that rattler-build's scripts or py-rattler cannot hold.
        """
        root = root.absolute()
        channel = (channel or root / "channel").absolute()
        for path in (root, channel):
            _demand_text(path)
        _demand_quotable(root)
        build = root / "build"
        store = os.environ.get(STORE_VARIABLE)
        return cls(
            root=root,
            channel=channel,
            build=build,
            store=Path(store).absolute() if store else build / "store",
            locks=root / "locks",
        )

    @property
    def recipes(self) -> Path:
        """The recipe set."""
        return self.root / "recipes"

    def sources(self, profile: Profile) -> Path:
        """The profile's fetched files by recipe: ``<recipe>/<file>``, links into the store."""
        return self.build / "sources" / profile.name

    def variant_files(self, profile: Profile) -> tuple[Path, ...]:
        """The profile's variant files, the more special ones last."""
        return tuple(self.root / file for file in profile.variants)

    def lock_folder(self, profile: Profile) -> Path:
        """The folder of the profile's lock files."""
        return self.locks / f"{profile.name}{profile.suffix}"

    def lock_file(self, profile: Profile) -> Path:
        """The profile's lock, the source of truth."""
        return self.lock_folder(profile) / "conda-lock.yml"

    def image_layout(self, profile: Profile) -> Path:
        """The profile's OCI image layout."""
        return self.build / "images" / f"{profile.image.name}{profile.suffix}"

    def stack(self) -> Stack:
        """Read stack.toml."""
        return read_stack(self.root / "stack.toml")


def _demand_text(path: Path) -> None:
    raw = os.fsencode(path)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"the path {raw.decode(errors='backslashreplace')} is not valid UTF-8",
            remedy="rename the folder, or work in another one",
        ) from None


def _demand_quotable(root: Path) -> None:
    for character in UNQUOTABLE:
        if character in str(root):
            name = "a line break" if character == "\n" else character
            raise ConfigError(
                f"the project's path {str(root)!r} has {name} in it, which build scripts cannot "
                "quote",
                remedy="rename the folder, or work in another one",
            )
