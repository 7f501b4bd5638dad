"""Write a kit, whole or not at all: the files that a device needs to check and time models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx._version import __version__
from epctx.commands.kit import check_device
from epctx.commands.package import checking
from epctx.commands.report import command as reports
from epctx.commands.verify import command as verifying
from epctx.commands.verify import folders
from epctx.commands.verify.folders import Survey
from epctx.engine.report import BuildReport, EpReport, GroupReport
from epctx.error_codes import Code
from epctx.errors import EpctxError, UsageError, VerificationError
from epctx.files import copying, digest, outputs
from epctx.files.outputs import CONTEXT_SUFFIX, GOLDEN, KIT, SIGNATURE, SUMS
from epctx.graph.epcontext import COMPATIBILITY
from epctx.manifest import ProviderSpec, Tolerance
from epctx.providers import registry
from epctx.providers.base import OnDevice
from epctx.verification.folder import (
    ContextModel,
    GroupFolder,
    Providers,
    open_folder,
    sharing_sets,
)
from epctx.verification.numbers import golden_files, tolerances
from epctx.verification.numbers.golden_files import GoldenSet
from epctx.verification.numbers.tolerances import of_output
from epctx.verification.request import VerifyRequest

_README: Final = """\
Models of {name}, to be checked on a device that has no epctx.

1. Copy this folder to the device.
2. There, have Python 3.9 or later with numpy, onnxruntime and: {packages}
   It was built with: {versions}
3. Run:  python check_device.py --out device.json
   It checks every SHA-256, loads each model, runs the golden inputs, compares the outputs,
   and times loading and inference; exit code 0: all is well. --help lists its options.
4. Bring device.json and the .npz files beside it back to where epctx is, and run:
   epctx verify {source} --device-results device.json
"""


class KitModel(Struct, frozen=True, kw_only=True):
    """Model of a kit; file paths are relative to the kit.

    Attributes:
        name: `<target>/<group>/<model>`.
        golden: file with the inputs and outputs of `sets`.
        tolerances: tolerance of each output.
        compatibility: compatibility string of the model, by EP.
        sdk: SDK versions that its EPContext nodes record.
    """

    name: str
    file: str
    files: tuple[str, ...]
    golden: str
    sets: tuple[GoldenSet, ...]
    tolerances: Mapping[str, Tolerance]
    compatibility: Mapping[str, str]
    sdk: tuple[str, ...]


class KitSet(Struct, frozen=True, kw_only=True):
    """Models that are loaded together, in order. `why_not`: why ONNX Runtime cannot load them."""

    models: tuple[KitModel, ...]
    eps: tuple[OnDevice, ...]
    share: bool
    why_not: str | None


class Kit(Struct, frozen=True, kw_only=True):
    """Content of kit.json. `built_with` has the known versions of the build's toolchain."""

    version: Literal[1] = 1
    epctx: str = __version__
    name: str
    expect_driver: str | None
    built_with: Mapping[str, str]
    sets: tuple[KitSet, ...]


class KitReport(Struct, frozen=True, kw_only=True):
    """Report of a written kit.

    Attributes:
        left: models that only epctx can run, with the reason.
        not_packed: entries of the source folder outside groups and packages.
    """

    path: Path
    models: int
    size: int
    left: Mapping[str, str] = field(default_factory=dict)
    not_packed: tuple[str, ...] = ()


def write(
    source: Path, out: Path | None, *, golden: Path | None, expect_driver: str | None
) -> KitReport:
    """Write a kit from built outputs, as described in `api.kit`."""
    report = _report(golden or source)
    name = source.resolve().name.removesuffix(".ortpackage")
    target = out or (report or source.resolve()).parent / f"{name}.kit"
    if target.exists() and not (target / KIT).is_file():
        raise UsageError(
            "exists and is not a kit, so no kit replaces it",
            file=target.as_posix(),
            remedy="move it, or give another folder with -o",
            code=Code.IN_THE_WAY,
        )
    build_report = None if report is None else reports.read(report)
    groups = (
        {f"{g.target}/{g.group}": g for g in build_report.groups}
        if build_report is not None
        else {}
    )
    golden_requests = folders.survey([golden]).requests if golden else ()
    golden_folders = {_key(each.folder): each.folder for each in golden_requests}
    files: dict[str, Path] = {}
    sets: list[KitSet] = []
    survey = folders.survey([source])
    for each in _checked(survey, source):
        key = _key(each.folder)
        place = golden_folders.get(key, each.folder) / GOLDEN
        sets += _sets(each, place, _bound(groups, key), files)
    versions = _versions(build_report) if build_report is not None else {}
    kit = Kit(name=name, expect_driver=expect_driver, built_with=versions, sets=tuple(sets))
    return KitReport(
        path=target,
        models=sum(len(each.models) for each in sets),
        size=_write(kit, files, target, source),
        left={m.name: each.why_not for each in sets if each.why_not for m in each.models},
        not_packed=tuple(folders.words(p) for p in survey.rest if p.name != SIGNATURE),
    )


def _report(folder: Path) -> Path | None:
    """Report of the build that made a folder, for its options and versions; None if not found."""
    try:
        return reports.of_folder(folder)
    except UsageError:
        return None


def _checked(survey: Survey, source: Path) -> Sequence[VerifyRequest]:
    """Group folders in a folder or package, after checking that their files are unchanged."""
    packages = [checking.check(p.resolve(), folders.words(p)) for p in survey.packages]
    requests = [*survey.requests, *(r for each in packages for r in each.requests)]
    limited = [replace(each, policies=("integrity", "conformance")) for each in requests]
    verified = verifying.run(limited, others=[each.report for each in packages])
    for failed in verified.findings("fail"):
        raise VerificationError(
            "does not pass the checks, so no kit is made of it",
            where=f"{folders.words(source)}: {failed.subject}",
            why=failed.message,
            remedy=failed.remedy,
        )
    return requests


def _key(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def _versions(report: BuildReport) -> dict[str, str]:
    """Versions of the distributions that compiled: ONNX Runtime and its EPs, without files."""
    eps = (ep for group in report.groups for ep in group.execution_providers)
    chains = [ep.toolchain for ep in eps if ep.traits is not None and ep.traits.native]
    runtimes = {
        name: v for name, v in report.host.packages.items() if name.startswith("onnxruntime")
    }
    return runtimes | {name: v for chain in chains for name, v in chain.items() if "/" not in name}


def _bound(groups: Mapping[str, GroupReport], key: str) -> Sequence[EpReport]:
    """EPs that a group was built with; for a composition, the EPs of its parts' groups."""
    group = groups.get(key)
    if group is None or group.composition is None:
        return () if group is None else group.execution_providers
    parts = [part.partition("/")[0] for part in group.composition.parts.values()]
    owners = [groups.get(f"{group.target}/{name}") for name in parts]
    every = (each for owner in owners if owner is not None for each in owner.execution_providers)
    return tuple({each.alias: each for each in every}.values())


def _sets(
    request: VerifyRequest, place: Path, bound: Sequence[EpReport], files: dict[str, Path]
) -> Iterator[KitSet]:
    """Sets of models of a group folder; adds the needed files to `files`, by path in the kit."""
    folder = open_folder(
        request.folder, providers=_providers(bound), models=request.models, data=request.data
    )
    for models in sharing_sets(folder):
        eps, why_not = _eps(folder, models, bound)
        yield KitSet(
            models=tuple(_model(folder, model, place, files) for model in models),
            eps=eps,
            share=len(models) > 1,
            why_not=why_not,
        )


def _model(
    folder: GroupFolder, model: ContextModel, place: Path, files: dict[str, Path]
) -> KitModel:
    key, name = _key(folder.path), model.file.removesuffix(CONTEXT_SUFFIX)
    golden = (golden_files.read_record(place).models if place.is_dir() else {}).get(name)
    if golden is None:
        raise UsageError(
            "has no golden inputs and outputs",
            where=f"{key}/{name}",
            remedy="build it with `epctx build --golden`; of a package, name that build's folder "
            "with --golden",
        )
    sources = {f"{key}/{n}": folder.path / n for n in model.files}
    sources |= {f"{key}/{n}": folder.data_folder(model) / n for n in model.data}
    golden_file = f"{key}/{GOLDEN}/{name}.npz"
    for path, source in {**sources, golden_file: place / f"{name}.npz"}.items():
        if files.setdefault(path, source) != source:
            remedy = "give `external_initializers.file` another name for each model"
            raise UsageError(
                "stands for two different files of the package", where=path, remedy=remedy
            )
    providers = folder.providers.of(model.sources)
    cases = golden_files.read(place, name, golden)
    arrays = {output: array for case in cases for output, array in case.outputs.items()}
    return KitModel(
        name=f"{key}/{name}",
        file=f"{key}/{model.file}",
        files=tuple(sources),
        golden=golden_file,
        sets=golden.sets,
        tolerances={
            output: tolerances.limits(
                providers,
                of_output(output, golden.precision),
                str(a.dtype),
                golden.tolerance,
                probability=output in golden.probabilities,
            )
            for output, a in arrays.items()
        },
        compatibility={
            entry.removeprefix(COMPATIBILITY): value
            for entry, value in model.metadata.items()
            if entry.startswith(COMPATIBILITY)
        },
        sdk=tuple(dict.fromkeys(n.ep_sdk_version for n in model.nodes if n.ep_sdk_version)),
    )


def _providers(bound: Sequence[EpReport]) -> Providers:
    """EPs with the options of the build; EPs with default options without a build report."""
    specs = [ProviderSpec(alias=e.alias, provider=e.provider, options=e.options) for e in bound]
    try:
        return Providers(asked=tuple(map(registry.create, specs)) or None)
    except EpctxError:  # EP is not installed, or an option is the digest of a file
        return Providers()


def _eps(
    folder: GroupFolder, models: Sequence[ContextModel], bound: Sequence[EpReport]
) -> tuple[tuple[OnDevice, ...], str | None]:
    """EPs of one session in their order, or none and the reason why there is no session."""
    order = [each.provider for each in bound]
    on_device: list[OnDevice] = []
    for source in dict.fromkeys(source for model in models for source in model.sources):
        provider = folder.providers.find(source)
        if provider is None:
            return (), f"no EP on this host accepts the source '{source}'"
        nodes = [node for model in models for node in model.nodes if node.source == source]
        device = provider.on_device(nodes, sharing=len(models) > 1)
        if device is None:
            return (), f"{provider.name} has no library for ONNX Runtime: epctx alone runs it"
        on_device.append(device)
    on_device.sort(key=lambda ep: order.index(ep.ep) if ep.ep in order else len(order))
    return tuple(on_device), None


def _write(kit: Kit, files: Mapping[str, Path], target: Path, source: Path) -> int:
    """Write the kit beside the target, then move it into place; return its size."""
    staged, old = (target.with_name(f".{target.name}.{word}") for word in ("new", "old"))
    with outputs.writing(target):
        for each in (staged, old):
            shutil.rmtree(each, ignore_errors=True)
        try:
            _fill(staged, kit, files, source)
            if target.exists():
                target.rename(old)
            staged.rename(target)
        except BaseException:
            if old.exists() and not target.exists():
                old.rename(target)
            shutil.rmtree(staged, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
        return sum(each.stat().st_size for each in target.rglob("*") if each.is_file())


def _fill(folder: Path, kit: Kit, files: Mapping[str, Path], source: Path) -> None:
    """Write all files of a kit, and flush them to the disk."""
    folder.mkdir(parents=True)
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copying.copy(path, folder / name)
    shutil.copyfile(check_device.__file__, folder / "check_device.py")
    (folder / KIT).write_bytes(codec.encode(kit, indent=2) + b"\n")
    (folder / "README.txt").write_text(_readme(kit, source), encoding="utf-8", newline="\n")
    paths = sorted(each for each in folder.rglob("*") if each.is_file())
    names = {each.relative_to(folder).as_posix(): each for each in paths}
    sums = (f"{digest.of_file(path, 'sha256').hex}  {name}\n" for name, path in names.items())
    (folder / SUMS).write_text("".join(sums), encoding="utf-8", newline="\n")
    outputs.sync_files([*paths, folder / SUMS])


def _readme(kit: Kit, source: Path) -> str:
    packages = {ep.package for each in kit.sets for ep in each.eps if ep.package}
    versions = (f"{name} {version}" for name, version in sorted(kit.built_with.items()))
    return _README.format(
        name=kit.name,
        packages=" ".join(sorted(packages)) or "nothing else",
        versions=", ".join(versions) or "what is not known",
        source=folders.words(source),
    )
