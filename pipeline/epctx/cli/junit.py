"""Verification reports as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from epctx.verification.findings import CODES, Finding, FolderReport, OutputNumbers, VerifyReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain; names in models may have them."""


def document(report: VerifyReport) -> bytes:
    """Return a suite for each folder, with a test for each finding and each compared output.

    "Not checkable" and "not covered" are skipped tests; in a strict report, "not checkable" is a
    failed test.
    """
    root = ElementTree.Element("testsuites", name="epctx verify")
    for folder in report.folders:
        root.append(_suite(folder, strict=report.strict))
    for count in ("tests", "failures", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _suite(folder: FolderReport, *, strict: bool) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_text(folder.folder))
    for finding in folder.findings:
        suite.append(_of_finding(folder.folder, finding, strict=strict))
    for numbers in folder.numbers:
        suite.append(_of_numbers(folder.folder, numbers))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return suite


def _of_finding(folder: str, finding: Finding, *, strict: bool) -> ElementTree.Element:
    subject = "" if finding.subject == "." else f": {finding.subject}"
    case = _case(folder, finding.policy, f"{finding.check}{subject}")
    if finding.outcome == "fail" or (strict and finding.outcome == "not checkable"):
        failure = _verdict(case, "failure", finding.message, finding.remedy)
        failure.set("type", CODES[finding.policy])
    elif finding.outcome != "pass":
        _verdict(case, "skipped", finding.message, finding.remedy)
    return case


def _of_numbers(folder: str, numbers: OutputNumbers) -> ElementTree.Element:
    inputs = f"{numbers.input_set}, {numbers.sessions}, against {numbers.right}"
    case = _case(folder, "numbers", f"{numbers.model}: output {numbers.output} ({inputs})")
    comparison = numbers.comparison
    measured = (
        ("max_abs", comparison.max_abs),
        ("max_rel", comparison.max_rel),
        ("cosine", comparison.cosine),
        ("sqnr", comparison.sqnr),
        ("gain", comparison.gain),
        ("checkable", comparison.checkable),
    )
    words = ", ".join(f"{name} {value:.6g}" for name, value in measured if value is not None)
    text = comparison.problem or words
    if comparison.worst is not None:
        worst = comparison.worst
        text += f"; at {list(worst.index)} {worst.actual} where {worst.expected} is expected"
    if numbers.passed:
        ElementTree.SubElement(case, "system-out").text = _text(text)
    else:
        _verdict(case, "failure", text, "").set("type", CODES["numbers"])
    return case


def _case(folder: str, policy: str, name: str) -> ElementTree.Element:
    return ElementTree.Element(
        "testcase", classname=_text(f"{folder}.{policy}"), name=_text(name), time="0"
    )


def _verdict(
    case: ElementTree.Element, kind: str, message: str, remedy: str
) -> ElementTree.Element:
    verdict = ElementTree.SubElement(case, kind, message=_text(message))
    if remedy:
        verdict.text = _text(f"-> {remedy}")
    return verdict


def _text(text: str) -> str:
    return _NOT_XML.sub("�", text)
