"""What a device computed, beside the build on its page."""

import json
import shutil
from pathlib import Path

import pytest

from epctx import api
from epctx.commands.report.figures import milliseconds
from tests.kit import kits

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
