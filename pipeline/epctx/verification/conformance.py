"""Conformance of files to spec/ep-context-design.md and design section 6; no model is run.

Checks of EPContext nodes are in `node_checks`. An EP may load a damaged context binary and compute
wrong numbers, or end the process (real-eps.md section 5). Without SHA256SUMS only its EP can tell
that a file was replaced, for example by the pointer file of Git LFS.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

import onnx
import onnx_ir as ir
from msgspec import Struct

from epctx.errors import InvalidGraph, ModelError, ProviderUnavailable
from epctx.files import paths
from epctx.files.outputs import SUMS, context_file
from epctx.graph import soundness
from epctx.graph.epcontext import EPContextNode, is_epcontext
from epctx.graph.serde import canonical, reader, types
from epctx.graph.weights.external_data import DataFolder
from epctx.providers.base import HEAD_SIZE, Outcome
from epctx.text import first_line
from epctx.verification import node_checks
from epctx.verification.findings import REBUILD, Finding, PolicyName
from epctx.verification.folder import GroupFolder, Unreadable
from epctx.verification.node_checks import Check, Fault, Subject


def well_formed(subject: Subject) -> Iterator[Fault]:
    """Check a model with onnx; if onnx refuses it and its data may be opened, ONNX Runtime decides.

    Neither onnx nor ONNX Runtime without the EP can check the content of EPContext nodes.
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
        refusal = soundness.refusal_of_file(path, subject.folder.data_folder(subject.model))
        if refusal is not None:
            yield Fault(message=f"ONNX Runtime does not load it: {soundness.words(refusal)}")


@contextmanager
def _data_beside(subject: Subject) -> Iterator[Path]:
    """Give the path of the model with external data beside it, as the checker of onnx requires.

    The checker only tests that external data exists (`graph.soundness`), so empty files do.
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
    """Require an EPContext node: an EP without a node reports success (real-eps.md section 9)."""
    group = subject.folder.group
    required = bool(group.execution_providers) if group is not None else not subject.model.ours
    if required and not subject.model.nodes and not subject.model.broken:
        yield Fault(
            message="has no EPContext node: nothing in it was compiled",
            remedy="check the EP's options and target, and build it again",
        )


def self_contained(subject: Subject) -> Iterator[Fault]:
    """Require external data in the folder, without links, so that the folder can be copied
    anywhere.
    """
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


def readable(subject: Subject) -> Iterator[Fault]:
    """Require that each context file is complete and of its EP, as far as the EP can tell.

    The reference EP checks its files when it loads them. So they are not read a second time here if
    integrity has checked them against SHA256SUMS.
    """
    checked: set[str] = set()
    for node in subject.model.nodes:
        name = node.context_path
        provider = subject.folder.providers.find(node.source or "")
        if name is None or name in checked or provider is None:
            continue
        if not provider.native and SUMS in subject.folder.entries:
            continue
        checked.add(name)
        if paths.missing(subject.folder.path, name):
            continue  # the check of `ep_cache_context` reports it
        path = subject.folder.path / name
        if path.stat().st_size == 0:
            continue  # the same check reports it
        with path.open("rb") as stream:
            head = stream.read(HEAD_SIZE)
        try:
            recognized = provider.recognizes(head)
            if recognized is False:
                yield Fault(message=f"'{name}' is not a context binary of {provider.name}")
            elif recognized:
                for misfit in provider.misfits(path, _users(subject, name, provider.sources)):
                    yield Fault(message=f"'{name}': {misfit}")
        except InvalidGraph as error:
            yield Fault(message=f"'{name}' {error.what}: {error.why}", remedy=error.remedy)
        except ProviderUnavailable as error:
            yield Fault(
                message=f"'{name}': {error.what}", remedy=error.remedy, outcome="not checkable"
            )


def _users(subject: Subject, path: str, sources: Collection[str]) -> list[ir.Node]:
    """Return the nodes whose graphs are in a context binary.

    These are each node that names the binary, and the nodes with `main_context` 0 after it, up to
    the next node that names a binary.
    """
    users: list[ir.Node] = []
    current: str | None = None
    try:
        graph = types.from_proto(subject.proto).graph
    except Exception:  # untrusted bytes may make onnx_ir raise anything; the load reports it
        return []
    for node in filter(is_epcontext, graph):
        try:
            context = EPContextNode.from_ir(node)
        except InvalidGraph:
            continue  # the check of its attributes reports it
        if context.source not in sources:
            continue
        current = context.context_path if context.main_context else current
        if current == path:
            users.append(node)
    return users


def _folder_checks(folder: GroupFolder) -> Iterator[Finding]:
    """Find missing files, binaries with a wrong name or wrong users, and unused files."""
    if folder.group is not None:
        yield from _collect("files", "every model of the group is present", _missing(folder))
    if folder.group is not None and folder.group.pieces is not None:
        yield from _collect("pieces", "its models are cut as the manifest asks", _cuts(folder))
    yield from _collect("sharing", _sharing_words(folder), _sharing(folder))
    if folder.whole:
        yield from _unreferenced(folder)


def _missing(folder: GroupFolder) -> Iterator[str]:
    assert folder.group is not None
    expected = {context_file(model.name) for model in folder.group.models}
    if folder.whole:
        for name in sorted(expected - set(folder.entries)):
            yield f"'{name}' is missing"
    for model in folder.models:
        if model.file not in expected:
            yield f"'{model.file}' belongs to no model of the group"


def _cuts(folder: GroupFolder) -> Iterator[str]:
    """Find models whose number of pieces is not the manifest's, or not that of the first model of
    their sharing group.
    """
    assert folder.group is not None and folder.group.pieces is not None
    pieces, groups = folder.group.pieces, folder.group.sharing_groups.values()
    counts = {model.stem: len(model.cuts or ()) + 1 for model in folder.models}
    fixed = pieces.count or (len(pieces.at) + 1 if pieces.at else None)
    first = {name: members[0] for members in groups for name in members}
    for name, count in counts.items():
        expected = fixed or counts.get(first.get(name, name), count)
        if count != expected:
            yield f"'{context_file(name)}' has the wrong number of pieces: {count}, not {expected}"


def _sharing_words(folder: GroupFolder) -> str:
    models = len(folder.models)
    binaries = len({path for model in folder.models for path in model.contexts})
    return f"{models} model{'s' * (models != 1)}, {binaries} context binar" + (
        "y" if binaries == 1 else "ies"
    )


def _sharing(folder: GroupFolder) -> Iterator[str]:
    """Find binaries that are not named after the first model of their sharing group, and sharing
    groups with several binaries for one EP and piece.
    """
    if folder.group is None:
        return
    pieces = folder.group.pieces is not None
    first = {m: members[0] for members in folder.group.sharing_groups.values() for m in members}
    used: dict[tuple[str, str, str], set[str]] = {}
    for model in folder.models:
        name = model.stem
        owner = first.get(name, name)
        for node in model.nodes:
            if node.context_path is None:
                continue
            provider = folder.providers.find(node.source or "")
            pattern = rf"{re.escape(owner)}(_\d+)?_{re.escape(provider.label if provider else '')}"
            match = re.match(pattern, PurePosixPath(node.context_path).name)
            if match is None:
                yield (
                    f"'{model.file}' uses the context binary '{node.context_path}', which is not "
                    f"named for '{owner}'"
                )
            if name in first:
                piece = (match and pieces and match[1]) or ""
                used.setdefault((owner, node.source or "", piece), set()).add(node.context_path)
    for (owner, source, _), binaries in used.items():
        if len(binaries) > 1:
            yield (
                f"the models that share with '{owner}' use several context binaries of the source "
                f"'{source}': {', '.join(sorted(binaries))}"
            )


def _unreferenced(folder: GroupFolder) -> Iterator[Finding]:
    used = {name for model in folder.models for name in model.files} | {SUMS}
    used |= {file for file, _ in folder.unreadable}
    used = {PurePosixPath(name).as_posix() for name in used}
    unused = [name for name in folder.entries if name not in used]
    outcome: Outcome = "fail" if folder.ours else "not checkable"
    for name in unused:
        kind = "is an ONNX model without EPContext nodes" if name in folder.plain else "is unused"
        yield Finding(
            "conformance",
            "unreferenced",
            name,
            outcome,
            f"{kind}: no EPContext model of the folder refers to it",
            "remove it; a stale context binary is loaded without an error"
            if folder.ours
            else "epctx did not make this folder: ask its maker whether the file belongs to it",
        )
    if not unused:
        yield Finding("conformance", "unreferenced", ".", "pass", "every file is used by a model")


def _collect(word: str, words: str, faults: Iterator[str]) -> Iterator[Finding]:
    messages = list(faults)
    for fault in messages:
        yield Finding("conformance", word, ".", "fail", fault, REBUILD)
    if not messages:
        yield Finding("conformance", word, ".", "pass", words)


class ModelCheck(Struct, frozen=True):
    """A check of one model: its name in findings, the message of a pass, and when it applies.

    A check that does not apply leaves no finding. Example: no prefix was requested.
    """

    word: str
    passed: str
    faults: Check
    applies: Callable[[Subject], bool] = lambda subject: True


CHECKS: Final = (
    ModelCheck("well_formed", "is a valid ONNX model", well_formed),
    ModelCheck("ep_context", "EPContext nodes are present where required", has_context),
    ModelCheck(
        "attributes", "its EPContext attributes conform to the op schema", node_checks.attributes
    ),
    ModelCheck("source", "every EPContext node has an EP", node_checks.sources),
    ModelCheck(
        "ep_cache_context", "every context is present, as embed_mode says", node_checks.contexts
    ),
    ModelCheck("context_binary", "its context binaries can be read", readable),
    ModelCheck("main_context", "every EPContext node finds its context", node_checks.main_contexts),
    ModelCheck("names", "names are unique", node_checks.names),
    ModelCheck("prefix", "names begin with the prefix", node_checks.prefix, node_checks.has_prefix),
    ModelCheck("types", "EPContext outputs have type and shape", node_checks.types),
    ModelCheck("self_contained", "needs no file outside the folder", self_contained),
    ModelCheck("canonical", "is in canonical form", canonical_form, is_ours),
)
"""Checks of a model, in the order of the report."""


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Require models that conform to the op and to section 6, and a complete folder without unused
    files.
    """

    name: PolicyName = field(default="conformance", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Check each model, then the folder."""
        for file, why in folder.unreadable:
            yield _finding("readable", file, Fault(message=why))
        for model in folder.models:
            try:
                subject = Subject(folder=folder, model=model, proto=folder.load(model))
            except Unreadable as error:  # the file changed meanwhile
                yield _finding("readable", model.file, Fault(message=str(error)))
                continue
            for check in CHECKS:
                if check.applies(subject):
                    yield from _verdict(check, subject)
        yield from _folder_checks(folder)


def _verdict(check: ModelCheck, subject: Subject) -> Iterator[Finding]:
    file = subject.model.file
    faults = list(check.faults(subject))
    if not faults:
        yield _finding(check.word, file, Fault(message=check.passed, remedy="", outcome="pass"))
    for fault in faults:
        yield _finding(check.word, file, fault)


def _finding(check: str, file: str, fault: Fault) -> Finding:
    fields = fault.outcome, fault.message, fault.remedy
    return Finding("conformance", check, file, *fields)
