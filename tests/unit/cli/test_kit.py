"""What `epctx kit` prints."""

import json
from pathlib import Path

import pytest

from tests.kit import command_line, projects

pytestmark = pytest.mark.usefixtures("jobs_inline")


def test_the_kit_is_named_and_what_no_device_can_check(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"one": ["a"]})
    project.build(golden=True)
    ran = command_line.inside("kit", "dist/m", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("dist/m.kit/  1 model, ")
    assert "default/one/a cannot be checked on the device: ReferenceExecutionProvider" in ran.stderr
    told = command_line.inside("kit", "dist/m", "-o", "k", "--format", "json", cwd=tmp_path)
    assert json.loads(told.stdout)["path"] == "k"
