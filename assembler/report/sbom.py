"""Software bills of materials of an image: CycloneDX 1.6 and SPDX 2.3, both JSON.

Both hold exactly the lock's conda packages, the wheels inside them and the base's Debian packages,
and are a function of the image: no time of writing, no random identifier.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from license_expression import ExpressionError, get_spdx_licensing  # type: ignore[import-untyped]
from packageurl import PackageURL

from assembler import __version__
from assembler.digest import canonical_json
from assembler.report.inventory import CondaPart, DebianPart, Inventory, Subject, WheelPart

CYCLONEDX = "application/vnd.cyclonedx+json"
SPDX = "application/spdx+json"
NO_ASSERTION = "NOASSERTION"
# A name, not an address; SPDX wants one that is unique for every document.
NAMESPACE = "https://github.com/ROCm/ATOM/sbom"
_NAMESPACE = uuid.UUID("5f1d6f2c-3c54-5b1e-9c6a-6a0e3f1b7a10")
_PROPERTY = "io.github.rocm.atom"


def image_purl(subject: Subject) -> str:
    """Return the image's own package URL."""
    qualifiers = {"tag": subject.tag}
    return str(PackageURL("oci", None, subject.name, subject.digest, qualifiers))


def _wheel(wheel: WheelPart, owner: str) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=wheel.name,
        version=wheel.version,
        purl=PackageURL.from_string(wheel.purl),
        bom_ref=f"{owner}#{wheel.purl}",
    )


def _conda(part: CondaPart) -> Component:
    package = part.package
    licenses = [LicenseFactory().make_from_string(package.license)] if package.license else []
    properties = [Property(name=f"{_PROPERTY}.file", value=package.file)]
    if part.input_key:
        properties.append(Property(name=f"{_PROPERTY}.input-key", value=part.input_key))
    references = [
        ExternalReference(
            type=ExternalReferenceType.SOURCE_DISTRIBUTION,
            url=XsUri(f"urn:sha256:{digest}"),
            comment=file,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        for file, digest in part.sources.items()
    ]
    if part.home:
        references.append(
            ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(part.home))
        )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=PackageURL.from_string(part.purl),
        bom_ref=part.purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
        licenses=licenses,
        properties=properties,
        external_references=references,
        components=[_wheel(wheel, part.purl) for wheel in part.wheels],
    )


def _debian(part: DebianPart) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=part.pin.name,
        version=part.pin.version,
        purl=PackageURL.from_string(part.purl),
        bom_ref=part.purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=part.pin.sha256)],
    )


def cyclonedx(inventory: Inventory, subject: Subject) -> bytes:
    """Return the CycloneDX document of an image."""
    root = Component(
        type=ComponentType.CONTAINER,
        name=subject.name,
        version=subject.digest,
        purl=PackageURL.from_string(image_purl(subject)),
        bom_ref=subject.digest,
    )
    conda = {part.package.name: _conda(part) for part in inventory.conda}
    debian = [_debian(part) for part in inventory.debian]
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, subject.digest),
        components=[*conda.values(), *debian],
    )
    bom.metadata.timestamp = datetime.fromisoformat(subject.created)
    bom.metadata.component = root
    bom.metadata.tools.components.add(
        Component(type=ComponentType.APPLICATION, name="assembler", version=__version__)
    )
    bom.register_dependency(root, [*conda.values(), *debian])
    for part in inventory.conda:
        needs = {spec.split()[0].split("::")[-1] for spec in part.package.depends}
        below = [conda[name] for name in sorted(needs & conda.keys())]
        component = conda[part.package.name]
        bom.register_dependency(component, [*below, *component.components])
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=None).encode() + b"\n"


def _expression(text: str) -> str:
    """Return a licence as an SPDX expression, or NOASSERTION when it is none."""
    if not text:
        return NO_ASSERTION
    try:
        get_spdx_licensing().parse(text, validate=True, strict=True)
    except ExpressionError:
        return NO_ASSERTION
    return text


def _identifier(kind: str, *parts: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join((kind, *parts)))


def _spdx_package(
    identifier: str, name: str, version: str, purl: str, **more: Any
) -> dict[str, Any]:
    return {
        "SPDXID": identifier,
        "name": name,
        "versionInfo": version,
        "downloadLocation": NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": NO_ASSERTION,
        "licenseDeclared": NO_ASSERTION,
        "copyrightText": NO_ASSERTION,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
        **more,
    }


def _sha256(digest: str) -> list[dict[str, str]]:
    return [{"algorithm": "SHA256", "checksumValue": digest}]


def _relation(one: str, kind: str, two: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": two}


def spdx(inventory: Inventory, subject: Subject) -> bytes:
    """Return the SPDX document of an image."""
    image = _identifier("image", subject.name)
    packages = [
        _spdx_package(
            image,
            subject.name,
            subject.digest,
            image_purl(subject),
            primaryPackagePurpose="CONTAINER",
            checksums=_sha256(subject.digest.removeprefix("sha256:")),
        )
    ]
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", image)]
    names = {part.package.name for part in inventory.conda}
    for part in inventory.conda:
        package = part.package
        identifier = _identifier("conda", package.name)
        declared = _expression(package.license)
        more: dict[str, Any] = {"licenseDeclared": declared, "checksums": _sha256(package.sha256)}
        if declared == NO_ASSERTION and package.license:
            more["licenseComments"] = f"the package says: {package.license}"
        packages.append(_spdx_package(identifier, package.name, package.version, part.purl, **more))
        relations.append(_relation(image, "CONTAINS", identifier))
        needs = {spec.split()[0].split("::")[-1] for spec in package.depends}
        relations += [
            _relation(identifier, "DEPENDS_ON", _identifier("conda", name))
            for name in sorted(needs & names)
        ]
        for wheel in part.wheels:
            inner = _identifier("wheel", package.name, wheel.name)
            packages.append(_spdx_package(inner, wheel.name, wheel.version, wheel.purl))
            relations.append(_relation(identifier, "CONTAINS", inner))
    for base in inventory.debian:
        identifier = _identifier("deb", base.pin.name)
        checksums = _sha256(base.pin.sha256)
        packages.append(
            _spdx_package(
                identifier, base.pin.name, base.pin.version, base.purl, checksums=checksums
            )
        )
        relations.append(_relation(image, "CONTAINS", identifier))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{subject.name}:{subject.tag}",
        "documentNamespace": f"{NAMESPACE}/{uuid.uuid5(_NAMESPACE, subject.digest)}",
        "creationInfo": {
            "created": subject.created,
            "creators": [f"Tool: assembler-{__version__}"],
        },
        "packages": packages,
        "relationships": relations,
    }
    return canonical_json(document) + b"\n"
