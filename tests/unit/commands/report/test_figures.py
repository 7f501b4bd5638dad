"""Figures of a page, and its table of a device."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import api
from epctx.cache.action import Origin, RemoteReport
from epctx.commands.report import figures
from epctx.commands.report.figures import milliseconds
from epctx.engine.report import ActionReport
from epctx.stages.report import CompositionReport
from epctx.verification.findings import error_words, largest_error
from tests.kit import kits
from tests.kit.reports import failing, report


def test_what_cannot_be_compared_is_no_small_error() -> None:
    verify = failing().groups[2].verify
    assert verify is not None
    (far,) = verify.numbers
    other = replace(far.comparison, problem="another shape", max_abs=None, max_rel=None)
    found = largest_error([far, replace(far, comparison=other)])
    assert error_words(found) == "not comparable"


def test_a_composition_counts_no_node_twice() -> None:
    made = report()
    wiring = CompositionReport(parts={}, links={}, inputs={}, outputs={})
    composed = replace(made.groups[0], group="whole", composition=wiring)
    both = replace(made, groups=(*made.groups, composed))
    (figure,) = (f for f in figures.key_figures(both, None) if f.name == "On EPs")
    assert figure.note == "18 of 24 nodes in 2 models"


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(5, 5, "100 %"), (0, 5, "0.0 %"), (1, 10**6, "0.1 %"), (10**6 - 1, 10**6, "99.9 %")],
)
def test_not_all_is_never_said_to_be_all(part: int, whole: int, words: str) -> None:
    assert figures.percent(part, whole) == words


REMOTE = RemoteReport(url="s3://b", records=3, objects=1, fetched=2_000_000, pushed=4)


def test_where_what_actions_made_is_from() -> None:
    origins = (None, Origin(), Origin(remote="s3://b", signer="ci-1"), Origin(remote="s3://b"))
    told = [ActionReport.of("compile", "m", None, origin) for origin in origins]
    assert figures.origins(told) == "1 built, 1 local, 2 remote"
    assert [each.came_from for each in told] == [None, "local", "s3://b", "s3://b"]
    assert [each.signer for each in told] == [None, None, "ci-1", None]


def test_what_became_of_the_shared_cache_in_a_line() -> None:
    words = "3 results and 1 file (2.0 MB) came from it; 4 pushed"
    assert figures.remote_words(REMOTE) == words
    refused = replace(REMOTE, pushed=0, not_pushed=2, refused={"it failed": 3})
    assert figures.remote_words(refused).endswith("came from it; 2 not pushed; 3 x it failed")


def test_the_shared_cache_is_a_figure_where_there_is_one() -> None:
    assert "Shared cache" not in {each.name for each in figures.key_figures(report(), None)}
    told = replace(report(), remote=replace(REMOTE, refused={"it failed": 3}))
    (figure,) = (e for e in figures.key_figures(told, None) if e.name == "Shared cache")
    assert figure.value == "3 results"
    assert figure.note == "1 built; 2.0 MB fetched, 4 pushed"
    assert figure.tone == "warn"


pytestmark = pytest.mark.usefixtures("jobs_inline")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = kits.build(tmp_path_factory.mktemp("built"))
    kits.checked(project)
    return project.folder


def test_verdicts_and_times_of_each_model_are_on_the_page(built: Path, tmp_path: Path) -> None:
    for path in built.glob("device.*"):
        shutil.copy(path, tmp_path)
    results = kits.results(tmp_path / "kit")
    first, second = results["models"]
    first.update(load=1.5, median=0.0123, problems=[HOSTILE])
    results["host"]["name"] = HOSTILE
    (tmp_path / "device.json").write_text(json.dumps(results))
    page = api.report(
        built / "dist", out=tmp_path / "page.html", device_results=tmp_path / "device.json"
    ).read_text()
    assert "1,500.000 ms" in page and "12.300 ms" in page
    assert "on the device: &lt;script&gt;" in page and HOSTILE not in page
    assert milliseconds(second["p99"]) in page
    assert 'id="device"' not in api.report(built / "dist", out=tmp_path / "p").read_text()
