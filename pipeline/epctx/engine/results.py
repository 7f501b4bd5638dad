"""Results of jobs and of the cache: check them, and turn them into reports.

An SDK runs in the process that answers, and anybody may write to a cache. So a result is checked
against its job before its names become paths and indices. Verification checks the content of files.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
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
    "it was built just now, and would be the same again: report it with the model to those who "
    "make the execution provider; `epctx diff` shows what another version of it makes"
)
"""Instead of `REBUILD`, where a build finds it in what it has made."""


class StoredRanges(Struct, frozen=True, kw_only=True):
    """Of *calibrate*: the ranges, as `engine.ranges` writes them."""

    ranges: str


def objection(
    action: StoredAction[CompileResult], group: ModelGroup, models: list[str]
) -> str | None:
    """Why a compile of these models cannot have stored this; None: it can.

    Whoever can write to the cache can put anything there that has the form. What is believed
    becomes names of files that are published, and places in lists.
    """
    stored = action.result
    made = [(file.name, file.size, file.blake3) for file in stored.output.files]
    if not made or made != [(file.name, file.size, file.digest) for file in action.files]:
        return "tells of other files than it has"
    if [model.name for model in stored.models] != models or list(stored.output.models) != models:
        return "is of other models"
    if not set(stored.output.models.values()) <= {name for name, _, _ in made}:
        return "has not the files of its models"
    places = {str(place) for place in range(len(group.execution_providers))}
    if not {part.provider for model in stored.models for part in model.partitions} <= places:
        return "is of other execution providers"
    return None


def model_reports(
    stored: CompileResult,
    group: ModelGroup,
    optimized: Mapping[str, OptimizeResult],
    quantized: Mapping[str, QuantizeReport],
) -> tuple[ModelReport, ...]:
    """What is told of a session group's models, with the aliases, passes and notes of today.

    Args:
        optimized: by model: another source may have given the same optimized model otherwise.
        quantized: by model, of those that were.
    """
    named = aliased(stored.models, group.execution_providers)
    found = ((model, optimized[model.name]) for model in named)
    return tuple(
        replace(model, passes=own.passes, notes=own.notes, quantized=quantized.get(model.name))
        for model, own in found
    )


def aliased(models: Iterable[ModelReport], eps: Sequence[ProviderSpec]) -> tuple[ModelReport, ...]:
    """Models whose EPs are told by their places, with the aliases of today."""

    def named(part: PartitionReport) -> PartitionReport:
        return replace(part, provider=eps[int(part.provider)].alias)

    return tuple(replace(m, partitions=tuple(map(named, m.partitions))) for m in models)


def part_of(report: FolderReport, files: Iterable[str]) -> FolderReport:
    """What a report says of some files of its folder."""
    wanted = set(files)
    return FolderReport(
        folder="",
        models=tuple(name for name in report.models if name in wanted),
        findings=tuple(f for f in report.findings if f.subject in wanted),
        numbers=tuple(n for n in report.numbers if n.model in wanted),
    )


def without(report: FolderReport, files: Iterable[str]) -> FolderReport:
    """What a report says of its folder beside some files."""
    left_out = set(files)
    return FolderReport(
        folder="",
        models=tuple(name for name in report.models if name not in left_out),
        findings=tuple(f for f in report.findings if f.subject not in left_out),
        numbers=tuple(n for n in report.numbers if n.model not in left_out),
    )


def refuse(found: FolderReport, eps: Sequence[ProviderSpec] = ()) -> None:
    """Refuse to publish a folder with a finding that failed.

    Args:
        eps: those that made what the files hold.

    Raises:
        EpctxError: ONNX Runtime does not load what epctx wrote, with EPs of its own.
        VerificationError: there is another one; says how many more.
    """
    failed = [finding for finding in found.findings if finding.outcome == "fail"]
    if failed:
        first = failed[0]
        made_by = {registry.package_of(registry.entry_of(each.provider)) for each in eps}
        if first.check == "well_formed" and all(each.startswith("epctx ") for each in made_by):
            raise EpctxError(
                f"epctx wrote a model that is not valid: {first.message}",
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


def check_compiled(
    result: CompileResult, group: ModelGroup, models: Sequence[str], folder: Path
) -> None:
    """Hold the answer of a compile to its job.

    Args:
        models: that were to be compiled, in their order.
        folder: where its files should be.

    Raises:
        CompileError: it cannot be true.
    """
    made = {file.name: file for file in result.output.files}
    places = {str(place) for place in range(len(group.execution_providers))}
    if not made or len(made) < len(result.output.files):
        why = "no file, or one file twice"
    elif not all(_is_there(folder, file) for file in result.output.files):
        why = "files that are not there"
    elif (
        [model.name for model in result.models] != list(models)
        or list(result.output.models) != list(models)
        or len(result.unmatched) != len(models)
    ):
        why = "other models than were to be compiled"
    elif not made.keys() >= set(result.output.models.values()):
        why = "models without a file"
    elif not {part.provider for model in result.models for part in model.partitions} <= places:
        why = "execution providers that the group does not have"
    else:
        return
    raise untrue(why, " and ".join(models))


def check_contents(result: CompileResult, folder: Path) -> None:
    """Hold what the answer says of files to the files: who verified them has made them, too.

    Raises:
        CompileError: it cannot be true.
    """
    told = {file.name: file.blake3 for file in result.output.files}
    names = {path.name for path in folder.iterdir()} - {SUMS}
    if names != told.keys() or any(of_file(folder / name) != told[name] for name in names):
        raise untrue("other files than it wrote", " and ".join(result.output.models))


def _is_there(folder: Path, file: OutputFile) -> bool:
    if not paths.is_bare(file.name):
        return False
    try:
        status = (folder / file.name).lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def untrue(why: str, models: str) -> CompileError:
    """Return the error of an answer that cannot be true; `why`: what it told of."""
    return CompileError(
        f"the worker process told of {why}",
        model=models,
        why="its answer cannot be true",
        remedy="an SDK may have written to the process's memory: build with fewer execution "
        "providers to find which one",
    )
