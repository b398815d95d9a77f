"""Activation baked into the image: no shell runs, so the variables stand in its Env.

Read are etc/conda/env_vars.d/*.json and etc/conda/activate.d/*.sh. A script may only set variables:
``export NAME=VALUE`` and ``NAME=VALUE``, with ``$CONDA_PREFIX`` and variables set before. Anything
else is an error, because skipping it would give an environment other than conda's.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from assembler.errors import ImageError

SCRIPTS = "etc/conda/activate.d/"
VARIABLES = "etc/conda/env_vars.d/"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_EXPANSION = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_FORBIDDEN = re.compile(r"[`;&|<>()\\]|\$\(|\$\{[A-Za-z_0-9]*[^A-Za-z_0-9}]")


def environment(
    prefix: str,
    files: Mapping[str, str],
    extra: Mapping[str, str],
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the image's variables: the prefix's, then activation's, then the profile's.

    ``files`` maps places in the prefix to the text of activation files; ``base`` are a base image's
    variables, which all others replace.
    """
    base = base or {}
    result = {
        **base,
        "PATH": f"{prefix}/bin:{base.get('PATH') or SYSTEM_PATH}",
        "CONDA_PREFIX": prefix,
    }
    for place, text in sorted(files.items()):
        if place.startswith(VARIABLES) and place.endswith(".json"):
            result.update(_json(place, text))
    for place, text in sorted(files.items()):
        if place.startswith(SCRIPTS) and place.endswith(".sh"):
            for number, line in enumerate(text.splitlines(), 1):
                _apply(result, line.strip(), f"{place}, line {number}")
    result.update(extra)
    return result


def _json(place: str, text: str) -> dict[str, str]:
    try:
        values = json.loads(text)
        return {str(name): str(value) for name, value in values.items()}
    except (ValueError, AttributeError):
        raise ImageError(
            f"{place} is not a JSON object of variables", remedy="build its package again"
        ) from None


def _apply(result: dict[str, str], line: str, where: str) -> None:
    if not line or line.startswith("#"):
        return
    found = _ASSIGNMENT.match(line)
    if not found or _FORBIDDEN.search(found[2]):
        raise _cannot(where, line)
    name, value = found[1], found[2]
    literal = value.startswith("'") and value.endswith("'") and len(value) > 1
    try:
        words = shlex.split(value, comments=True)
    except ValueError:
        raise _cannot(where, line) from None
    if len(words) > 1 or ("'" in value and not literal):
        raise _cannot(where, line)
    text = words[0] if words else ""
    if not literal:
        text = _EXPANSION.sub(lambda match: result.get(match[1] or match[2], ""), text)
    result[name] = text


def _cannot(where: str, line: str) -> ImageError:
    return ImageError(
        f"the activation script {where} does more than set a variable ({line!r})",
        remedy="let its recipe write etc/conda/env_vars.d/*.json instead, or drop the script",
    )
