"""Checks of a package that ONNX Runtime's reader does not make (1.31.1).

It opens packages whose files were changed, whose assets are not what their names say, and whose
variants it can never select. What is in the variants' models is checked as in any folder of models
(`requests`), by a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx.commands.package import against_lock, assets, form, hashes
from epctx.commands.package.form import ASSETS, MANIFEST, Component, OrtInfo, Package, Variant
from epctx.commands.package.links import PackagePlaces, Unresolved
from epctx.commands.package.verdicts import (
    REBUILD,
    fail,
    other_version,
    passed,
    selectable,
    unknown,
)
from epctx.files import paths
from epctx.files.listing import is_link
from epctx.files.outputs import CONTEXT_SUFFIX, SIGNATURE, SUMS
from epctx.lockfile.types import Lock
from epctx.manifest import GENAI_CONFIG
from epctx.verification.findings import Finding, FolderReport
from epctx.verification.request import Claim, VerifyRequest

T = TypeVar("T")
_LARGEST: Final = 1 << 26


class Checked(Struct, frozen=True, kw_only=True):
    """What was found about a package, and what is to be verified of its variants."""

    report: FolderReport
    requests: tuple[VerifyRequest, ...]


def check(folder: Path, label: str, *, lock: Lock | None = None, where: str = "") -> Checked:
    """Check a package. What is wrong with it is a finding, whatever the bytes in it.

    Args:
        folder: its folder, absolute.
        label: how the report calls it.
        lock: of the build that it was made of; None: it is not held to it.
        where: the lock in messages.
    """
    checking = _Checking(folder, label)
    findings = tuple(checking.run())
    if lock is not None:
        findings += tuple(checking.against_lock(lock, where))
    requests = checking.requests()
    if any(f.outcome == "fail" and f.policy == "integrity" for f in findings):
        # Nothing whose bytes are not those that were packaged is run.
        requests = tuple(replace(r, policies=("conformance", "compatibility")) for r in requests)
    return Checked(report=FolderReport(folder=label, findings=findings), requests=requests)


class _Folder(Struct, kw_only=True):
    """A variant's folder: the models in it, where their data is, what is claimed of them."""

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
        self._digests = hashes.read(root, self._entries)

    def run(self) -> Iterator[Finding]:
        """Every finding."""
        for entry in self._entries:
            if is_link((self._root / entry).lstat()):
                yield fail("paths", entry, "is a link", REBUILD)
        yield from hashes.check(self._root, self._entries, self._digests)
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
        found = list(self._manifest(package))
        yield from found
        if not any(finding.outcome == "fail" for finding in found):
            words = f"{len(package.components)} components, {len(self._folders)} folders of models"
            yield passed("manifest", MANIFEST, f"is as ONNX Runtime reads it: {words}")
        yield from self._closure()

    def requests(self) -> tuple[VerifyRequest, ...]:
        """What is to be verified of the variants' folders."""
        return tuple(
            VerifyRequest(
                folder=self._root / name,
                label=f"{self._label}/{name}",
                models=tuple(dict.fromkeys(held.models)),
                data=held.data,
                claims=tuple(held.claims),
                policies=("conformance", "compatibility", "numbers"),
            )
            for name, held in self._folders.items()
            if held.models
        )

    def against_lock(self, lock: Lock, where: str) -> Iterator[Finding]:
        """Every file against the lock of the build."""
        yield from against_lock.check(self._root, self._entries, self._digests, lock, where)

    def _read(self, path: str, kind: type[T]) -> T:
        """A JSON file of the package. Raises Unresolved."""
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
            raise Unresolved(f"is not what ONNX Runtime reads: {error}") from error

    def _manifest(self, package: Package) -> Iterator[Finding]:
        if package.layout != "portable":
            message = "is of layout installed: its paths may lead anywhere"
            yield unknown(MANIFEST, message, "package it in the portable layout")
        if not package.components:
            yield fail("manifest", MANIFEST, "has no component", REBUILD)
        for uri, path in package.shared_assets.items():
            if not assets.REFERENCE.fullmatch(uri) or paths.objection(path) is not None:
                message = f"shared_assets: {uri!r} at {path!r} is no asset inside the package"
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
                yield fail("paths", MANIFEST, f"component {name}: {error}", "")
                return
        seen: dict[tuple[str | None, str | None, str | None], tuple[str, str]] = {}
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
            same = (variant.ep, variant.device, variant.compatibility_string)
            first, folder = seen.setdefault(same, (key, place))
            if first != key and folder != place:
                message = f"is never selected: {first} fits wherever it does, and comes first"
                yield unknown(subject, message, "leave one of them out, or give them other EPs")

    def _executor(self, subject: str, variant: Variant, place: str) -> Iterator[Finding]:
        """`executor_info.ort` of a variant, whose folder is `place`."""
        held = self._folders[place]
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
                message = f"sets {option}, with which ONNX Runtime opens no package"
                yield fail("manifest", subject, message, "remove it")
        for option in info.session_options:
            if option.startswith(form.FILES):
                message = f"sets {option}, with which a session reads or writes files anywhere"
                yield fail("manifest", subject, message, "remove it")
        for option in form.PATHS:
            text = info.session_options.get(option)
            if text is None:
                continue
            try:
                found = self._places.anything(place, text)
            except Unresolved as error:
                yield fail("paths", subject, f"{option}: {error}", REBUILD)
                continue
            if option == form.DATA_FOLDER:
                held.data[Path(model).name] = self._root / found
        if str(Path(model).parent.as_posix()) == place:
            options = info.session_options
            astray = form.DATA_FOLDER in options and form.CONTEXT_FILE not in options
            self._claim(subject, variant, place, Path(model).name, astray=astray)
        else:
            yield unknown(subject, f"its model {model} is outside its folder", "look at it there")

    def _without_model(self, subject: str, variant: Variant, place: str) -> Iterator[Finding]:
        """A variant of genai's: its configuration names the models, others of its own, too."""
        held_models = [n for n in self._inside(place) if n.endswith(".onnx")]
        built = [name for name in held_models if name.endswith(CONTEXT_SUFFIX)]
        names = built or held_models
        if GENAI_CONFIG not in self._inside(place):
            message = "has no executor_info.ort.model_file: no session can be made of it"
            yield fail("manifest", subject, message, REBUILD)
        for name in names:
            self._claim(subject, variant, place, name)

    def _claim(
        self, subject: str, variant: Variant, place: str, model: str, *, astray: bool = False
    ) -> None:
        held = self._folders[place]
        held.models.append(model)
        claim = Claim(
            variant=subject,
            model=model,
            ep=variant.ep or "",
            compatibility=variant.compatibility_string,
            astray=astray,
        )
        held.claims.append(claim)

    def _inside(self, place: str) -> list[str]:
        """The files directly in a folder of the package."""
        prefix = f"{place}/" if place else ""
        inner = (e.removeprefix(prefix) for e in self._entries if e.startswith(prefix))
        return [name for name in inner if "/" not in name]

    def _genai(self, package: Package) -> Iterator[Finding]:
        """What onnxruntime-genai asks of a package, where one variant is for it."""
        having = [name for name in self._folders if GENAI_CONFIG in self._inside(name)]
        if not having:
            return
        found = []
        if len(package.components) != 1:
            found.append(f"has {len(package.components)} components: genai reads one")
        lacking = [name for name in self._folders if name not in having]
        found += [f"{name} has no {GENAI_CONFIG}" for name in lacking]
        for message in found:
            yield fail("genai", MANIFEST, message, REBUILD)
        if not found:
            yield passed("genai", MANIFEST, "is as onnxruntime-genai reads it")

    def _closure(self) -> Iterator[Finding]:
        """Nothing is left over: each file is a variant's, or of an asset that something names."""
        for name in self._folders:
            for file in self._inside(name):
                if file.endswith(".json") and paths.missing(self._root, f"{name}/{file}") is None:
                    with (self._root / name / file).open("rb") as stream:
                        self._texts.append(stream.read(_LARGEST).decode(errors="replace"))
        left = []
        for entry in self._entries:
            parts = entry.split("/")
            asset = assets.FOLDER.fullmatch(parts[1]) if parts[0] == ASSETS and parts[1:] else None
            named = asset is not None and any(f"sha256:{asset[1]}" in t for t in self._texts)
            held = any(not name or entry.startswith(f"{name}/") for name in self._folders)
            if not (named or held or entry in self._used):
                left.append(entry)
        for entry in left:
            message = "nothing in the package refers to it"
            yield fail("unreferenced", entry, message, "remove it")
        if not left:
            yield passed("unreferenced", ".", "every file is of a variant, or of an asset in use")
