"""Options that every command has, as users of conda and docker know them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from assembler.cli.output import emit
from assembler.progress import Progress, choose_progress
from assembler.stack import Profile
from assembler.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Session:
    """What a command works with: the folders, the profile, and how to talk to people."""

    workspace: Workspace
    profile: Profile
    progress: Progress
    as_json: bool

    def show(self, data: dict[str, Any], text: str) -> None:
        """Print the result on stdout: the object with ``--json``, else the words."""
        if self.as_json:
            emit(json.dumps(data, indent=2, sort_keys=True))
        elif text:
            emit(text)


def another_image(session: Session) -> str:
    """Return words for a remedy: the other profiles whose images are here, if there are any."""
    workspace = session.workspace
    made = sorted(
        name
        for name, profile in workspace.stack().profile.items()
        if workspace.image_layout(profile).is_dir()
    )
    return f", choose with --profile what is made: {', '.join(made)}" if made else ""


def choices(options: tuple[str, ...]) -> dict[str, str]:
    """Return axis -> value of the ``--variant`` options."""
    pairs = [option.partition("=") for option in options]
    for axis, _equals, value in pairs:
        if not axis or not value:
            raise click.BadParameter(f"{axis!r} gives no value", param_hint="--variant")
    return {axis: value for axis, _equals, value in pairs}


def common(function: F) -> F:
    """Add the options that every command has, --profile to -v; a Session comes first."""

    @click.option(
        "--profile",
        "profile",
        metavar="NAME",
        envvar="ASSEMBLER_PROFILE",
        help="Profile of stack.toml [$ASSEMBLER_PROFILE, else its default_profile].",
    )
    @click.option(
        "--variant",
        "variants",
        multiple=True,
        metavar="AXIS=VALUE",
        help="Another choice than stack.toml's on an axis that the profile offers.",
    )
    @click.option(
        "--flavour",
        metavar="NAME",
        help="The profile with more in its image's base, such as debug: with a shell.",
    )
    @click.option(
        "-c", "--channel", type=click.Path(path_type=Path), help="Channel folder [./channel]."
    )
    @click.option(
        "--project",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(),
        help="Folder with stack.toml [current folder].",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress.")
    @click.option("-v", "--verbose", is_flag=True, help="More progress.")
    def wrapper(
        profile: str | None,
        variants: tuple[str, ...],
        flavour: str | None,
        channel: Path | None,
        project: Path,
        as_json: bool,
        quiet: bool,
        verbose: bool,
        **rest: Any,
    ) -> Any:
        workspace = Workspace.at(project, channel=channel)
        session = Session(
            workspace=workspace,
            profile=workspace.stack()
            .select(profile)
            .with_variants(choices(variants))
            .with_flavour(flavour),
            progress=choose_progress(quiet=quiet, verbose=verbose),
            as_json=as_json,
        )
        return function(session, **rest)

    wrapper.__name__ = function.__name__
    wrapper.__doc__ = function.__doc__
    # click keeps options declared below @common on the wrapped function; hand them over.
    inherited = getattr(function, "__click_params__", [])
    wrapper.__click_params__ = inherited + wrapper.__click_params__  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def fetching(function: F) -> F:
    """Add --locked, --offline and --source: what every command that fetches has."""
    options = (
        click.option("--locked", is_flag=True, help="Refuse to re-pin Debian packages that moved."),
        click.option("--offline", is_flag=True, help="Use the store alone."),
        click.option(
            "--source",
            "sources",
            multiple=True,
            metavar="NAME=PATH|URL@COMMIT",
            help="A source tree that you give; remembered until NAME= forgets it.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
