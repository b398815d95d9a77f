"""How an image came to be: an in-toto statement with the SLSA v1 provenance predicate.

It is unsigned: whoever publishes the image signs it with an identity of their own. Sources:
in-toto Statement v1; slsa.dev/provenance/v1.
"""

from __future__ import annotations

from typing import Any

from assembler import __version__
from assembler.digest import canonical_json
from assembler.image.documents import OURS
from assembler.lock.model import Lock
from assembler.report.inventory import Inventory, Subject

IN_TOTO = "application/vnd.in-toto+json"
BUILD_TYPE = "https://github.com/ROCm/ATOM/assembler/image@v1"
BUILDER = "https://github.com/ROCm/ATOM/assembler"


def _resource(uri: str, sha256: str, **annotations: str) -> dict[str, Any]:
    found: dict[str, Any] = {"uri": uri, "digest": {"sha256": sha256}}
    if annotations:
        found["annotations"] = annotations
    return found


def provenance(inventory: Inventory, subject: Subject, lock: Lock, labels: dict[str, str]) -> bytes:
    """Return the statement: subject the image, dependencies the lock, packages, base and sources.

    ``labels`` are the image's; those of this assembler become external parameters.
    """
    packages = [
        _resource(part.purl, part.package.sha256, inputKey=part.input_key)
        if part.input_key
        else _resource(part.purl, part.package.sha256)
        for part in inventory.conda
    ]
    base = [_resource(part.purl, part.pin.sha256) for part in inventory.debian]
    sources = {
        digest: _resource(f"urn:sha256:{digest}", digest, file=file, package=part.package.name)
        for part in inventory.conda
        for file, digest in part.sources.items()
        if len(digest) == 64
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {
                "name": f"{subject.name}:{subject.tag}",
                "digest": {"sha256": subject.digest.removeprefix("sha256:")},
            }
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "lock": {"sha256": lock.digest},
                    "specs": list(lock.specs),
                    **{
                        name.removeprefix(f"{OURS}."): value
                        for name, value in sorted(labels.items())
                        if name.startswith(f"{OURS}.") and name != f"{OURS}.lock"
                    },
                },
                "internalParameters": {"virtualPackages": dict(lock.virtual_packages)},
                "resolvedDependencies": [
                    _resource("conda-lock.yml", lock.digest),
                    *packages,
                    *base,
                    *(sources[digest] for digest in sorted(sources)),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"assembler": __version__}},
                "metadata": {"invocationId": f"sha256:{lock.digest}"},
            },
        },
    }  # fmt: skip
    return canonical_json(statement) + b"\n"
