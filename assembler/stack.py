"""stack.toml as frozen models: what each profile builds, locks and ships."""

from __future__ import annotations

import difflib
import errno
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assembler.errors import ConfigError

Word = Annotated[str, Field(min_length=1)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Smoke(_Data):
    """A program that must run inside the image without network, root or a writable root."""

    id: Word
    summary: Word
    code: Word = Field(description="Python source, given to the image's python with -c")
    env: dict[str, str] = {}
    timeout: float = Field(default=120, gt=0, description="seconds")
    expect_failure: str | None = Field(
        default=None,
        description="regular expression: the run may fail if its output matches, and says so",
    )


class Base(_Data):
    """The Debian packages at the bottom of an image."""

    suite: Word = Field(description="Debian release, e.g. trixie")
    glibc: Word = Field(description="the C library version these packages bring")
    packages: tuple[Word, ...]


class Flavour(_Data):
    """The same image with more at its bottom."""

    summary: Word
    base: tuple[Word, ...] = Field(description="Debian packages beside those of the image's base")


class Image(_Data):
    """What an image is called and how it starts."""

    name: Word
    prefix: Word = "/opt/atom"
    user: str = Field(pattern=r"^[0-9]+:[0-9]+$", description="numeric uid:gid, not root")
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...] = ()
    workdir: Word = "/"
    env: dict[str, str] = {}
    base: Base


class Profile(_Data):
    """One stack from recipe list to image."""

    name: Word
    summary: Word
    platform: Word = "linux-64"
    python: str = Field(pattern=r"^3\.[0-9]+$")
    channels: tuple[str, ...] = ()
    variants: tuple[Word, ...]
    choose: dict[str, str] = Field(
        default={}, description="one value for each of these variant axes; --variant picks another"
    )
    recipes: tuple[Word, ...] = Field(description="folders below recipes/")
    wheels: Word | None = None
    indexes: dict[str, str] = Field(
        default={}, description="package indexes that pins may name beside the user's own"
    )
    pins: str = Field(default="", description="table of the sources.toml files [the name]")
    root: Word
    root_without_source: Word
    virtual_packages: dict[str, str]
    image: Image
    smoke: tuple[Smoke, ...] = ()
    flavours: dict[str, Flavour] = Field(
        default={}, description="images with more in their base; --flavour NAME makes one"
    )
    flavour: str = Field(
        default="", max_length=0, description="set by --flavour, never in stack.toml"
    )

    @property
    def pin_table(self) -> str:
        """The table of the sources.toml files that holds this profile's pins."""
        return self.pins or self.name

    def with_variants(self, chosen: Mapping[str, str]) -> Profile:
        """Return the profile with other choices on its axes.

        It is a stack of its own: another choice than stack.toml's gives it another name, and so
        its own sources, lock and image. ConfigError for an axis that the profile does not offer.
        """
        for axis in chosen:
            if axis not in self.choose:
                offered = ", ".join(self.choose) or "none"
                raise ConfigError(
                    f"profile {self.name!r} has no variant axis {axis!r}",
                    remedy=f"the axes it offers are {offered}",
                )
        # In the profile's order: what is chosen names the stack, not how it was typed.
        other = [chosen[axis] for axis, own in self.choose.items() if chosen.get(axis, own) != own]
        if not other:
            return self
        suffix = "".join(f"-{value}" for value in other)
        image = self.image.model_copy(update={"name": f"{self.image.name}{suffix}"})
        return self.model_copy(
            update={
                "name": f"{self.name}{suffix}",
                "pins": self.pin_table,
                "choose": {**self.choose, **chosen},
                "image": image,
            }
        )

    @property
    def suffix(self) -> str:
        """What a flavour adds to the names of its lock and its image's place."""
        return f"-{self.flavour}" if self.flavour else ""

    def with_flavour(self, name: str | None) -> Profile:
        """Return the profile whose base has a flavour's packages too; None is no flavour.

        Its lock and its image lie beside the profile's own. ConfigError for a flavour that the
        profile does not offer.
        """
        if name is None:
            return self
        if name not in self.flavours:
            offered = ", ".join(self.flavours) or "none"
            raise ConfigError(
                f"profile {self.name!r} has no flavour {name!r}",
                remedy=f"the flavours it offers are {offered}",
            )
        packages = dict.fromkeys((*self.image.base.packages, *self.flavours[name].base))
        base = self.image.base.model_copy(update={"packages": tuple(packages)})
        image = self.image.model_copy(update={"base": base})
        return self.model_copy(update={"image": image, "flavour": name})


class Stack(_Data):
    """The whole of stack.toml."""

    default_profile: Word
    profile: dict[str, Profile]

    def select(self, name: str | None) -> Profile:
        """Return the named profile, or the default one; ConfigError when there is none such."""
        wanted = name or self.default_profile
        if wanted not in self.profile:
            near = difflib.get_close_matches(wanted, self.profile, n=1)
            guess = f"did you mean {near[0]!r}? It" if near else "stack.toml"
            raise ConfigError(
                f"there is no profile {wanted!r}",
                remedy=f"{guess} has the profiles {', '.join(sorted(self.profile))}"
                if not near
                else f"{guess} is among the profiles {', '.join(sorted(self.profile))}",
            )
        return self.profile[wanted]

    def options(self, profile: Profile) -> tuple[str, ...]:
        """Return the command-line options that choose a profile made from one of these."""
        for name, base in self.profile.items():
            other = {
                axis: value
                for axis, value in profile.choose.items()
                if base.choose.get(axis, value) != value
            }
            if base.with_variants(other).name == profile.name:
                variants = (("--variant", f"{axis}={value}") for axis, value in other.items())
                flavour = ("--flavour", profile.flavour) if profile.flavour else ()
                return ("--profile", name, *(word for pair in variants for word in pair), *flavour)
        raise ConfigError(
            f"there is no profile that {profile.name!r} is made from",
            remedy=f"stack.toml has the profiles {', '.join(sorted(self.profile))}",
        )


def read_stack(path: Path) -> Stack:
    """Parse and check stack.toml; ConfigError names the first faulty key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        raise ConfigError(
            f"there is no {path.name} in {path.parent}",
            remedy="run the command in the project's folder or name that folder with --project",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML ({error})", remedy="correct it") from None
    for name, profile in data.get("profile", {}).items():
        if isinstance(profile, dict):
            profile.setdefault("name", name)
    try:
        return Stack.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{path.name}: {where}: {first['msg']}",
            remedy="correct it (docs/reference/stack.md describes every key)",
        ) from None
