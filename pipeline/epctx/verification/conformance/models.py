"""Checks of a model as a whole: valid, compiled, self-contained, in canonical form."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from epctx.errors import ModelError
from epctx.files import paths
from epctx.graph import soundness
from epctx.graph.serde import canonical, reader
from epctx.graph.weights.external_data import DataFolder
from epctx.text import first_line
from epctx.verification.conformance.subject import Fault, Subject


def well_formed(subject: Subject) -> Iterator[Fault]:
    """Onnx's own checker, by path; where it objects, ONNX Runtime decides, if it may open the data.

    Neither onnx nor ONNX Runtime without the EP knows what EPContext nodes hold.
    """
    if subject.proto.ir_version > onnx.IR_VERSION:
        yield Fault(
            message=f"IR version {subject.proto.ir_version} is newer than the installed onnx",
            remedy="install a newer onnx",
            outcome="not checkable",
        )
        return
    try:
        with _data_beside(subject) as path:
            onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError, RuntimeError, OSError) as error:
        if any(self_contained(subject)):
            yield Fault(message=f"onnx.checker refuses it: {first_line(error)}")
            return
        path = subject.folder.path / subject.model.file
        said = soundness.refusal_of_file(path, subject.folder.data_folder(subject.model))
        if said is not None:
            yield Fault(message=f"ONNX Runtime does not load it: {soundness.words(said)}")


@contextmanager
def _data_beside(subject: Subject) -> Iterator[Path]:
    """The model where its external data is beside it, as the checker wants it.

    Of external data it asks only whether the file is there (`graph.soundness`): an empty one
    does.
    """
    path = subject.folder.path / subject.model.file
    if subject.folder.data_folder(subject.model) == subject.folder.path:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="epctx-check-") as folder:
        for name in subject.model.data:
            if paths.is_bare(name):
                (Path(folder) / name).touch()
        yield Path(shutil.copyfile(path, Path(folder) / subject.model.file))


def has_context(subject: Subject) -> Iterator[Fault]:
    """An EP that took nothing leaves the source model, and says "ok" (real-eps.md section 9)."""
    group = subject.folder.group
    asked = bool(group.execution_providers) if group is not None else not subject.model.ours
    if asked and not subject.model.nodes and not subject.model.broken:
        yield Fault(
            message="has no EPContext node: nothing in it was compiled",
            remedy="check the EP's options and target, and build it again",
        )


def self_contained(subject: Subject) -> Iterator[Fault]:
    """External data is in the folder, in reach, no link: the folder works wherever it is copied."""
    folder = subject.folder.data_folder(subject.model)
    data = DataFolder(folder, model=subject.folder.path / subject.model.file)
    for place in subject.model.data:
        reason = paths.missing(folder, place)
        if reason is not None:
            yield Fault(message=f"its external data '{place}': {reason}")
    if any(paths.missing(data.path, p) for p in subject.model.data):
        return
    for tensor in reader.external_tensors(subject.proto):
        try:
            data.resolve(tensor)
        except ModelError as error:
            message = ": ".join(filter(None, (f"tensor '{tensor.name}' {error.what}", error.why)))
            yield Fault(message=message, remedy=error.remedy)


def is_ours(subject: Subject) -> bool:
    """Return whether epctx made the model."""
    return subject.model.ours


def canonical_form(subject: Subject) -> Iterator[Fault]:
    """Require that a model of epctx has the one form in which epctx writes its graph."""
    path = subject.folder.path / subject.model.file
    if not canonical.is_canonical(path):
        yield Fault(message="is not in canonical form: it was changed after it was built")
