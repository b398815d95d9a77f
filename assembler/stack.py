"""stack.toml as frozen models: what each profile builds, locks and ships."""

from __future__ import annotations

import difflib
import tomllib
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
    recipes: tuple[Word, ...]
    wheels: Word | None = None
    root: Word
    root_without_source: Word
    virtual_packages: dict[str, str]
    image: Image
    smoke: tuple[Smoke, ...] = ()


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


def read_stack(path: Path) -> Stack:
    """Parse and check stack.toml; ConfigError names the first faulty key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
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
