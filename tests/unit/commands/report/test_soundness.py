"""A report is a file that anybody may have written: what no build writes is refused in words."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epctx import codec
from epctx.commands.report import command, soundness
from epctx.engine.report import BuildReport, GroupReport
from epctx.errors import LogTail, UsageError
from epctx.graph.model import Outline
from epctx.stages.report import ModelReport
from tests.kit.reports import chain, failing, file, report


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
    "a histogram of two": (histogram(1, 2), "a histogram has 2 counts"),
    "fewer than no elements": (histogram(*[0] * 10, -1), "a histogram has 11 counts"),
    "no nodes, in a partition": (model(nodes=0), "more nodes than it has"),
    "fewer than no nodes": (model(nodes=-1, partitions=()), "more nodes than it has"),
    "no partitions": (model(partitions=()), "a node of its outline is in no partition"),
    "lists of several lengths": (
        outline(lambda o: {"names": o.names[:-1]}),
        "its outline are of several lengths",
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
        "no topological order",
    ),
}


def test_what_a_build_writes_is_sound() -> None:
    assert soundness.objection(report()) is None
    assert soundness.objection(failing()) is None


@pytest.mark.parametrize("what", UNSOUND)
def test_what_no_build_writes_is_refused(what: str, tmp_path: Path) -> None:
    made, says = UNSOUND[what]
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(made))
    with pytest.raises(UsageError, match="is no build report") as caught:
        command.write(path, command.page_of(path))
    assert says in (caught.value.why or "")
    assert not command.page_of(path).exists()
