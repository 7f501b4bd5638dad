"""Join three compiled models into one, release it, and verify the release as a device would."""

import tarfile
import tempfile
from pathlib import Path

from make_model import make

import epctx

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models")
    report = epctx.build(
        HERE / "epctx.yaml", out=HERE / "dist", golden=True, archive=True, attest=True
    )
    for group in report.groups:
        if group.composition is not None:
            for taker, maker in group.composition.links.items():
                print(f"{maker} -> {taker}")
        for file in (*group.files, *group.golden):
            print(f"{file.size:9} {group.folder}/{file.name}")
    assert report.release is not None
    assert report.release.archive is not None and report.release.attestation is not None
    for file in (report.release.archive, report.release.attestation):
        print(f"{file.size:9} {file.name}  SHA-256 {file.sha256.hex}")

    with tempfile.TemporaryDirectory() as device:
        with tarfile.open(HERE / "dist" / report.release.archive.name) as archive:
            archive.extractall(device, filter="data")
        verification = epctx.verify(device, manifest=HERE / "epctx.yaml", golden=True)
        for finding in verification.findings("pass"):
            if finding.policy == "numbers":
                print(f"{finding.subject}: {finding.message}")
        assert verification.passed


if __name__ == "__main__":
    main()
