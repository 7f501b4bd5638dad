"""Results of jobs and of the cache: check them, and turn them into reports.

An SDK runs in the process that answers, and anybody may write to a cache. So a result is checked
against its job before its names become paths and indices. Verification checks the content of files.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.compile import CompileResult
from epctx.actions.optimize import OptimizeResult
from epctx.cache import StoredAction
from epctx.errors import CompileError, EpctxError, VerificationError
from epctx.files import paths
from epctx.files.digest import of_file
from epctx.files.outputs import SUMS, OutputFile
from epctx.manifest import ModelGroup, ProviderSpec
from epctx.providers import registry
from epctx.quantization.report import QuantizeReport
from epctx.stages.report import ModelReport, PartitionReport
from epctx.verification.findings import CODES, REBUILD, FolderReport

_RECURS = (
    "another build would give the same: report it, with the model, to the maker of the execution "
    "provider; `epctx diff` shows how the outputs of another version differ"
)
"""Remedy that replaces `REBUILD` if a build finds the fault in its own outputs."""


class StoredRanges(Struct, frozen=True, kw_only=True):
    """Result of *calibrate*: the ranges, as `engine.ranges` writes them."""

    ranges: str


def objection(
    action: StoredAction[CompileResult], group: ModelGroup, models: Sequence[str]
) -> str | None:
    """Return why a cached result cannot come from a compile of these models; None if it can."""
    output = action.result.output
    files = [(file.name, file.size, file.blake3) for file in output.files]
    if not files or files != [(file.name, file.size, file.digest) for file in action.files]:
        return "lists other files than it has"
    return next((stored for _, stored in _contradictions(action.result, group, models)), None)


def check_compiled(
    result: CompileResult, group: ModelGroup, models: Sequence[str], folder: Path
) -> None:
    """Check the answer of a compile against its job.

    Args:
        models: the compiled models, in their order.
        folder: the folder of its files.

    Raises:
        CompileError: the answer contradicts the job or the folder.
    """
    files = {file.name: file for file in result.output.files}
    why: str | None = None
    if not files or len(files) < len(result.output.files):
        why = "it lists no file, or one file twice"
    elif not all(_is_there(folder, file) for file in files.values()):
        why = "listed files do not exist"
    elif len(result.unmatched) != len(models):
        why = "other models than requested"
    why = why or next(
        (contradiction for contradiction, _ in _contradictions(result, group, models)), None
    )
    if why is not None:
        raise untrue(why, " and ".join(models))


def check_contents(result: CompileResult, folder: Path) -> None:
    """Check the digests in the answer against the files, since the same process made and verified
    them.

    Raises:
        CompileError: the files differ.
    """
    digests = {file.name: file.blake3 for file in result.output.files}
    names = {path.name for path in folder.iterdir()} - {SUMS}
    if names != digests.keys() or any(of_file(folder / name) != digests[name] for name in names):
        raise untrue(
            "listed digests differ from the written files", " and ".join(result.output.models)
        )


def untrue(why: str, models: str) -> CompileError:
    """Return the error of a result that differs from its job or its files; `why` says how."""
    return CompileError(
        f"the worker returned an invalid result: {why}",
        model=models,
        remedy="an SDK may have written to the process's memory: build with fewer execution "
        "providers to find which one",
    )


def _contradictions(
    result: CompileResult, group: ModelGroup, models: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield contradictions to the job, each in words for an answer and for a cached result."""
    output, names = result.output, list(models)
    if [model.name for model in result.models] != names or list(output.models) != names:
        yield "other models than requested", "belongs to other models"
    if not {file.name for file in output.files} >= set(output.models.values()):
        yield "models without a file", "lacks files of its models"
    indices = {str(index) for index in range(len(group.execution_providers))}
    if not {part.provider for model in result.models for part in model.partitions} <= indices:
        yield (
            "execution providers that the group does not have",
            "belongs to other execution providers",
        )


def _is_there(folder: Path, file: OutputFile) -> bool:
    if not paths.is_bare(file.name):
        return False
    try:
        status = (folder / file.name).lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def model_reports(
    stored: CompileResult,
    group: ModelGroup,
    optimized: Mapping[str, OptimizeResult],
    quantized: Mapping[str, QuantizeReport],
) -> tuple[ModelReport, ...]:
    """Return the reports of a session group's models, with the aliases, passes and notes of this
    build.

    Args:
        optimized: results by model: another source may give the same optimized model by other
            passes.
        quantized: reports by model, for the models that are quantized.
    """
    return tuple(
        replace(
            model,
            passes=optimized[model.name].passes,
            notes=optimized[model.name].notes,
            quantized=quantized.get(model.name),
        )
        for model in aliased(stored.models, group.execution_providers)
    )


def aliased(models: Iterable[ModelReport], eps: Sequence[ProviderSpec]) -> tuple[ModelReport, ...]:
    """Return the models with aliases in the place of the indices of their EPs."""

    def named(part: PartitionReport) -> PartitionReport:
        return replace(part, provider=eps[int(part.provider)].alias)

    return tuple(replace(m, partitions=tuple(map(named, m.partitions))) for m in models)


def part_of(report: FolderReport, files: Iterable[str]) -> FolderReport:
    """Return the part of a folder's report about some of its files."""
    return _filtered(report, set(files).__contains__)


def without(report: FolderReport, files: Iterable[str]) -> FolderReport:
    """Return a folder's report without the part about some of its files."""
    excluded = set(files)
    return _filtered(report, lambda name: name not in excluded)


def _filtered(report: FolderReport, keeps: Callable[[str], bool]) -> FolderReport:
    return FolderReport(
        folder="",
        models=tuple(name for name in report.models if keeps(name)),
        findings=tuple(each for each in report.findings if keeps(each.subject)),
        numbers=tuple(each for each in report.numbers if keeps(each.model)),
    )


def refuse(report: FolderReport, eps: Sequence[ProviderSpec] = ()) -> None:
    """Refuse to publish a folder with a failed finding.

    Args:
        eps: the EPs that made its files.

    Raises:
        EpctxError: ONNX Runtime does not load a model that only EPs of epctx made.
        VerificationError: another finding failed; the message counts the others.
    """
    failed = [finding for finding in report.findings if finding.outcome == "fail"]
    if failed:
        first = failed[0]
        made_by = {registry.package_of(registry.entry_of(each.provider)) for each in eps}
        if first.check == "well_formed" and all(each.startswith("epctx ") for each in made_by):
            raise EpctxError(
                f"epctx wrote an invalid model: {first.message}",
                file=first.subject,
                remedy="report it, with the source model and the logs beside the build's report",
            )
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise VerificationError(
            f"{first.policy}: {first.message}{more}",
            file=None if first.subject == "." else first.subject,
            remedy=_RECURS if first.remedy == REBUILD else first.remedy,
            code=CODES[first.policy],
        )
