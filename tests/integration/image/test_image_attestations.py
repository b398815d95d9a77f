"""SBOMs and provenance: valid, complete, nothing invented, and travelling with the image."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import requests
from image_debs import make_base
from image_packages import Item, lock_of, make_conda

from assembler.errors import ImageError
from assembler.image.archive import write_archive
from assembler.image.documents import INDEX
from assembler.image.layout import Layout
from assembler.image.registry import Pusher, Reference
from assembler.progress import SilentProgress
from assembler.report.attestation import Attestation, attach
from assembler.report.inventory import Subject, take_inventory
from assembler.report.provenance import IN_TOTO, provenance
from assembler.report.sbom import CYCLONEDX, SPDX, cyclonedx, spdx
from assembler.sources.store import Store

SUBJECT = Subject("tiny", "latest", "sha256:" + "a" * 64, "2025-06-15T15:06:40Z")


@pytest.fixture
def lock(channel, tmp_path, site):
    make_conda(
        channel, "wheelful",
        [Item(f"{site}/Torch_x/__init__.py", b""),
         Item(f"{site}/Torch_x-2.0+cpu.dist-info/METADATA", b"Name: Torch-x\n"),
         Item(f"{site}/Torch_x-2.0+cpu.dist-info/RECORD", b""),
         Item(f"{site}/Torch_x/_vendor/small-1.5.dist-info/METADATA", b"")],
        depends=["python", "pure >=1"], licence="BSD-3-Clause AND LicenseRef-odd",
    )  # fmt: skip
    make_conda(channel, "oddly", [Item("share/oddly", b"x")], licence="do what you like!")
    return lock_of(channel, base=make_base(Store(tmp_path / "store")))


@pytest.fixture
def inventory(lock, channel):
    return take_inventory(lock, channel)


def expected(lock) -> set[str]:
    conda = {f"pkg:conda/{package.name}@{package.version}" for package in lock.packages}
    debian = {f"pkg:deb/debian/{pin.name}@{pin.version}" for pin in lock.base}
    return conda | debian | {"pkg:pypi/torch-x@2.0%2Bcpu", "pkg:pypi/small@1.5"}


def plain(purl: str) -> str:
    return purl.partition("?")[0]


def test_cyclonedx_is_valid_and_exactly_what_is_inside(inventory, lock):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    data = cyclonedx(inventory, SUBJECT)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    bom = json.loads(data)
    found = {plain(component["purl"]) for component in bom["components"]}
    found |= {
        plain(inner["purl"])
        for component in bom["components"]
        for inner in component.get("components", ())
    }
    assert found == expected(lock)
    assert bom["metadata"]["component"]["purl"].startswith("pkg:oci/tiny@sha256")
    wheelful = next(part for part in bom["components"] if part["name"] == "wheelful")
    assert wheelful["hashes"][0]["content"] == lock.by_name["wheelful"].sha256
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in bom["dependencies"]}
    assert any("pkg:conda/pure@" in ref for ref in edges[wheelful["bom-ref"]])


def test_spdx_is_valid_and_exactly_what_is_inside(inventory, lock, tmp_path):
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    path = tmp_path / "sbom.spdx.json"
    path.write_bytes(spdx(inventory, SUBJECT))
    assert validate_full_spdx_document(parse_file(str(path))) == []
    document = json.loads(path.read_bytes())
    purls = {
        plain(package["externalRefs"][0]["referenceLocator"]) for package in document["packages"]
    }
    assert {purl for purl in purls if not purl.startswith("pkg:oci/")} == expected(lock)
    declared = {package["name"]: package for package in document["packages"]}
    assert declared["tiny"]["licenseDeclared"]
    assert declared["oddly"]["licenseDeclared"] == "NOASSERTION"
    assert declared["oddly"]["licenseComments"] == "the package says: do what you like!"


def test_documents_are_functions_of_the_image(inventory, lock):
    for make in (cyclonedx, spdx):
        assert make(inventory, SUBJECT) == make(inventory, SUBJECT)
    one = provenance(inventory, SUBJECT, lock, {"io.github.rocm.atom.profile": "tiny"})
    assert one == provenance(inventory, SUBJECT, lock, {"io.github.rocm.atom.profile": "tiny"})
    statement = json.loads(one)
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"][0]["digest"] == {"sha256": "a" * 64}
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["profile"] == "tiny"
    hashes = {entry["digest"]["sha256"] for entry in definition["resolvedDependencies"]}
    assert {package.sha256 for package in lock.packages} <= hashes
    assert {pin.sha256 for pin in lock.base} <= hashes
    assert lock.digest in hashes


@pytest.fixture
def attested(make_image, lock, channel):
    result = make_image(lock, channel)
    layout = Layout(result.layout)
    subject = Subject("tiny", "latest", result.digest, "2025-06-15T15:06:40Z")
    inventory = take_inventory(lock, channel)
    documents = [
        Attestation(CYCLONEDX, "sbom.cdx.json", cyclonedx(inventory, subject)),
        Attestation(SPDX, "sbom.spdx.json", spdx(inventory, subject)),
        Attestation(IN_TOTO, "provenance.intoto.json", provenance(inventory, subject, lock, {})),
    ]
    attach(layout, {result.digest: documents}, subject.created, SilentProgress())
    return result, layout, documents


def test_referrers_name_their_subject(attested, make_image, lock, channel):
    result, layout, documents = attested
    image, *referrers = layout.entries()
    assert image["digest"] == result.digest
    assert [entry["artifactType"] for entry in referrers] == [CYCLONEDX, SPDX, IN_TOTO]
    for entry, document in zip(referrers, documents, strict=True):
        manifest = layout.document(entry["digest"])
        assert manifest["subject"]["digest"] == result.digest
        assert manifest["artifactType"] == document.media_type
        assert layout.blob(manifest["layers"][0]["digest"]).read_bytes() == document.data
    assert not layout.leftovers()
    again = make_image(lock, channel)
    assert again.up_to_date
    before = layout.entries()
    attach(layout, {result.digest: documents}, "2025-06-15T15:06:40Z", SilentProgress())
    assert layout.entries() == before


def test_a_damaged_attestation_is_attached_anew(attested):
    result, layout, documents = attested
    *_, last = layout.entries()
    blob = layout.blob(layout.document(last["digest"])["layers"][0]["digest"])
    data = blob.read_bytes()
    blob.unlink()
    where = Reference.parse("127.0.0.1:9/x")
    with pytest.raises(ImageError, match="sbom --attach"):
        Pusher(layout, where, SilentProgress()).push()
    for damaged in (None, bytes(len(data))):
        if damaged is not None:
            blob.write_bytes(damaged)
        attach(layout, {result.digest: documents}, "2025-06-15T15:06:40Z", SilentProgress())
        assert blob.read_bytes() == data
        assert layout.entries()[-1] == last


def test_archives_hold_images_alone(attested, tmp_path):
    _, layout, _ = attested
    with (tmp_path / "a.tar").open("wb") as sink:
        write_archive(layout, sink, SilentProgress())
    out = subprocess.run(["tar", "xOf", tmp_path / "a.tar", "index.json"], capture_output=True,
                         check=True).stdout  # fmt: skip
    assert len(json.loads(out)["manifests"]) == 1


@pytest.mark.engine
def test_a_push_takes_them_along(attested, registry):
    result, layout, documents = attested
    where = Reference.parse(f"{registry}/tiny")
    pushed = Pusher(layout, where, SilentProgress()).push()
    assert pushed.references == (f"{registry}/tiny:latest",)
    # This registry has no list of referrers: the fallback tag is the list.
    tag = result.digest.replace(":", "-")
    address = f"http://{registry}/v2/tiny/manifests"
    listed = requests.get(f"{address}/{tag}", timeout=10, headers={"Accept": INDEX}).json()
    assert {entry["artifactType"] for entry in listed["manifests"]} == {CYCLONEDX, SPDX, IN_TOTO}
    for entry in listed["manifests"]:
        accept = {"Accept": entry["mediaType"]}
        manifest = requests.get(f"{address}/{entry['digest']}", timeout=10, headers=accept).json()
        assert manifest["subject"]["digest"] == result.digest
    again = Pusher(layout, where, SilentProgress()).push()
    assert again.sent_blobs == 0
    assert again.present_blobs == len(result.layers) + 1 + 1 + len(documents)


@pytest.mark.engine
def test_skopeo_still_finds_the_image_and_copies_all(attested, tmp_path):
    if not shutil.which("skopeo"):
        pytest.skip("skopeo is not installed")
    result, layout, _ = attested
    done = subprocess.run(
        ["skopeo", "inspect", f"oci:{layout.path}:latest"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["Digest"] == result.digest
