"""`epctx import qnn-context`: EPContext models around a context binary of another tool."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.commands.init.command import refuse_files
from epctx.commands.verify import command, folders
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files import copying, filenames, outputs
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.graph.serde import canonical
from epctx.providers import registry
from epctx.verification.findings import VerifyReport

_QNN: Final = "QNNExecutionProvider"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class ImportReport(Struct, frozen=True, kw_only=True):
    """Result of an import.

    Attributes:
        models: the written models, one for each graph of the binary; empty if a check failed.
        report: what was checked.
    """

    models: tuple[Path, ...]
    report: VerifyReport


def write(
    binary: Path, out: Path | None, *, soc_model: str | None, quantized: bool, force: bool
) -> ImportReport:
    """Write and check the models, as described in `api.import_qnn_context`."""
    options = {} if soc_model is None else {"soc_model": soc_model}
    provider = registry.bind(_QNN, options)
    models = provider.wrap_binary(binary, quantized=quantized)
    folder = binary.parent if out is None else out
    names = _names(binary, models)
    copied = () if folder.resolve() == binary.parent.resolve() else (binary.name,)
    targets = [folder / name for name in (*copied, *names)]
    refuse_files(targets, force=force)
    with outputs.writing(folder):
        beside = next(each for each in (folder, *folder.parents) if each.is_dir())
        with tempfile.TemporaryDirectory(prefix=".epctx-import-", dir=beside) as scratch:
            work = Path(scratch)
            copying.copy(binary, work / binary.name)
            for name, model in names.items():
                (work / name).write_bytes(canonical.serialize(models[model]))
            survey = folders.survey([work / name for name in names])
            report = command.run(
                [replace(each, label=each.label.rpartition("/")[2]) for each in survey.requests]
            )
            if report.passed:
                folder.mkdir(parents=True, exist_ok=True)
                for name in names:  # an earlier model must not find a new binary
                    (folder / name).unlink(missing_ok=True)
                for target in targets:
                    (work / target.name).replace(target)
    written = tuple(folder / name for name in names) if report.passed else ()
    return ImportReport(models=written, report=report)


def _names(binary: Path, models: Mapping[str, object]) -> dict[str, str]:
    """Return the file name of each graph's model. One graph has the binary's name.

    Raises:
        UsageError: two graphs would have the same file.
    """
    stems = {_UNSAFE.sub("_", graph): graph for graph in models}
    if len({*map(filenames.fold, stems)}) < len(models):
        raise UsageError(
            "two graphs would be written to the same file",
            file=binary.as_posix(),
            why=f"the graphs are {', '.join(map(repr, models))}",
            remedy="convert it again with names of letters, digits, '.', '_' and '-'",
            code=Code.IN_THE_WAY,
        )
    if len(models) == 1:
        stems = {binary.stem: next(iter(models))}
    return {f"{stem}{CONTEXT_SUFFIX}": graph for stem, graph in stems.items()}
