"""Check a package: its form, its files, and its content against a lock.

ONNX Runtime opens packages even if files were changed, assets do not match their names, or variants
can never be selected. The models in the variants are checked in a separate process, as in any
folder of models (`requests`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx._version import __version__
from epctx.commands.package import contents, form
from epctx.commands.package.form import (
    ASSETS,
    MANIFEST,
    Component,
    OrtInfo,
    Package,
    PackagePlaces,
    Unresolved,
    Variant,
)
from epctx.errors import LockError, ModelError
from epctx.files import digest, hashing, paths
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.files.listing import is_link
from epctx.files.outputs import CONTEXT_SUFFIX, SIGNATURE, SUMS
from epctx.files.regular import open_regular
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedPackage
from epctx.manifest import DEFAULT_EP, GENAI_CONFIG
from epctx.verification import integrity
from epctx.verification.findings import Finding, FolderReport
from epctx.verification.request import Claim, VerifyRequest

REBUILD: Final = "run `epctx package` again, or ask whoever made it to"
_conformance: Final = partial(Finding, "conformance")
_VERSION: Final = re.compile(r"(\d+)(?:\.(\d+))?")


def other_version(package: Package) -> Finding | None:
    """Make a finding for an unknown format; None if the format is known."""
    match = _VERSION.fullmatch(str(package.schema_version))
    if match is None or match[1] != "1":
        message = f"has schema version {package.schema_version}, but ONNX Runtime 1.31 only reads 1"
        return fail("manifest", MANIFEST, message, REBUILD)
    if match[2] not in (None, "0"):
        message = f"has schema version {package.schema_version}, which is newer than 1.0"
        return unknown(MANIFEST, message, "verify it with a newer epctx")
    return None


def selectable(subject: str, variant: Variant) -> Iterator[Finding]:
    """Find reasons why ONNX Runtime 1.31.1 silently never selects a variant."""
    ep = variant.ep or ""
    if not ep.endswith("ExecutionProvider"):
        ep_words = f"the EP {ep!r}, which is not a full name" if ep else "no EP"
        message = f"has {ep_words}: ONNX Runtime never selects it"
        remedy = 'write ONNX Runtime\'s name of the EP, like "QNNExecutionProvider"'
        yield fail("selectable", subject, message, remedy)
    if ep == DEFAULT_EP and variant.device is not None:
        message = f"names a device: ONNX Runtime 1.31 selects no variant of {DEFAULT_EP} then"
        yield fail("selectable", subject, message, "remove `device`")
    if variant.device is not None and variant.device.lower() not in form.DEVICES:
        message = f"is for the device {variant.device!r}, which ONNX Runtime does not know"
        remedy = f"write one of {', '.join(form.DEVICES)}, or nothing"
        yield fail("selectable", subject, message, remedy)


def fail(check: str, subject: str, message: str, remedy: str) -> Finding:
    """Make a failing finding."""
    return _conformance(check, subject, "fail", message, remedy)


def passed(check: str, subject: str, message: str) -> Finding:
    """Make a passing finding."""
    return _conformance(check, subject, "pass", message)


def unknown(subject: str, message: str, remedy: str) -> Finding:
    """Make a finding about a part that cannot be checked or is useless."""
    return _conformance("manifest", subject, "not checkable", message, remedy)


_integrity: Final = partial(Finding, "integrity")
_DAMAGED: Final = "do not ship it: make it again, or restore the file from where it was released"
_SURPLUS: Final = "remove it, or make the folder again: nothing else belongs in it"


def read_hashes(root: Path, entries: Sequence[str]) -> dict[str, Digest | str]:
    """Return the SHA-256 of every file of a package, or the reason why it cannot be read.

    Args:
        root: the package.
        entries: all paths in the package, with `/`; an empty folder ends with `/`.
    """
    files = [entry for entry in entries if not entry.endswith("/")]
    return hashing.of_each(lambda name: _hash(root / name), files)


def check_hashes(
    root: Path, entries: Sequence[str], hashes: Mapping[str, Digest | str]
) -> Iterator[Finding]:
    """Compare every file with SHA256SUMS and assets with their names; see `read_hashes`."""
    for name, result in hashes.items():
        if isinstance(result, str):
            yield _integrity("files", name, "fail", f"cannot be read: {result}", _DAMAGED)
    digests = {name: result for name, result in hashes.items() if isinstance(result, Digest)}
    yield from _sums(root, digests)
    yield from _assets(digests, entries)


def _sums(root: Path, digests: Mapping[str, Digest]) -> Iterator[Finding]:
    if SUMS not in digests:
        message = "is missing: epctx did not write this folder, or the file was not copied"
        remedy = "ship the file with the folder; it lists the SHA-256 of every file"
        yield _integrity("sums", SUMS, "not checkable", message, remedy)
        return
    listed, faults = integrity.read_sums(root, nested=True)
    yield from (_integrity("sums", SUMS, "fail", fault, _DAMAGED) for fault in faults)
    expected = {each.name: each.digest for each in listed}
    for name in sorted(expected.keys() - digests.keys()):
        yield _integrity("sums", name, "fail", f"is missing, but {SUMS} lists it", _DAMAGED)
    for name in sorted(digests.keys() - expected.keys() - {SUMS}):
        yield _integrity("sums", name, "fail", f"is not in {SUMS}", _SURPLUS)
    for name in sorted(digests.keys() & expected.keys()):
        if digests[name] == expected[name]:
            yield _integrity("sums", name, "pass", f"its SHA-256 is that of {SUMS}")
        else:
            message = (
                f"was changed: its SHA-256 is {digests[name].hex[:16]}…, "
                f"not {expected[name].hex[:16]}… as in {SUMS}"
            )
            yield _integrity("sums", name, "fail", message, _DAMAGED)


def _assets(digests: Mapping[str, Digest], entries: Sequence[str]) -> Iterator[Finding]:
    assets: dict[str, dict[str, Digest]] = {}
    for entry in entries:
        top, _, rest = entry.partition("/")
        if top == ASSETS and rest:
            folder, _, inner = rest.partition("/")
            files = assets.setdefault(folder, {})
            if entry in digests:
                files[inner] = digests[entry]
    for folder, files in sorted(assets.items()):
        yield _asset(f"{ASSETS}/{folder}", files)


def _asset(place: str, files: Mapping[str, Digest]) -> Finding:
    match = form.ASSET_FOLDER.fullmatch(place.rpartition("/")[2])
    if match is None or "" in files:
        message = "is not an asset: its name is not sha256-<64 lowercase hex digits>"
        return _integrity("assets", place, "fail", message, _SURPLUS)
    foreign = [name for name in files if not unicodedata.is_normalized("NFC", name)]
    if foreign:
        message = f"holds {foreign[0]!r}, which is not in Unicode's form NFC"
        return _integrity("assets", place, "fail", message, _DAMAGED)
    actual = digest.of_folder(files)
    if actual.hex != match[1]:
        message = f"its content has the digest {actual.hex[:16]}…, not the one in its name"
        return _integrity("assets", place, "fail", message, _DAMAGED)
    return _integrity("assets", place, "pass", "its content matches its name")


def _hash(path: Path) -> Digest | str:
    try:
        _, descriptor = open_regular(path, where=path.name)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            return digest.of_stream(stream, "sha256")
    except (OSError, ModelError) as error:
        return str(getattr(error, "what", error))


_against_lock: Final = partial(Finding, "integrity", "lock")
_CHANGED: Final = "do not ship it: package it again, or restore the file from where it was released"
_EXTRA: Final = "remove it, or package again: nothing else belongs in a package"


def check_against_lock(
    root: Path,
    entries: Sequence[str],
    hashes: Mapping[str, Digest | str],
    lock: Lock,
    where: str,
) -> Iterator[Finding]:
    """Compare every file of a package with a lock.

    Args:
        root: the package.
        entries: all paths in the package, with `/`; an empty folder ends with `/`.
        found: result of `read_hashes`.
        lock: lock of the build that the package was made from.
        where: name of the lock in messages.
    """
    try:
        package = contents.package_settings(lock, where=where)
    except LockError as error:
        yield _against_lock(
            ".", "fail", f"cannot be compared with the lock: {error.reason}", error.remedy
        )
        return
    items = {
        digest: Item(size=(root / name).lstat().st_size, sha256=digest, source=root / name)
        for name, digest in hashes.items()
        if isinstance(digest, Digest)
    }
    lock = max(hosts.views(lock), key=lambda each: _count_available(each, package, items))
    lacking = [
        name
        for name, file in contents.needed(lock, package)
        if Digest("sha256", file.sha256) not in items
    ]
    for name in lacking:
        what = f"differs from {where}" if name in hashes else f"is missing, but {where} lists it"
        yield _against_lock(name, "fail", what, _CHANGED)
    if lacking:
        return
    try:
        expected = contents.derive(lock, package, items).items
    except ModelError as error:
        yield _against_lock(
            ".", "fail", f"cannot be compared with {where}: {error.reason}", _CHANGED
        )
        return
    for name in sorted({*expected, *entries}):
        if name not in expected:
            yield _against_lock(name, "fail", f"does not follow from {where}", _EXTRA)
        elif name not in entries:
            yield _against_lock(name, "fail", f"is missing, but follows from {where}", _CHANGED)
        elif hashes.get(name) != expected[name].sha256:
            yield _other(name, lock, where)
        else:
            yield _against_lock(name, "pass", f"follows from {where}")


def _count_available(lock: Lock, package: LockedPackage, items: Mapping[Digest, Item]) -> int:
    """Count the files of the package that the lock requires."""
    needed = contents.needed(lock, package)
    return sum(Digest("sha256", file.sha256) in items for _, file in needed)


def _other(name: str, lock: Lock, where: str) -> Finding:
    """Make a finding for a file that differs; another version of epctx may write it differently."""
    message, maker = f"is not what follows from {where}", lock.toolchain.get("epctx", "")
    if maker == __version__:
        return _against_lock(name, "fail", message, _CHANGED)
    remedy = f"verify it with epctx {maker}; {_CHANGED}"
    return _against_lock(name, "fail", f"{message}, which epctx {maker}", remedy)


T = TypeVar("T")
_LARGEST: Final = 1 << 26


class Checked(Struct, frozen=True, kw_only=True):
    """Findings about a package, and requests to verify its variants."""

    report: FolderReport
    requests: tuple[VerifyRequest, ...]


def check(folder: Path, label: str, *, lock: Lock | None = None, where: str = "") -> Checked:
    """Check a package. Any fault in its bytes becomes a finding, never an exception.

    Args:
        folder: absolute folder of the package.
        label: name of the package in the report.
        lock: lock of the build that it was made from; None to skip the comparison.
        where: name of the lock in messages.
    """
    checking = _Checking(folder, label)
    findings = tuple(checking.run())
    if lock is not None:
        findings += tuple(checking.against_lock(lock, where))
    requests = checking.requests()
    if any(f.outcome == "fail" and f.policy == "integrity" for f in findings):
        # Do not run models of a package with changed bytes.
        requests = tuple(replace(r, policies=("conformance", "compatibility")) for r in requests)
    return Checked(report=FolderReport(folder=label, findings=findings), requests=requests)


class _Folder(Struct, kw_only=True):
    """Folder of a variant: its models, their data folders, and the claims about them."""

    models: list[str] = field(default_factory=list)
    data: dict[str, Path] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


class _Checking:
    """One check of one package."""

    def __init__(self, root: Path, label: str) -> None:
        self._root = root
        self._label = label
        self._entries = [entry for entry in paths.entries(root) if entry != SIGNATURE]
        self._places = PackagePlaces(root=root, overrides={})
        self._folders: dict[str, _Folder] = {}
        self._used = {MANIFEST, SUMS}
        self._texts: list[str] = []
        self._digests = read_hashes(root, self._entries)

    def run(self) -> Iterator[Finding]:
        """Check the package, and yield every finding."""
        for entry in self._entries:
            if is_link((self._root / entry).lstat()):
                yield fail("paths", entry, "is a link", REBUILD)
        yield from check_hashes(self._root, self._entries, self._digests)
        try:
            package = self._read(MANIFEST, Package)
        except Unresolved as error:
            yield fail("manifest", MANIFEST, str(error), REBUILD)
            return
        other = other_version(package)
        if other is not None:
            yield other
            return
        self._places = PackagePlaces(root=self._root, overrides=package.shared_assets)
        findings = list(self._manifest(package))
        yield from findings
        if not any(finding.outcome == "fail" for finding in findings):
            words = f"{len(package.components)} components, {len(self._folders)} folders of models"
            yield passed("manifest", MANIFEST, f"is as ONNX Runtime reads it: {words}")
        yield from self._closure()

    def requests(self) -> tuple[VerifyRequest, ...]:
        """Requests to verify the variants' folders."""
        return tuple(
            VerifyRequest(
                folder=self._root / name,
                label=f"{self._label}/{name}",
                models=tuple(dict.fromkeys(folder.models)),
                data=folder.data,
                claims=tuple(folder.claims),
                policies=("conformance", "compatibility", "numbers"),
            )
            for name, folder in self._folders.items()
            if folder.models
        )

    def against_lock(self, lock: Lock, where: str) -> Iterator[Finding]:
        """Compare every file with the lock of the build."""
        yield from check_against_lock(self._root, self._entries, self._digests, lock, where)

    def _read(self, path: str, kind: type[T]) -> T:
        """Read a JSON file of the package. Raises Unresolved."""
        reason = paths.missing(self._root, path)
        if reason is not None:
            raise Unresolved(f"cannot be read: {reason}")
        if (self._root / path).stat().st_size > _LARGEST:
            raise Unresolved("is larger than 64 MB")
        try:
            content = (self._root / path).read_bytes()
            self._texts.append(content.decode())
            return codec.decode(content, kind)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            raise Unresolved(f"ONNX Runtime cannot read it: {error}") from error

    def _manifest(self, package: Package) -> Iterator[Finding]:
        if package.layout != "portable":
            message = "has the layout `installed`: its paths may lead anywhere"
            yield unknown(MANIFEST, message, "package it in the portable layout")
        if not package.components:
            yield fail("manifest", MANIFEST, "has no component", REBUILD)
        for uri, path in package.shared_assets.items():
            if not form.ASSET_REFERENCE.fullmatch(uri) or paths.objection(path) is not None:
                message = f"shared_assets: {uri!r} at {path!r} is not an asset inside the package"
                yield fail("paths", MANIFEST, message, REBUILD)
        for name, body in package.components.items():
            yield from self._component(name, body)
        yield from self._genai(package)

    def _component(self, name: str, body: Component | str) -> Iterator[Finding]:
        base = ""
        if isinstance(body, str):
            try:
                path = self._places.component(body)
                self._used.add(path)
                base = path.rpartition("/")[0]
                body = self._read(path, Component)
            except Unresolved as error:
                yield fail("paths", MANIFEST, f"component {name}: {error}", REBUILD)
                return
        earlier: dict[tuple[str | None, str | None, str | None], tuple[str, str]] = {}
        for key, variant in body.variants.items():
            subject = f"{name}/{key}"
            try:
                place = self._places.folder(base, variant.variant_directory or key)
            except Unresolved as error:
                yield fail("paths", subject, str(error), REBUILD)
                continue
            self._folders.setdefault(place, _Folder())
            yield from selectable(subject, variant)
            yield from self._executor(subject, variant, place)
            criteria = (variant.ep, variant.device, variant.compatibility_string)
            first, folder = earlier.setdefault(criteria, (key, place))
            if first != key and folder != place:
                message = f"is never selected: {first} fits wherever it does, and comes first"
                yield unknown(subject, message, "leave one of them out, or give them other EPs")

    def _executor(self, subject: str, variant: Variant, place: str) -> Iterator[Finding]:
        """Check `executor_info.ort` of a variant in the folder `place`."""
        folder = self._folders[place]
        info = variant.executor_info.ort if variant.executor_info is not None else None
        try:
            if isinstance(info, str):
                path = self._places.file(place, info)
                self._used.add(path)
                info = self._read(path, OrtInfo)
            if info is None or info.model_file is None:
                yield from self._without_model(subject, variant, place)
                return
            model = self._places.file(place, info.model_file)
        except Unresolved as error:
            yield fail("paths", subject, str(error), REBUILD)
            return
        for option in form.FORBIDDEN:
            if option in info.session_options:
                message = f"sets {option}: ONNX Runtime opens no package with it"
                yield fail("manifest", subject, message, "remove it")
        for option in info.session_options:
            if option.startswith(form.FILES):
                message = f"sets {option}: with it, a session can read or write any file"
                yield fail("manifest", subject, message, "remove it")
        for option in form.PATHS:
            text = info.session_options.get(option)
            if text is None:
                continue
            try:
                target = self._places.anything(place, text)
            except Unresolved as error:
                yield fail("paths", subject, f"{option}: {error}", REBUILD)
                continue
            if option == form.DATA_FOLDER:
                folder.data[Path(model).name] = self._root / target
        if str(Path(model).parent.as_posix()) == place:
            options = info.session_options
            astray = form.DATA_FOLDER in options and form.CONTEXT_FILE not in options
            self._claim(subject, variant, place, Path(model).name, astray=astray)
        else:
            yield unknown(
                subject, f"its model {model} is outside its folder", "check the model there"
            )

    def _without_model(self, subject: str, variant: Variant, place: str) -> Iterator[Finding]:
        """Check a variant without `model_file`; genai's configuration names its models."""
        onnx_files = [n for n in self._inside(place) if n.endswith(".onnx")]
        compiled = [name for name in onnx_files if name.endswith(CONTEXT_SUFFIX)]
        names = compiled or onnx_files
        if GENAI_CONFIG not in self._inside(place):
            message = (
                "has no executor_info.ort.model_file: ONNX Runtime cannot create a session from it"
            )
            yield fail("manifest", subject, message, REBUILD)
        for name in names:
            self._claim(subject, variant, place, name)

    def _claim(
        self, subject: str, variant: Variant, place: str, model: str, *, astray: bool = False
    ) -> None:
        folder = self._folders[place]
        folder.models.append(model)
        claim = Claim(
            variant=subject,
            model=model,
            ep=variant.ep or "",
            compatibility=variant.compatibility_string,
            astray=astray,
        )
        folder.claims.append(claim)

    def _inside(self, place: str) -> list[str]:
        """Names of the files directly in a folder of the package."""
        prefix = f"{place}/" if place else ""
        inner = (e.removeprefix(prefix) for e in self._entries if e.startswith(prefix))
        return [name for name in inner if "/" not in name]

    def _genai(self, package: Package) -> Iterator[Finding]:
        """Check the demands of onnxruntime-genai if a variant is made for it."""
        configured = [name for name in self._folders if GENAI_CONFIG in self._inside(name)]
        if not configured:
            return
        faults = []
        if len(package.components) != 1:
            faults.append(f"has {len(package.components)} components: genai reads one")
        lacking = [name for name in self._folders if name not in configured]
        faults += [f"{name} has no {GENAI_CONFIG}" for name in lacking]
        for message in faults:
            yield fail("genai", MANIFEST, message, REBUILD)
        if not faults:
            yield passed("genai", MANIFEST, "is as onnxruntime-genai reads it")

    def _closure(self) -> Iterator[Finding]:
        """Find files that belong neither to a variant nor to an asset in use."""
        for name in self._folders:
            for file in self._inside(name):
                if file.endswith(".json") and paths.missing(self._root, f"{name}/{file}") is None:
                    with (self._root / name / file).open("rb") as stream:
                        self._texts.append(stream.read(_LARGEST).decode(errors="replace"))
        unreferenced = []
        for entry in self._entries:
            parts = entry.split("/")
            asset = (
                form.ASSET_FOLDER.fullmatch(parts[1]) if parts[0] == ASSETS and parts[1:] else None
            )
            in_use = asset is not None and any(f"sha256:{asset[1]}" in t for t in self._texts)
            in_variant = any(not name or entry.startswith(f"{name}/") for name in self._folders)
            if not (in_use or in_variant or entry in self._used):
                unreferenced.append(entry)
        for entry in unreferenced:
            message = "nothing in the package refers to it"
            yield fail("unreferenced", entry, message, "remove it")
        if not unreferenced:
            yield passed(
                "unreferenced", ".", "every file belongs to a variant or to an asset in use"
            )
