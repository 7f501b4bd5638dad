"""Read back by junitparser, a reader that others wrote."""

import pytest
from junitparser import Failure, JUnitXml, Skipped, TestCase
from msgspec.structs import replace

from epctx.cli import junit
from epctx.manifest import Tolerance
from epctx.providers.base import Outcome
from epctx.verification.findings import (
    Comparison,
    Finding,
    FolderReport,
    OutputNumbers,
    VerifyReport,
    Worst,
)


def finding(outcome: Outcome, subject: str = "m.onnx", message: str = "it is so") -> Finding:
    remedy = "" if outcome == "pass" else "do this"
    return Finding(
        policy="integrity",
        check="sums",
        subject=subject,
        outcome=outcome,
        message=message,
        remedy=remedy,
    )


def report(*findings: Finding, strict: bool = False, passed: bool = True) -> VerifyReport:
    numbers = OutputNumbers(
        model="m.onnx",
        output="y",
        input_set="seed 0, set 1",
        sessions="files",
        comparison=Comparison(
            dtype="float32",
            shape=(2,),
            max_abs=0.5,
            worst=Worst(index=(1,), expected="1", actual="1.5"),
        ),
        tolerance=Tolerance(max_abs=0.1),
        passed=passed,
    )
    folder = FolderReport(folder="dist/g", findings=findings, numbers=(numbers,))
    return VerifyReport(folders=(folder, FolderReport(folder="dist/h")), strict=strict)


def parsed(made: VerifyReport) -> tuple[JUnitXml, list[TestCase]]:
    found = JUnitXml.fromstring(junit.document(made))
    return found, [case for suite in found for case in suite]


def test_each_finding_and_each_output_is_a_test() -> None:
    found, cases = parsed(report(finding("pass"), finding("fail", "."), finding("not checkable")))
    assert (found.tests, found.failures, found.skipped) == (4, 1, 1)
    assert [suite.name for suite in found] == ["dist/g", "dist/h"]
    assert [(case.classname, case.name) for case in cases] == [
        ("dist/g.integrity", "sums: m.onnx"),
        ("dist/g.integrity", "sums"),
        ("dist/g.integrity", "sums: m.onnx"),
        ("dist/g.numbers", "m.onnx: output y (seed 0, set 1, files, against the source model)"),
    ]
    assert [[type(result) for result in case.result] for case in cases] == [
        [],
        [Failure],
        [Skipped],
        [],
    ]
    (failure,) = cases[1].result
    assert (failure.message, failure.text) == ("it is so", "-> do this")


def test_what_cannot_be_checked_is_a_failure_when_strict() -> None:
    found, cases = parsed(report(finding("not checkable"), strict=True))
    assert (found.failures, found.skipped) == (1, 0)
    assert isinstance(cases[0].result[0], Failure)


def test_a_number_beyond_its_tolerance_says_where() -> None:
    _, cases = parsed(report(passed=False))
    assert cases[0].result[0].message == "max_abs 0.5, checkable 0; at [1] 1.5 where 1 is expected"


@pytest.mark.parametrize("hostile", ["</testcase><x a='\"&", "a\x00b\x1b[31m\ud800\uffff", "ü\n漢"])
def test_any_name_is_a_text(hostile: str) -> None:
    named = report(finding("fail", hostile, hostile))
    folder = replace(named.folders[0], folder=hostile)
    found, cases = parsed(replace(named, folders=(folder,)))
    assert found.tests == 2
    assert cases[0].result[0].message
