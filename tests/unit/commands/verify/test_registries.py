"""What is verified out of a registry goes afterwards, and is told by its name."""

from pathlib import Path

from msgspec.structs import replace

from epctx import api
from epctx.commands.verify import command as fetching
from epctx.verification.findings import FolderReport, VerifyReport
from tests.kit import pushed, registries, small_registry


def test_it_is_pulled_for_as_long_as_it_is_looked_at(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"one")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        own = api.push(folder, name, insecure=True).digest
        with fetching.fetched([tmp_path, name], insecure=True, name="m") as found:
            kept, place = found.paths
            assert kept == tmp_path and found.folders[name] == place / "m"
            assert (place / "m" / "default" / "main" / "a.bin").read_bytes() == b"one"
            (report,) = found.findings(None, "")
            assert [each.outcome for each in report.findings] == ["pass"]
            assert own in report.findings[0].message
            inner = FolderReport(folder=f"{place.as_posix()}/m", findings=())
            told = found.told(VerifyReport(folders=(inner,), strict=False))
            assert told.folders[0].folder == f"{name}/m"
            lies = replace(found, attestations={name: {"m.intoto.json": b"{}"}})
            assert [f.outcome for f in lies.findings(None, "")[0].findings] == ["pass", "fail"]
    assert not place.exists()
