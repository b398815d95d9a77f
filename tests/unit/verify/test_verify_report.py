"""Policies are checked, reports are valid in every format, and the exit code says what failed."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from assembler.errors import ConfigError
from assembler.progress import SilentProgress
from assembler.verify import formats
from assembler.verify.findings import Finding, GateResult, Report, Severity, SubjectReport
from assembler.verify.policy import Policy, read_policy, read_targets
from assembler.verify.schemas import SCHEMAS, render
from assembler.verify.session import GATES, Request, exit_code, verify
from tests.verify_making import Item, make_layout

SCHEMA_FOLDER = resources.files("assembler.verify") / "schemas"


def finding(
    identity: str, severity: Severity = Severity.ERROR, allowed: str | None = None
) -> Finding:
    return Finding(
        id=identity,
        severity=severity,
        subject="opt/a file|<é>\x01.py",
        what="is & bad",
        remedy="fix",
        allowed=allowed,
    )


def report(*results: GateResult) -> Report:
    subject = SubjectReport(
        path="build/my image", kind="oci-layout", digest="sha256:" + "0" * 64, gates=results
    )
    return Report(profile="cpu", subjects=(subject,))


FULL = report(
    GateResult.of("loader", [finding("loader/not-found")], examined=3, note="a | b"),
    GateResult.of("hygiene", [finding("hygiene/cache", Severity.WARNING)], examined=9),
    GateResult.of(
        "jit", [finding("jit/cannot", allowed="no GPU here")], examined=1, unit="modules"
    ),
    GateResult.skip("shadowing", "does not apply"),
)


# -- formats ---------------------------------------------------------------------------------------


def schema(name: str) -> object:
    return json.loads((SCHEMA_FOLDER / name).read_text(encoding="utf-8"))


def test_json_keeps_to_its_schema() -> None:
    jsonschema.validate(json.loads(formats.render(FULL, "json")), schema("report.schema.json"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_files_are_those_of_the_models(name: str) -> None:
    model, mode = SCHEMAS[name]
    text = (SCHEMA_FOLDER / name).read_text(encoding="utf-8")
    assert text == render(model, mode), "run python -m assembler.verify.schemas"


def test_sarif_is_valid_and_carries_reasons() -> None:
    log = json.loads(formats.render(FULL, "sarif"))
    Sarif.model_validate(log)
    (run,) = log["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "error"]
    assert run["results"][2]["suppressions"][0]["justification"] == "no GPU here"
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", uri)


JUNIT = {
    "testsuites": ({"name"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time"}, {"testcase"}),
    "testcase": ({"name", "classname", "time"}, {"failure", "skipped", "system-out"}),
    "failure": ({"type", "message"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}
"""Elements with their attributes and children, of those that Jenkins' junit-10.xsd knows."""


def test_junit_has_the_form_that_ci_systems_read() -> None:
    top = ET.fromstring(formats.render(FULL, "junit"))
    for element in top.iter():
        attributes, children = JUNIT[element.tag]
        assert set(element.attrib) <= attributes
        assert {child.tag for child in element} <= children
    (suite,) = top
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "skipped", "errors")}
    assert counts == {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "skipped": len(suite.findall("testcase/skipped")),
        "errors": 0,
    }
    assert counts["failures"] == counts["skipped"] == 1


def test_markdown_keeps_its_table_whole() -> None:
    text = formats.render(FULL, "markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "*Allowed: no GPU here*" in text


def test_text_shows_some_of_many_and_says_so() -> None:
    many = [
        Finding(id="loader/not-found", subject=f"lib{n}.so", what="x", remedy="add it")
        for n in range(40)
    ]
    text = formats.render(report(GateResult.of("loader", many, examined=40)), "text")
    assert text.count("error loader/not-found") == 5
    assert "35 more of loader/not-found" in text
    assert text.count("add it") == 1


def test_text_shows_allowed_findings_by_their_reason_alone() -> None:
    text = formats.render(FULL, "text")
    assert "allowed 1: no GPU here" in text
    assert "jit/cannot" not in text


def test_unknown_formats_and_gates_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format"):
        formats.render(FULL, "yaml")
    request = Request(paths=(), profile="x", policy=Policy(), scratch=tmp_path, gates=("smell",))
    with pytest.raises(ConfigError, match="no gate 'smell'"):
        verify(request, SilentProgress())


# -- exit codes ------------------------------------------------------------------------------------


def failing(*gates: str) -> Report:
    return report(*(GateResult.of(name, [finding(f"{name}/x")], examined=1) for name in gates))


@pytest.mark.parametrize("name", GATES)
def test_one_failing_gate_gives_its_own_exit_code(name: str) -> None:
    assert exit_code(failing(name)) == GATES[name].exit_code


def test_exit_codes_differ_and_several_gates_have_one_of_their_own() -> None:
    codes = {gate.exit_code for gate in GATES.values()}
    assert len(codes) == len(GATES)
    assert exit_code(failing("loader", "size")) == 11
    assert 11 not in codes
    assert exit_code(report(GateResult.of("size", [], examined=1))) == 0
    warned = [finding("size/layer", Severity.WARNING), finding("size/image", allowed="a reason")]
    assert exit_code(report(GateResult.of("size", warned, examined=1))) == 0


def test_gates_that_do_not_apply_are_said_and_do_not_fail(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.txt").write_text("x")
    request = Request(
        paths=(tmp_path / "folder",), profile="x", policy=Policy(), scratch=tmp_path / "s"
    )
    (subject,) = verify(request, SilentProgress()).subjects
    assert [gate.gate for gate in subject.gates] == list(GATES)
    skipped = {gate.gate: gate.note for gate in subject.gates if gate.verdict == "skipped"}
    assert skipped["smoke"] == "does not apply to a folder"
    assert exit_code(Report(profile="x", subjects=(subject,))) == 0


def test_the_policy_s_exceptions_decide_the_verdict(tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "l", [{"bin/su": Item(b"x", mode=0o4755)}])
    verdicts = []
    for allow in ([], [{"id": "hygiene/setuid", "subject": "bin/su", "reason": "x" * 20}]):
        policy = Policy.model_validate({"allow": allow})
        request = Request((layout,), "x", policy, tmp_path / "s", gates=("hygiene",))
        (subject,) = verify(request, SilentProgress()).subjects
        verdicts.append(subject.gates[0].verdict)
    assert verdicts == ["fail", "pass"]


# -- policies --------------------------------------------------------------------------------------

POLICIES = sorted(
    path.name for path in (resources.files("assembler.verify") / "policies").iterdir()
)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_to_the_schema(name: str) -> None:
    text = (resources.files("assembler.verify") / "policies" / name).read_text(encoding="utf-8")
    jsonschema.validate(tomllib.loads(text), schema("policy.schema.json"))


def test_a_profile_s_policy_lies_over_the_common_one(tmp_path: Path) -> None:
    extra = tmp_path / "extra.toml"
    extra.write_text(
        '[[denied]]\nid = "jar"\nwhat = "a jar"\nnames = ["*.jar"]\nremedy = "no"\n'
        "[size]\nlayers = 7\n"
    )
    common = read_policy("none")
    policy = read_policy("none", extra=extra, targets=("gfx942",), glibc="2.36")
    assert policy.denied[:-1] == common.denied
    assert policy.denied[-1].id == "jar"
    assert policy.size.layers == 7
    assert policy.size.layer_compressed == common.size.layer_compressed
    assert (policy.targets, policy.glibc) == (("gfx942",), "2.36")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allow]]\nid='x/y'\nsubject='*'\n", "allow.*reason"),
        ("[[allow]]\nid='x/y'\nsubject='*'\nreason='because'\n", "at least 20"),
        ("[surprise]\n", "surprise"),
        ("[size]\nlayers = 'many'\n", "size.layers"),
        ("not toml", "TOML"),
    ],
)
def test_faulty_policies_are_named(text: str, words: str, tmp_path: Path) -> None:
    extra = tmp_path / "extra.toml"
    extra.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_policy("cpu", extra=extra)


def test_a_missing_policy_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_policy("cpu", extra=tmp_path / "none.toml")


def test_targets_come_from_the_variant_files(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text("gfx_target:\n  - gfx942\n")
    assert read_targets(tmp_path, ("v.yaml", "missing.yaml")) == ("gfx942",)
    (tmp_path / "v.yaml").write_text("gfx_target: [gfx9000]\n")
    with pytest.raises(ConfigError, match="gfx9000"):
        read_targets(tmp_path, ("v.yaml",))
    (tmp_path / "v.yaml").write_text("gfx_target: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_targets(tmp_path, ("v.yaml",))
