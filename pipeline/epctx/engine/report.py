"""The build report as types: `dist/<name>.build.json`, described by schemas/report.schema.json."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, field

from epctx.cache.action import Origin, RemoteReport
from epctx.errors import Failure, LogTail
from epctx.files.digest import Digest
from epctx.files.entries import read_document
from epctx.files.outputs import OutputFile
from epctx.graph.model import Placement as Placement
from epctx.keys.toolchain import Traits
from epctx.lockfile.types import Lock
from epctx.manifest import OptionValue, Written
from epctx.providers.onnxruntime import packages
from epctx.stages.report import CompositionReport
from epctx.stages.report import ModelReport as ModelReport
from epctx.text import Brief, size_words
from epctx.verification.findings import FolderReport, error_words, largest_error

SCHEMA_VERSION = 1
_GIT_BYTES: Final = 1 << 26
_ROWS: Final = 50
"""Number of groups shown; failed ones come first."""
_HEADINGS: Final = ("group", "state", "models", "files", "size", "largest error", "why")
PACKAGES = ("epctx", "numpy", "onnx", "onnx-ir")
"""Packages to list, besides the installed distribution of ONNX Runtime."""


class StageTime(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time of a stage of a model or session group, in seconds since the build's start.

    Attributes:
        machine: the machine that ran it; None for the one that built.
    """

    stage: str
    subject: str
    start: float
    end: float
    machine: str | None = None


class ActionReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action of a group.

    Attributes:
        action: optimize, quantize, cut, compile, assemble, verify, compose.
        subject: the model, the sharing group, or the group or composition as a whole.
        key: its cache key; None if the key could not be made.
        ran: whether it ran; otherwise its result was in the cache.
        came_from: `local`, or the URL of the shared cache from which this build downloaded the
            result or one of its files; None if the action ran.
        signer: name of the trusted key that signed the result; None if no signature is required, or
            if the action ran.
        machine: the machine that ran it; None for the one that built, or if it did not run.
    """

    action: str
    subject: str
    key: str | None
    ran: bool
    came_from: str | None = field(name="from", default=None)
    signer: str | None = None
    machine: str | None = None

    @classmethod
    def of(
        cls, action: str, subject: str, key: Digest | None, origin: Origin | None
    ) -> ActionReport:
        """Return the report of an action; without an origin, the action ran."""
        return cls(
            action=action,
            subject=subject,
            key=None if key is None else str(key),
            ran=origin is None,
            came_from=None if origin is None else origin.remote or "local",
            signer=None if origin is None else origin.signer,
        )


class EpReport(Struct, frozen=True, kw_only=True):
    """An execution provider of a group.

    Attributes:
        alias: the manifest's key.
        provider: ONNX Runtime's name of it.
        options: its options; a path-valued option has the digest of its content.
        toolchain: versions of its toolchain; empty if it is not installed.
        traits: its traits; None if it is not installed.
    """

    alias: str
    provider: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    toolchain: Mapping[str, str] = field(default_factory=dict)
    traits: Traits | None = None


class GroupReport(Brief, frozen=True, kw_only=True):
    """One model group for one target, or one composition, which has a folder like a group's.

    Attributes:
        state: built (published), up to date (nothing had to be done), failed, or skipped (the build
            ended because another group failed).
        folder: published folder, relative to the output folder; None if it was not published.
        models: for a failed group, its partitioned models, as far as they got.
        verify: the verification; for a failed group, with its failures. None if it did not run.
        log: for a failed group, the end of the failed process's log.
        execution_providers: its EPs, in priority order.
        manifest: its part of the manifest, for its target, as JSON.
        peak_memory: largest resident size of its workers, in bytes.
        composition: its wiring; None for a model group.
        golden: golden inputs and outputs in its folder `golden`, with SHA256SUMS.
        devices: devices that run its models on the build host: the CPU, drivers.
        buckets: for each model of the manifest that lists sizes, its bucket models with their sizes
            by dimension.
        guessed: for each model, the sizes that `epctx init` guessed, in words.
    """

    target: str
    group: str
    state: Literal["built", "up to date", "failed", "skipped"]
    folder: str | None = None
    files: tuple[OutputFile, ...] = ()
    models: tuple[ModelReport, ...] = ()
    verify: FolderReport | None = None
    failure: Failure | None = None
    actions: tuple[ActionReport, ...] = ()
    stages: tuple[StageTime, ...] = ()
    peak_memory: int = 0
    composition: CompositionReport | None = None
    golden: tuple[OutputFile, ...] = ()
    log: LogTail | None = None
    execution_providers: tuple[EpReport, ...] = ()
    manifest: Written = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    buckets: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    guessed: Mapping[str, str] = field(default_factory=dict)

    @property
    def counted(self) -> str:
        """Number of its models in the manifest, and of buckets, if any: `2 (3 buckets)`."""
        buckets = {name for each in self.buckets.values() for name in each}
        manifest_models = {model.name for model in self.models} - buckets
        suffix = f" ({len(buckets)} bucket{'s' * (len(buckets) != 1)})" if buckets else ""
        return f"{len(manifest_models) + len(self.buckets)}{suffix}"


class Host(Struct, frozen=True, kw_only=True):
    """Host of the build; only the report names it, no output does."""

    system: str
    machine: str
    python: str
    packages: dict[str, str]


class ReleaseReport(Struct, frozen=True, kw_only=True):
    """Files of a release; None for those that are not requested.

    Attributes:
        archive: `<name>.tar`, with every published file.
        attestation: `<name>.intoto.json`: in-toto, SLSA provenance.
        signature: `<name>/model.sig`, of every published file: OpenSSF Model Signing.
    """

    archive: OutputFile | None = None
    attestation: OutputFile | None = None
    signature: OutputFile | None = None


class BuildReport(Brief, frozen=True, kw_only=True):
    """A whole build.

    Attributes:
        started: UTC, ISO 8601.
        seconds: wall time.
        lock: the lock of the built groups, as in the lock file; None if one failed.
        release: release files of a build that succeeded as a whole; None if none are requested.
        remote: use of the shared cache; None if no shared cache is configured, or if it was not
            used.
        revision: the commit that is checked out in the manifest's folder; None without git.
    """

    schema_version: int
    epctx: str
    name: str
    started: str
    seconds: float
    host: Host
    groups: tuple[GroupReport, ...]
    lock: Lock | None = None
    release: ReleaseReport | None = None
    remote: RemoteReport | None = None
    revision: str | None = None

    def _repr_html_(self) -> str:
        """Show it in a notebook: its groups as a table, with what failed and why."""
        return _html(self)


def versions() -> dict[str, str]:
    """Return the versions of Python, epctx's libraries, ONNX Runtime and the installed EPs."""
    here = host()
    distributions = {
        "python": here.python,
        **here.packages,
        **packages.distributions("onnxruntime"),
    }
    return {name: version for name, version in distributions.items() if name != "epctx"}


def host() -> Host:
    """Return the report of this host."""
    return Host(
        system=platform.system(),
        machine=platform.machine(),
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES}
        | packages.onnxruntimes(),
    )


def revision(folder: Path) -> str | None:
    """Return the commit that is checked out where a folder lies; None if git has none."""

    def text(path: Path) -> str:
        return read_document(path, _GIT_BYTES).decode()

    for place in (folder, *folder.parents):
        git = place / ".git"
        try:
            if git.is_file():  # a linked work tree: its `.git` is a file
                git = place / text(git).removeprefix("gitdir:").strip()
            elif not git.is_dir():
                continue
            name = text(git / "HEAD").removeprefix("ref:").strip()
            shared = git / "commondir"
            common = git / text(shared).strip() if shared.exists() else git
            files = [path for path in (common / name, common / "packed-refs") if path.is_file()]
            refs = f"{name}\n" + "\n".join(map(text, files))
        except (OSError, ValueError):
            return None
        match = re.search(rf"^([0-9a-f]{{40,64}})(?: {re.escape(name)})?$", refs, re.MULTILINE)
        return None if match is None else match[1]
    return None


def _html(report: BuildReport) -> str:
    states = Counter(group.state for group in report.groups)
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    groups = sorted(report.groups, key=lambda group: group.state != "failed")
    more = f"<p>and {len(groups) - _ROWS} more</p>" if len(groups) > _ROWS else ""
    rows = "".join(_row("td", _cells(group)) for group in groups[:_ROWS])
    return (
        f"<p><b>{escape(report.name)}</b>: {escape(words)}, in {report.seconds:.1f} s</p>"
        f"<table><thead>{_row('th', _HEADINGS)}</thead><tbody>{rows}</tbody></table>{more}"
    )


def _cells(group: GroupReport) -> Iterator[str]:
    yield f"{group.group}@{group.target}"
    yield group.state
    yield group.counted
    yield str(len(group.files))
    yield size_words(sum(file.size for file in group.files))
    numbers = group.verify.numbers if group.verify is not None else ()
    yield error_words(largest_error(numbers))
    failure = group.failure
    yield f"{failure.code}: {failure.what}; {failure.remedy}" if failure is not None else ""


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
