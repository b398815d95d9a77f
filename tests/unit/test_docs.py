"""The documentation's links lead somewhere, and its commands are ones that the parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from assembler.cli.main import cli
from tests.conftest import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md"))
    if path.name != "commands.md"  # made from the parser itself
)
FENCE = re.compile(r"^\s*```")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CALL = re.compile(r"(?:^|[\s(;])(?:\./run )?assembler (.*)")
END = {"|", "&&", ";", "||", ">", "2>"}


def code_lines(text: str) -> Iterator[str]:
    """Yield the lines of code blocks, fenced or indented, and the code within other lines."""
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line
        else:
            yield from re.findall(r"`([^`]+)`", line)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after ``assembler`` of each command line in a text's code."""
    for line in code_lines(text):
        if line.lstrip().startswith("#") or not (found := CALL.search(line)):
            continue
        try:
            words = shlex.split(found[1].rstrip("\\)"), comments=True)
        except ValueError:
            continue  # a sentence with an apostrophe
        for end, word in enumerate(words):
            if word in END or word == "·":
                words = words[:end]
                break
        if words and not words[0].startswith(("…", "<")):
            yield [word for word in words if word != "…"]


def parse(words: list[str]) -> None:
    """Let click's own parser take the words, without running anything or looking for files."""
    command: click.Command = cli
    context = click.Context(cli, info_name="assembler")
    while isinstance(command, click.Group):
        if words and words[0].startswith("-"):
            if {words[0]} & {"--help", "-h", "--version"}:
                return
            if "solve" not in command.list_commands(context):
                raise click.UsageError(f"no command before {words[0]}")
        name, rest = (words[0], words[1:]) if words else ("", [])
        found = command.get_command(context, name)
        if found is None and "solve" in command.list_commands(context):
            found, rest = command.get_command(context, "solve"), words
        if found is None:
            if not words and command is not cli:
                return
            raise click.UsageError(f"there is no command {name!r}")
        command, words = found, rest
        context = click.Context(command, info_name=name)
    if words and words[-1] in {name for one in command.params for name in one.opts}:
        words = [*words, "X"]  # an option may be named without its value
    values, _, _ = command.make_parser(context).parse_args(list(words))
    check_choices(command, context, values)


def check_choices(command: click.Command, context: click.Context, values: dict[str, Any]) -> None:
    """Raise for a value that is none of an option's choices; PLACEHOLDERS stand for any."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Choice) and (value := values.get(str(parameter.name))):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and not one.isupper():
                    parameter.type.convert(one, parameter, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_parse(page: Path) -> None:
    wrong = []
    for words in commands(page.read_text()):
        try:
            parse(words)
        except click.ClickException as error:
            wrong.append(f"assembler {shlex.join(words)}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_commands_in_messages_parse() -> None:
    """What a remedy tells people to type exists."""
    wrong = []
    for file in sorted((ROOT / "assembler").rglob("*.py")):
        text = re.sub(r'"\s*\n\s*f?"', "", file.read_text())
        for call in re.findall(r"`assembler ([^`\n]+)`", text):
            if call.startswith("{"):
                continue
            try:
                parse([re.sub(r"\{.*?\}", "X", word) for word in call.split() if word != "..."])
            except click.ClickException as error:
                wrong.append(f"{file.name}: assembler {call}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


def test_the_reader_of_commands_sees_what_is_wrong() -> None:
    text = "type `./run assembler build --no-such`\n```\nA=1 assembler lock diff a b # why\n```\n"
    first, second = commands(text)
    assert second == ["lock", "diff", "a", "b"]
    parse(second)
    parse(["lock", "--check"])
    with pytest.raises(click.ClickException):
        parse(first)
    with pytest.raises(click.ClickException):
        parse(["no-such"])


def anchors(text: str) -> set[str]:
    """Return the headings of a page as links spell them."""
    found = set()
    fenced = False
    for line in text.splitlines():
        fenced ^= bool(FENCE.match(line))
        if not fenced and (match := re.match(r"#+ (.*)", line)):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(page.read_text()):
        place, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / place).resolve() if place else page
        if not target.exists():
            dead.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
            dead.append(f"{link}: there is no such heading")
    assert not dead, "\n".join(dead)
