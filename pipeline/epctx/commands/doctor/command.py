"""`doctor`: report what is installed, what this host can do with it, and what to repair.

No vendor library is loaded into this process. Each EP is probed in a process of its own (`probe`),
all at the same time. The reference EP is part of epctx and needs no process.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import Distribution
from pathlib import Path

import psutil

from epctx import codec, limits
from epctx._version import __version__
from epctx.cache import location as places
from epctx.commands.doctor import probe
from epctx.commands.doctor.probe import CacheDiagnosis, Diagnosis, HostDiagnosis, ProviderDiagnosis
from epctx.engine import report
from epctx.error_codes import Code
from epctx.errors import EpctxError, Failure, ProviderUnavailable, StorageError
from epctx.manifest import ENTRY_POINTS
from epctx.providers import registry
from epctx.providers.onnxruntime import native_process, packages, plugins
from epctx.providers.reference import options as reference
from epctx.worker import process
from epctx.worker.process import environment

_REQUIRED = re.compile(r"[A-Za-z0-9._-]+")
_OWNED = re.compile(r"^(\w+)(?:/__init__)?\.py,", re.MULTILINE)
"""Pattern for lines of a distribution's RECORD that name the modules it installs."""


def diagnose() -> Diagnosis:
    """Diagnose this host. Changes nothing; takes a second or two."""
    names = (probe.BUILT_IN, *registry.names())
    with asking(names) as answers:
        host = _host()
        problems: list[Failure] = [error.failure for error in conflicts()]
        providers = tuple(answers)
    problems += [
        dataclasses.replace(each.failure, where=each.failure.where or each.name)
        for each in providers
        if each.state == "broken" and each.failure is not None
    ]
    try:
        stored: CacheDiagnosis | None = _cache(places.locate(), problems)
    except EpctxError as error:
        stored = None
        problems.append(error.failure)
    return Diagnosis(
        epctx=__version__,
        host=host,
        providers=providers,
        cache=stored,
        problems=tuple(problems),
        hidden=plugins.hidden(),
    )


def conflicts() -> Iterator[ProviderUnavailable]:
    """Modules of epctx and its EPs that several installed distributions contain.

    The distribution installed last has overwritten files of the others, and uninstalling one of
    them also removes files of the rest. Packages without an `__init__.py` are shared on purpose.
    """
    needed = _needed()
    installers: dict[str, list[Distribution]] = {}
    for distribution in importlib.metadata.distributions():
        for module in _owned(distribution):
            installers.setdefault(module, []).append(distribution)
    for module, distributions in sorted(installers.items()):
        owners = (
            sorted({_plain(each.name) for each in distributions}) if len(distributions) > 1 else []
        )
        if len(owners) > 1 and not needed.isdisjoint(owners):
            yield ProviderUnavailable(
                f"{' and '.join(owners)} both own the import {module}; the last one installed wins",
                remedy=f"run `pip uninstall {' '.join(owners)}`, then install one of them",
                code=Code.PACKAGES_CLASH,
            )


def _needed() -> set[str]:
    """Names of the distributions that epctx and its EP packages require, and ONNX Runtime's."""
    dists = [importlib.metadata.distribution("epctx")]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        dists += [entry.dist] if entry.dist is not None else []
    needed = {*packages.onnxruntimes()}
    for dist in dists:
        needed.add(_plain(dist.name))
        for requirement in dist.requires or ():
            name = _REQUIRED.match(requirement)
            needed |= {_plain(name[0])} if name else set()
    return needed


def _owned(distribution: Distribution) -> set[str]:
    """Modules that a distribution installs, read from its RECORD file, if it has one.

    The file is read as text, because `Distribution.files` takes longer than the rest of a
    diagnosis.
    """
    record = distribution.read_text("RECORD")
    if record is None:
        return set((distribution.read_text("top_level.txt") or "").split())
    return set(_OWNED.findall(record))


def _plain(name: str) -> str:
    """Normalized name of a distribution, as pip compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def asking(names: Sequence[str]) -> Iterator[Iterator[ProviderDiagnosis]]:
    """Start to probe all EPs at the same time; yield their diagnoses. See `ask`."""
    with ThreadPoolExecutor(max_workers=len(names) or 1) as pool:
        yield (diagnosis for diagnoses in pool.map(ask, names) for diagnosis in diagnoses)


def ask(name: str) -> list[ProviderDiagnosis]:
    """Probe one EP, or all EPs built into ONNX Runtime, in a process of its own."""
    if name == reference.NAME:
        return [probe.diagnose(name)]
    with tempfile.TemporaryDirectory(prefix="epctx-doctor-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as stream:
            try:
                ended = native_process.run(
                    [sys.executable, "-P", "-m", "epctx.commands.doctor.probe", name],
                    folder=Path(folder),
                    variables=environment({}),
                    stderr=stream,
                    timeout=limits.PROBE_SECONDS.value,
                )
            except subprocess.TimeoutExpired:
                return [_broken(name, f"did not answer within {limits.PROBE_SECONDS}", log)]
        # The exit code overrides the answer: a library may crash when it is unloaded.
        if ended.returncode == 0:
            return codec.decode(ended.stdout, list[ProviderDiagnosis])
        words = native_process.describe_end(ended.returncode) or process.exit_words(
            ended.returncode
        )
        return [_broken(name, f"crashed the process that probed it, {words}", log)]


def _broken(name: str, what: str, log: Path) -> ProviderDiagnosis:
    text = log.read_bytes()[-20_000:].decode(errors="replace").splitlines()
    tail = "\n".join(line for line in text[-process.LOG_LINES :] if line.strip())
    try:
        package = registry.package_of(registry.entry_of(name))
    except ProviderUnavailable:
        package = name
    return ProviderDiagnosis(
        name=name,
        package=package,
        state="broken",
        versions={},
        failure=ProviderUnavailable(
            what,
            where=name,
            why=f"it printed:\n{tail}" if tail else None,
            remedy=f"reinstall {package}, or install another version of it",
        ).failure,
    )


def _host() -> HostDiagnosis:

    host = report.host()
    return HostDiagnosis(
        system=f"{host.system} {platform.release()}",
        machine=host.machine,
        python=f"{host.python} ({sys.executable})",
        cores=os.cpu_count() or 1,
        memory=psutil.virtual_memory().total,
        packages=host.packages,
    )


def _cache(location: places.Location, problems: list[Failure]) -> CacheDiagnosis:
    """Describe the cache folder. If it is missing, check its nearest existing parent."""
    folder = location.folder
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            writable = True
    except OSError as error:
        writable = False
        if not location.readonly:
            refused: StorageError = places.refused(location.folder, error)
            problems.append(refused.failure)
    return CacheDiagnosis(
        folder=location.folder.as_posix(), readonly=location.readonly, writable=writable
    )
