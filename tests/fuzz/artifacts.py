"""What is fuzzed of what a build leaves and others hand on: packages, golden files, releases,
reports; and what a worker answers.

As in `targets`: a target takes any bytes, and swallows the errors that the reader promises.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import msgspec
from typer import Context
from typer.main import get_command

from epctx import codec, errors
from epctx.actions.action import StageStarted
from epctx.actions.compile import CompileResult
from epctx.cli import app, completion, junit
from epctx.commands.diff.compare import compare, side
from epctx.commands.package import checking
from epctx.commands.package.form import MANIFEST
from epctx.commands.report import command, page
from epctx.engine.output import archive, attestation
from epctx.errors import EpctxError, ManifestError, UsageError, VerificationError
from epctx.files.digest import of_bytes
from epctx.files.outputs import SUMS
from epctx.lockfile.types import LockedFile
from epctx.providers.onnxruntime.openvino import provider
from epctx.verification.findings import VerifyReport
from epctx.verification.numbers import golden_files
from epctx.worker import protocol
from tests.fuzz.scratch import FOLDER, written

PACKAGED: Final = ("one/g/a_ctx.onnx", "one/g/a_reference.bin", "two/g/a_ctx.onnx")
"""Files of the packages that seeds tell of."""
RELEASED: Final = {"t/g/a.bin": b"binary", "t/g/a_ctx.onnx": b"model"}
"""Files of the archive that seeds are of, by name."""
_LOCKED: Final = {
    name: LockedFile(size=len(data), sha256=of_bytes(data, "sha256").hex)
    for name, data in RELEASED.items()
}
_BUILD: Final = get_command(app.app)


def packages(data: bytes) -> None:
    """A package of that manifest and of right sums: told in findings, also as JUnit's XML."""
    files = {MANIFEST: data} | dict.fromkeys(PACKAGED, b"model")
    for name, content in files.items():
        written(f"package/{name}", content)
    listed = (f"{of_bytes(files[name], 'sha256').hex}  {name}\n" for name in sorted(files))
    written(f"package/{SUMS}", "".join(listed).encode())
    root = FOLDER / "package"
    checked = checking.check(root, "package")
    for finding in checked.report.findings:
        assert finding.message and (finding.remedy or finding.outcome == "pass")
    for request in checked.requests:
        assert request.folder.resolve().is_relative_to(root.resolve())
    report = VerifyReport(folders=(checked.report,), strict=True)
    (suite,) = ElementTree.fromstring(junit.document(report))
    assert int(suite.get("tests", "")) == len(checked.report.findings)


def golden(data: bytes) -> None:
    """golden.json, a NUL, and the `.npz` of its models: every array that is listed, or an error."""
    record, _, arrays = data.partition(b"\0")
    written(f"golden/{golden_files.RECORD}", record)
    written("golden/m.npz", arrays)
    try:
        told = golden_files.read_record(FOLDER / "golden")
        for model in told.models.values():
            for given, case in zip(
                model.sets, golden_files.read(FOLDER / "golden", "m", model), strict=True
            ):
                assert case.inputs.keys() == set(given.inputs)
                assert case.outputs.keys() == set(given.outputs)
    except VerificationError as error:
        assert error.remedy


def attestations(data: bytes) -> None:
    """An attestation's lock and subjects, or what it is not."""
    try:
        lock, subjects = attestation.lock_and_subjects(data)
    except VerificationError as error:
        assert error.remedy
        return
    assert isinstance(lock, str) and all(isinstance(text, str) for text in subjects.values())


def archives(data: bytes) -> None:
    """An archive is what was released, to the byte, or it is told where it is not."""
    path = written("m.tar", data)
    if archive.fault(path, "m", _LOCKED, ()) is None:
        with tarfile.open(fileobj=io.BytesIO(data)) as found:
            files = {each.name: found.extractfile(each) for each in found if each.isfile()}
        assert {name: stream and stream.read() for name, stream in files.items()} == {
            f"m/{name}": content for name, content in RELEASED.items()
        }


def reports(data: bytes) -> None:
    """A build report makes a page, and differs from itself in nothing; or it is told."""
    path = written("m.build.json", data)
    try:
        report = command.read(path)
    except UsageError as error:
        assert error.remedy
        return
    assert page.render(report, FOLDER)
    found = compare(side(path), side(path))
    assert not found.differences and not found.files


def load_configs(data: bytes) -> None:
    """OpenVINO's `load_config`, inline and in a file: the same properties, or the same refusal."""
    path = written("config.json", data)
    read: list[object] = []
    for inline, file in ((data.decode(errors="replace"), None), (None, str(path))):
        try:
            config = provider.config_of(inline, file)
            read.append(provider.properties_of(config, "CPU"))
        except ManifestError as error:
            assert error.remedy
            read.append(None)
    assert read[0] == read[1] or "\ufffd" in data.decode(errors="replace")


def answers(data: bytes) -> None:
    """A line of a worker's: a stage, a result or an error, each of its kind; or none of them."""
    try:
        message = codec.decode(data, protocol.Message)
        if message.started:
            codec.decode(bytes(message.started), StageStarted)
        if message.result:
            codec.decode(bytes(message.result), CompileResult)
    except msgspec.MsgspecError:
        return
    if message.error is not None:
        told = protocol.restore(message.error, log=Path("w.log"))
        assert isinstance(told, EpctxError) and type(told) is not errors.InvalidManifest
        assert str(told)


def completions(data: bytes) -> None:
    """What a shell is offered for a manifest's groups: names, whatever the manifest."""
    context = Context(_BUILD)
    context.params["manifest"] = str(written("m.yaml", data))
    assert all(isinstance(name, str) for name in completion.groups(context, ""))


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "package": packages,
    "golden": golden,
    "attestation": attestations,
    "archive": archives,
    "report": reports,
    "load_config": load_configs,
    "answer": answers,
    "completion": completions,
}
"""By name; each has a folder in `corpus`."""
