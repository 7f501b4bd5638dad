"""The artifact of a release follows from its files alone."""

from epctx.engine.output import artifacts
from epctx.lockfile.types import LockedFile
from epctx.oci import artifact
from epctx.oci.artifact import blob_of


def test_it_is_what_would_be_pushed() -> None:
    blob = blob_of(b"one")
    made = artifact.package({"t/g/a": blob})
    file = LockedFile(sha256=blob.digest.hex, size=blob.size)
    assert artifacts.of_release({"t/g/a": file}).sha256 == made.digest.hex
    assert artifacts.named(str(made.digest)).sha256 == made.digest.hex
