"""Build reports that are read: what is refused, and where the page goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.commands.report import command
from epctx.engine.report import BuildReport, EpReport, GroupReport, ReleaseReport, StageTime
from epctx.errors import LogTail, StorageError, UsageError
from epctx.graph.model import Outline
from epctx.stages.report import ModelReport
from tests.kit.reports import chain, file, report


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not a build report of this version of epctx"),
        (b"\xff\xfe", "is not a build report of this version of epctx"),
        (b'{"folders": []}', "is not a build report of this version of epctx"),
        (
            codec.encode(replace(report(), schema_version=2)),
            "has version 2, but this epctx reads 1",
        ),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        command.write(path, tmp_path / "page.html")
    assert caught.value.what == what
    assert not (tmp_path / "page.html").exists()


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        command.read(tmp_path / "none.json")


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(report()))
    for page in (tmp_path / "none" / "page.html", path / "page.html", tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            command.write(path, page)


def test_a_folder_of_outputs_has_the_report_that_belongs_to_it(tmp_path: Path) -> None:
    group = tmp_path / "a" / "target" / "group"
    group.mkdir(parents=True)
    with pytest.raises(UsageError, match="has no build report"):
        command.of_folder(tmp_path)
    own = tmp_path / "a.build.json"
    own.touch()
    for folder in (tmp_path, tmp_path / "a", group.parent, group):
        assert command.of_folder(folder) == own
    (tmp_path / "b.build.json").touch()
    assert command.of_folder(group) == own
    with pytest.raises(UsageError, match="has the reports of 2 builds") as caught:
        command.of_folder(tmp_path)
    assert own.as_posix() in caught.value.remedy


def test_a_folder_is_looked_for_from_inside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "dist" / "a" / "target" / "group"
    group.mkdir(parents=True)
    own = tmp_path / "dist" / "a.build.json"
    own.touch()
    monkeypatch.chdir(group.parent)
    for folder in (Path("group"), Path(), Path(".."), Path("../target"), Path("../../a/target")):
        assert command.of_folder(folder) == own.resolve(), folder
    monkeypatch.chdir(tmp_path)
    for name in ("dist", "dist/a", "dist/a/target/group"):
        assert command.of_folder(Path(name)) == Path("dist/a.build.json")


def group(**changes: Any) -> BuildReport:
    made = report()
    first: GroupReport = replace(made.groups[0], **changes)
    return replace(made, groups=(first, *made.groups[1:]))


def model(**changes: Any) -> BuildReport:
    return report(replace(chain(12), **changes))


def outline(change: Callable[[Outline], dict[str, Any]]) -> BuildReport:
    of: ModelReport = chain(12)
    assert of.outline is not None
    return model(outline=replace(of.outline, **change(of.outline)))


def histogram(*counts: int) -> BuildReport:
    verify = report().groups[0].verify
    assert verify is not None
    (first, *_) = verify.numbers
    counted = replace(first, comparison=replace(first.comparison, histogram=counts))
    return group(verify=replace(verify, numbers=(counted,)))


def released(archive: str = "made.tar", attestation: str = "made.intoto.json") -> BuildReport:
    files = ReleaseReport(archive=file(archive, 1), attestation=file(attestation, 1))
    return replace(report(), release=files)


def stage(start: float, end: float) -> BuildReport:
    return group(stages=(StageTime(stage="load", subject="chain", start=start, end=end),))


def nested(levels: int) -> BuildReport:
    """Report of a manifest with so many levels, mappings and lists in turn."""
    value: Any = "x"
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return group(manifest={"a": value})


UNSOUND = {
    "a name that is a path": (replace(report(), name=".."), "the name starts with"),
    "a name too long": (replace(report(), name="x" * 5000), "the name is longer"),
    "a folder outside": (group(folder="../edge/eye"), "a part of its folder starts with"),
    "an absolute folder": (group(folder="/etc"), "a part of its folder is empty"),
    "a folder with NUL": (group(folder="a\0b"), "a part of its folder has the character U+0000"),
    "a file outside": (group(files=(file("../x.bin", 1),)), "the name of a file has the character"),
    "a golden file outside": (group(golden=(file("../x.npz", 1),)), "the name of a file has the"),
    "a log outside": (group(log=LogTail(file="logs/../../x", lines=())), "leaves the report's"),
    "an absolute log": (group(log=LogTail(file="/etc/passwd", lines=())), "leaves the report's"),
    "a log on a drive": (group(log=LogTail(file="c:x", lines=())), "that no path of a log has"),
    "a log with NUL": (group(log=LogTail(file="a\0", lines=())), "that no path of a log has"),
    "an archive outside": (
        released(archive="../../../../etc/passwd"),
        "the name of a file of its release has the character",
    ),
    "an absolute attestation": (
        released(attestation="/etc/hostname"),
        "the name of a file of its release has the character",
    ),
    "a build of less than no time": (replace(report(), seconds=-0.1), "not a plausible build time"),
    "a build of ages": (replace(report(), seconds=1e308), "are not a plausible build time"),
    "a stage of all time": (stage(-1e308, 1e308), "a stage has no plausible start or end"),
    "a stage before the build": (stage(-0.1, 1), "a stage has no plausible start or end"),
    "a stage that ends first": (stage(2, 1), "a stage has no plausible start or end"),
    "a stage of ages": (stage(0, 1e9), "a stage has no plausible start or end"),
    "a deep manifest": (nested(65), "its manifest is nested deeper than 64 levels"),
    "a manifest without an end": (nested(400), "its manifest is nested deeper"),
    "a histogram of two": (histogram(1, 2), "a histogram has 2 counts"),
    "fewer than no elements": (histogram(*[0] * 10, -1), "a histogram has 11 counts"),
    "no nodes, in a partition": (model(nodes=0), "more nodes than it has"),
    "fewer than no nodes": (model(nodes=-1, partitions=()), "more nodes than it has"),
    "no partitions": (model(partitions=()), "a node of its outline is in no partition"),
    "lists of several lengths": (
        outline(lambda o: {"names": o.names[:-1]}),
        "its outline have different lengths",
    ),
    "no operator": (outline(lambda o: {"op_types": ()}), "a node of its outline has no operator"),
    "an operator of none": (
        outline(lambda o: {"ops": (2**70, *o.ops[1:])}),
        "a node of its outline has no operator",
    ),
    "an owner of none": (
        outline(lambda o: {"owners": (-2, *o.owners[1:])}),
        "a node of its outline is in no partition",
    ),
    "a node that needs itself": (
        outline(lambda o: {"predecessors": ((0,), *o.predecessors[1:])}),
        "not in topological order",
    ),
}


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf")])
def test_no_time_is_beyond_all_numbers(time: float) -> None:
    for made in (replace(report(), seconds=time), stage(time, 1), stage(0, time)):
        assert command.objection(made) is not None


def test_an_option_of_an_ep_is_not_nested() -> None:
    made = group(execution_providers=(EpReport(alias="a", provider="b", options={"o": ("leaf",)}),))
    assert codec.decode(codec.encode(made), BuildReport) == made
    with pytest.raises(msgspec.ValidationError, match="options"):
        codec.decode(codec.encode(made).replace(b'["leaf"]', b'[["leaf"]]'), BuildReport)


@pytest.mark.parametrize("what", UNSOUND)
def test_what_no_build_writes_is_refused(what: str, tmp_path: Path) -> None:
    made, says = UNSOUND[what]
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(made))
    with pytest.raises(UsageError, match="is not a build report") as caught:
        command.write(path, command.page_of(path))
    assert says in (caught.value.why or "")
    assert not command.page_of(path).exists()
