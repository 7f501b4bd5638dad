"""What a push says. What it does: tests/integration/test_registry.py, tests/faults."""

from pathlib import Path

import pytest

from epctx import api
from epctx.errors import UsageError, VerificationError
from tests.kit import pushed, registries, small_registry


def test_files_of_the_same_content_are_sent_once(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"same", b_bin=b"same")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        report = api.push(folder, name, insecure=True)
        assert (report.files, report.state, report.attached) == (3, "pushed", ())
        held = [each for each in server.blobs.values() if b"diffIds" not in each]
        assert report.sent == report.size == sum(map(len, held))
        with pytest.raises(VerificationError, match="is not what is to be pushed"):
            api.push(folder, f"{name}@sha256:{'0' * 64}", insecure=True)


def test_a_wrong_reference_is_told_before_anything(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names nothing"):
        api.push(tmp_path, "host/a")
