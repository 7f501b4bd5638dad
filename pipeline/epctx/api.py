"""Every verb of the command line as a function; the results are the report's types."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from epctx import lockfile as locks
from epctx.cache.store import Shared
from epctx.commands import build as command
from epctx.commands import explain as pages
from epctx.commands.bisect.result import Bisection
from epctx.commands.build import On
from epctx.commands.diff import page as comparison_page
from epctx.commands.diff.compare import Comparison, compare, side
from epctx.commands.doctor import command as doctor_command
from epctx.commands.doctor.diagnosis import Diagnosis
from epctx.commands.explain import Explanation
from epctx.commands.import_ import command as import_command
from epctx.commands.init import command as init_command
from epctx.commands.init.size_options import SizeOptions
from epctx.commands.inspect.inspection import Inspection
from epctx.commands.package import command as package_command
from epctx.commands.package.report import PackageReport
from epctx.commands.plan import command as plan_command
from epctx.commands.plan.command import PlanReport
from epctx.commands.pull import command as pull_command
from epctx.commands.pull.command import PullReport
from epctx.commands.report import command as report_command
from epctx.commands.report.device import section
from epctx.commands.reproduce import command as reproduce_command
from epctx.commands.reproduce.result import Reproduction, variations_of
from epctx.commands.validate import command as validate_command
from epctx.commands.verify import folders as group_folders
from epctx.engine import ranges as calibrated
from epctx.engine.events import Listener
from epctx.engine.options import BuildOptions, ReleaseOptions
from epctx.engine.output import place
from epctx.engine.report import BuildReport
from epctx.errors import UsageError, Violation, require_list
from epctx.machines.address import Tls
from epctx.manifest import Requirement
from epctx.oci import reference as references
from epctx.parsing import load
from epctx.parsing.schema import apply as schemas
from epctx.signing.keys import Signer, Trusted
from epctx.verification import device_results as results_of
from epctx.verification.findings import VerifyReport

if TYPE_CHECKING:
    from epctx.commands.kit.command import KitReport
    from epctx.commands.push.command import PushReport
    from epctx.commands.sign import SignReport


def plan(
    manifest: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = "dist",
    only: Sequence[str] = (),
    verify: bool = True,
    allow_outside: bool = False,
    remote_cache: str | None = None,
    trust: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
) -> PlanReport:
    """What a build of `manifest` with these arguments would do, and why; what it would fetch.

    Raises:
        ManifestError: the manifest breaks the schema or a rule; an EP refuses its options.
        UsageError: `only` names what the manifest does not have.
        ModelError: a source is missing.
        ProviderUnavailable: an EP is not installed.
    """
    require_list("only", only)
    return plan_command.plan(
        Path(manifest),
        out=Path(out),
        only=only,
        numbers=verify,
        allow_outside=allow_outside,
        shared=_shared(remote_cache, trust),
        listener=listener or (lambda event: None),
    )


def build(
    manifest: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = "dist",
    only: Sequence[str] = (),
    jobs: int | None = None,
    keep_going: bool = False,
    verify: bool = True,
    cache: bool = True,
    locked: bool = False,
    from_cache: bool = False,
    reports: str | os.PathLike[str] | None = None,
    recalibrate: bool = False,
    golden: bool = False,
    archive: bool = False,
    attest: bool = False,
    builder_id: str | None = None,
    sign: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    chain: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    remote_cache: str | None = None,
    trust: str | os.PathLike[str] | None = None,
    on: str | None = None,
    tls: Tls | None = None,
    listener: Listener | None = None,
) -> BuildReport:
    """Build what `manifest` declares; outputs are in `out`, the report beside them.

    Args:
        manifest: its path.
        out: the folder that gets `<name>/` and `<name>.build.json`.
        only: `GROUP` or `GROUP@TARGET`; the whole manifest if empty.
        jobs: session groups at a time; None: one for each core.
        keep_going: build and publish the other groups when one fails.
        verify: run the models and compare numbers; the checks that need no run are always made.
        cache: use what was built before, and remember what is built now.
        locked: fail if anything would differ from the lock beside the manifest; never write it.
        from_cache: build nothing: publish what others have put into the cache.
        reports: with that, a folder with the build reports of those who built: their EPs count.
        recalibrate: run models that are quantized again, to find their ranges anew.
        golden: put inputs and expected outputs into each group's folder.
        archive: write `<name>.tar` with all that was published.
        attest: write `<name>.intoto.json`, an in-toto attestation with SLSA provenance.
        builder_id: who builds, a URI, for the attestation; None: as the CI system's variables say.
        sign: a private key in PEM, which signs `<name>/` in `<name>/model.sig`, as `sign` does.
        cert, chain: as in `sign`.
        allow_outside: paths may lead out of the manifest's folder.
        remote_cache: URL of a shared cache; empty: none; None: as `EPCTX_REMOTE_CACHE` says.
        trust: a file with the public keys of those whose signatures count there; None: as
            `EPCTX_CACHE_TRUST` says.
        on: the machines that carry it out, `dask://HOST:PORT` or `dask://local?workers=N`; None:
            this one, without dask.
        tls: the certificates for them, or that none are needed.
        listener: hears of the build's events, from several threads, one at a time.

    Raises:
        EpctxError: the first failure in manifest order; the report on disk has all of them.
    """
    require_list("only", only)
    done = command.run(
        Path(manifest),
        BuildOptions(
            out=Path(out),
            jobs=jobs or 0,
            keep_going=keep_going,
            numbers=verify,
            locked=locked,
            from_cache=from_cache,
            reports=None if reports is None else Path(reports),
            recalibrate=recalibrate,
            release=ReleaseOptions(
                golden=golden,
                archive=archive,
                attest=attest,
                signer=Signer.from_options(sign, cert, chain),
                builder=builder_id,
            ),
        ),
        listener=listener or (lambda event: None),
        only=only,
        cached=cache,
        shared=_shared(remote_cache, trust),
        allow_outside=allow_outside,
        on=_on(on, tls),
    )
    if done.failure is not None:
        raise done.failure
    return done.report


def _on(url: str | None, tls: Tls | None) -> On | None:
    if url is None:
        return None

    return On(url=url, tls=tls or Tls())


def package(
    manifest: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] = "dist",
    jobs: int | None = None,
    verify: bool = True,
    cache: bool = True,
    locked: bool = False,
    attest: bool = False,
    builder: str | None = None,
    sign: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    chain: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    remote_cache: str | None = None,
    trust: str | os.PathLike[str] | None = None,
    listener: Listener | None = None,
) -> PackageReport:
    """Build what `manifest` declares, all of it, and write `<out>/<name>.ortpackage/` of it.

    An ONNX Runtime model package, schema major 1, portable: a component for each model, a variant
    for each target. The arguments are those of `build`; the package is what is signed.

    Raises:
        EpctxError: the build failed, and then no package was written; a file of `package` is gone;
            the disk refuses.
    """
    done, failure = package_command.run(
        Path(manifest),
        BuildOptions(
            out=Path(out),
            jobs=jobs or 0,
            numbers=verify,
            locked=locked,
            release=ReleaseOptions(attest=attest, packaged=True, builder=builder),
        ),
        cached=cache,
        shared=_shared(remote_cache, trust),
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
        signer=Signer.from_options(sign, cert, chain),
    )
    if failure is not None:
        raise failure
    assert done.package is not None
    return done.package


def sign(
    folder: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str],
    cert: str | os.PathLike[str] | None = None,
    chain: str | os.PathLike[str] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> SignReport:
    """Sign every file of a folder by OpenSSF Model Signing, in `model.sig` in the folder.

    Args:
        folder: a package, `dist/<name>`, any folder that is shipped.
        key: the private key: ECDSA on P-256, P-384 or P-521, in PEM, without a password.
        cert: its certificate; None: whoever verifies has the public key.
        chain: the certificates of its issuers, the nearest first.
        waiting: called when a build holds what is to be signed.

    Raises:
        UsageError: a file is not what it must be, the folder has nothing or a link in it, or
            `cryptography` is not installed.
        VerificationError: a file is not what a `SHA256SUMS` beside it says.
    """
    from epctx.commands import sign as command

    signer = Signer.from_options(key, cert, chain)
    assert signer is not None
    return command.run(Path(folder), signer, waiting)


def verify(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    manifest: str | os.PathLike[str] | None = None,
    lock: str | os.PathLike[str] | None = None,
    trusted_key: Sequence[str | os.PathLike[str]] = (),
    trusted_ca: Sequence[str | os.PathLike[str]] = (),
    golden: bool = False,
    device_results: str | os.PathLike[str] | None = None,
    strict: bool = False,
    require: Sequence[Requirement] = (),
    allow_outside: bool = False,
    insecure: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Verify what was built: group folders and packages at or below `paths`, models in them.

    Models are read and run in worker processes: one that crashes an EP's SDK is a finding. A build
    that publishes there is waited for, and one that comes later waits.

    Args:
        paths: folders, EPContext models, `oci://` references; with a lock, archives and
            attestations.
        manifest: what they were built from: its options and prefixes are checked, and numbers
            against its source models.
        lock: the lock that a release holds to: every byte must follow from it.
        trusted_key: public keys in PEM: what is verified must be signed by one of them, or by a key
            that one of `trusted_ca` certifies; nothing else of what is not is looked at.
        trusted_ca: files of certificate authorities' certificates in PEM.
        golden: run the golden inputs in the folders, and compare with the golden outputs.
        device_results: what `check_device.py` of a kit wrote on a device, its outputs beside it:
            they are compared with the golden outputs in the folders.
        strict: what cannot be checked counts as a failure.
        require: `numbers`: models whose numbers were not run count as failures.
        allow_outside: the manifest's paths may lead out of its folder.
        insecure: registries speak plain HTTP.
        waiting: called when a build holds what is to be verified.

    Raises:
        UsageError: there is nothing to verify, a folder is of no group of manifest or lock, or the
            results of the device cannot be read.
        LockError: the lock cannot be read.
        ManifestError: the manifest breaks the schema or a rule, or its inputs do not fit.
    """
    from epctx.commands.package import checking
    from epctx.commands.verify import command, registries, releases, signatures

    results = None if device_results is None else Path(device_results).absolute()
    if results is not None:
        results_of.read(results)
    if set(require) - {"numbers"}:
        raise UsageError(
            f"require is {require!r}", remedy='write require=["numbers"], or leave it out'
        )
    require_list("trusted_key", trusted_key)
    require_list("trusted_ca", trusted_ca)
    trusted = Trusted.load([Path(p) for p in trusted_key], [Path(p) for p in trusted_ca])
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    places = [t if references.is_reference(t := os.fspath(each)) else Path(t) for each in given]
    locked = None if lock is None else locks.read(Path(lock))
    name = None if locked is None else locked.name
    with (
        registries.fetched(places, insecure=insecure, name=name) as fetched,
        place.undisturbed(fetched.paths, waiting),
    ):
        named = list(fetched.paths)
        where = "" if lock is None else f"the lock {Path(lock).name}"
        files = releases.named(named)
        survey = group_folders.survey([each for each in named if each not in files])
        requests = list(survey.requests)
        beside = [p for p in survey.rest if locked is not None and releases.is_released(p, locked)]
        rest = [*files, *sorted({*survey.rest} - {*beside, *fetched.attached})]
        if trusted is not None:  # a page may hold scripts
            rest += [path for path in survey.byproducts if path.suffix == ".html"]
        covered = {request.folder: request.label for request in requests}
        kits = {each.resolve(): group_folders.words(each) for each in survey.kits}
        packed = {each.resolve(): group_folders.words(each) for each in survey.packages}
        judged = signatures.judge(named, {**covered, **kits, **packed}, rest, trusted)
        packages = [
            *(
                checking.check(folder, label, lock=locked, where=where)
                for folder, label in packed.items()
                if judged.admits(folder)
            ),
            *(releases.kit(*each) for each in kits.items() if judged.admits(each[0])),
        ]
        inside = [request for package in packages for request in package.requests]
        missing: list[group_folders.Missing] = []
        ranges = None
        if manifest is not None:
            parsed = load.load(Path(manifest), allow_outside=allow_outside)
            ranges = calibrated.of(parsed)
            everything = [*requests, *inside]
            everything, missing = group_folders.match(everything, parsed, named)
            requests, inside = everything[: len(requests)], everything[len(requests) :]
        released = []
        if locked is not None:
            requests, unlocked, astray = group_folders.match_lock(
                requests, locked, named, where=where.removeprefix("the lock ")
            )
            told = {each.folder for each in missing}
            missing += [each for each in unlocked if each.folder not in told]
            others = {*judged.rest} - {*files, *survey.byproducts}
            strays = (*astray, *survey.kits, *others)
            released += group_folders.reported(sorted(strays), releases.stray(where))
        for each in files:
            if locked is None or judged.admits(each.resolve()):
                released.append(releases.check(each, locked, where))
        released += [releases.check(each, locked, where) for each in beside]
        released += fetched.findings(locked, where)
        done = command.run(
            [
                *(
                    replace(each, golden=golden, device=results)
                    for each in requests
                    if judged.admits(each.folder)
                ),
                *inside,
            ],
            missing,
            others=[*judged.reports, *released, *(package.report for package in packages)],
            ranges=ranges,
            golden=golden or results is not None,
            strict=strict,
            require=require,
        )
        known = judged.rest if locked is None and trusted is None else ()
        uncovered = (
            *group_folders.reported(sorted(known), releases.uncovered),
            *group_folders.reported(sorted({*survey.byproducts} - {*rest}), releases.byproduct),
        )
        return fetched.told(replace(done, folders=(*done.folders, *uncovered)))


def kit(
    source: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    golden: str | os.PathLike[str] | None = None,
    expect_driver: str | None = None,
) -> KitReport:
    """Write what a device without epctx needs to check and time what was built.

    The models, their golden inputs and outputs, and `check_device.py`, which needs Python, numpy,
    onnxruntime and the EPs' packages. What is in `source` is checked before, and not changed.

    Args:
        source: a folder of built groups, with golden files, or a package.
        out: the kit's folder, where nothing or a kit may be; None: `<source>.kit` beside the build.
        golden: the folder of a build with golden files, for a package of it.
        expect_driver: the version that the device's driver must have.

    Raises:
        UsageError: there is nothing to pack, golden files are missing, or something else lies where
            the kit is to go.
        VerificationError: what was built is not as it was built.
        StorageError: the disk refuses.
    """
    from epctx.commands.kit import command

    return command.write(
        Path(source),
        None if out is None else Path(out),
        golden=None if golden is None else Path(golden),
        expect_driver=expect_driver,
    )


def reproduce(
    manifest: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    vary: Sequence[str] | None = None,
    find_cause: bool = False,
    jobs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    listener: Listener | None = None,
) -> Reproduction:
    """Build `manifest` twice without cache, in circumstances that differ, and compare all files.

    Neither its outputs nor its lock are touched: both builds are made of copies, in a folder that
    is removed. Models are not run. Other arguments are those of `build`.

    Args:
        vary: names of `epctx.commands.reproduce.result.VARIATIONS`; None: all.
        find_cause: if something differs, build once more for each variation.
        jobs: session groups at a time in the first build; None: one for each core.
        out: a new folder that keeps both builds, `first` and `second`.

    Raises:
        UsageError: `out` has something in it; `only` or `vary` names what there is not.
        EpctxError: a build failed; its `where` says which one.
    """
    require_list("only", only)
    require_list("vary", vary)
    return reproduce_command.reproduce(
        Path(manifest),
        only=only,
        jobs=jobs or os.cpu_count() or 1,
        vary=variations_of(vary),
        find_cause=find_cause,
        out=None if out is None else Path(out),
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
    )


def bisect(
    manifest: str | os.PathLike[str],
    group: str,
    model: str,
    *,
    cuts: int = 8,
    budget: float | None = None,
    out: str | os.PathLike[str] = "dist",
    allow_outside: bool = False,
    listener: Listener | None = None,
) -> tuple[Bisection, Path]:
    """The first node of a compiled model whose numbers are wrong, why, and what repairs the build.

    Args:
        group: `GROUP` or `GROUP@TARGET`.
        cuts: nodes whose values are read at a time.
        budget: in seconds, after which no further build begins.
        out: the folder that gets what was found, as JSON and as a page.

    Returns:
        What was found, and the page.

    Raises:
        UsageError: there is no such group or model; `epctx[report]` is not installed.
        VerificationError: this host cannot run what is compiled.
        EpctxError: a build failed before there were numbers.
    """
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.bisect import command, page

    found = command.bisect(
        Path(manifest),
        group,
        model,
        cuts=cuts,
        budget=budget,
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
    )
    return found, page.write(found, Path(out))


def inspect(file: str | os.PathLike[str]) -> Inspection:
    """What is in a model or a context binary, whoever made it.

    Raises:
        UsageError: there is no such file.
        ModelError: it is neither a model nor a binary that an installed EP knows.
    """
    from epctx.commands.inspect import command

    return command.inspect(Path(file))


def diff(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    html: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Compare two builds, two locks, or a build and a lock; causes come before effects.

    Args:
        old: a folder of outputs (`dist`, `dist/<name>`), a `.build.json`, or a lock.
        new: likewise.
        html: file for the comparison of two builds as one HTML page that needs no network; None
            for no page.

    Raises:
        UsageError: one of them cannot be compared; `html` is given and one of them has no build
            report, or `epctx[report]` is not installed.
        LockError: a lock cannot be read.
        StorageError: the page cannot be written.
    """
    sides = side(Path(old)), side(Path(new))
    comparison = compare(*sides)
    if html is not None:
        comparison_page.write(*sides, comparison, Path(html))
    return comparison


def validate(
    manifest: str | os.PathLike[str],
    *,
    models: bool = True,
    allow_outside: bool = False,
    warned: Callable[[Violation], None] = lambda warning: None,
) -> tuple[Violation, ...]:
    """Everything for which a build of a manifest would fail, as far as no EP need be asked; empty
    if nothing is.

    The schema and the rules; of a manifest that breaks neither, what its EPs say of their options,
    and the headers of its models: no weight is read.

    Args:
        manifest: its path.
        models: read the models; False: they need not be there.
        allow_outside: paths may lead out of the manifest's folder.
        warned: called with each thing that a build takes and nobody may have meant.

    Raises:
        ManifestError: the file cannot be read.
        ProviderUnavailable: an installed provider's option schema cannot be used.
    """
    found = validate_command.validate(Path(manifest), models=models, allow_outside=allow_outside)
    for warning in found.warnings:
        warned(warning)
    return found.violations


def init(
    models: Sequence[str | os.PathLike[str]],
    manifest: str | os.PathLike[str] | None = None,
    *,
    provider: str = "ReferenceExecutionProvider",
    options: Mapping[str, str] | None = None,
    share: bool = False,
    quantize: bool = False,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Sequence[str | os.PathLike[str]] = (),
    schema: bool = False,
    force: bool = False,
) -> Path:
    """Write a starter manifest for `models` and return its path; it builds as it is.

    Args:
        models: `.onnx` files, or one folder of onnxruntime-genai. A model with dynamic shapes is
            run on ONNX Runtime's CPU EP, in a process of its own, at the sizes that are proposed.
        manifest: the file to write; None: `epctx.yaml` in the current folder, if it holds all
            models, else in the folder nearest to them that does.
        provider: ONNX Runtime's name of the EP.
        options: of the provider.
        share: the models share one EP context, in the order given.
        quantize: the models, of float32, are made integer ones before they are compiled.
        dimensions: sizes of dimensions that models leave open, in elements, by name.
        shapes: whole shapes of inputs, by name.
        inputs: files of inputs (`.npz`, `.npy`, `.pb`): sizes are theirs, and they are verified on.
        schema: write `epctx.manifest.schema.json` beside it, too, by which editors complete it and
            which the manifest names in a comment.
        force: overwrite a manifest that is there.

    Raises:
        ModelError: a model cannot be read.
        ManifestError: the provider or an option is not known, or a value is wrong.
        UsageError: the manifest is there already, a model lies outside of its folder, or sharing
            or quantizing makes no sense.
        StorageError: the manifest cannot be written.
    """
    require_list("models", models)
    return init_command.write(
        [Path(model) for model in models],
        None if manifest is None else Path(manifest),
        provider=provider,
        options=options,
        share=share,
        quantize=quantize,
        size_options=SizeOptions(
            dimensions=dimensions or {},
            shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
            files=tuple(map(Path, inputs)),
        ),
        schema=schema,
        force=force,
    )


def import_ep_weight_sharing(
    line: str, manifest: str | os.PathLike[str] | None = None, *, force: bool = False
) -> Path:
    """Write the manifest that builds what a command line of `ep_weight_sharing_ctx_gen` builds.

    Args:
        line: of ONNX Runtime's tool, with its name in front or without; its paths are from the
            current folder.
        manifest: the file to write; None: as for `init`.
        force: overwrite a manifest that is there.

    Raises:
        UsageError: the line is none of the tool's, a model is not there or lies outside of the
            manifest's folder, or the manifest is there already.
        ManifestError: an option or a session entry is not known, or a value is wrong.
        StorageError: the manifest cannot be written.
    """
    return import_command.write(line, None if manifest is None else Path(manifest), force=force)


def doctor() -> Diagnosis:
    """What is installed, and what this host can build and run; its `problems` are to be repaired.

    EPs' libraries are loaded in processes of their own: one that crashes is a problem. Nothing is
    changed. Takes a few seconds.
    """
    return doctor_command.diagnose()


def push(
    package: str | os.PathLike[str],
    reference: str,
    *,
    insecure: bool = False,
    mount: str | None = None,
    listener: Listener | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> PushReport:
    """Push a package to a registry, with the signature in it and the attestation beside it.

    Args:
        package: a model package, or a folder of built groups.
        reference: `oci://HOST/REPO:TAG`.
        insecure: the registry speaks plain HTTP.
        mount: another repository of the registry, which may have some of the files.
        listener: hears which files move.
        waiting: called when a build holds the package.

    Raises:
        UsageError: the reference is none, or there is no package.
        VerificationError: the package is not what its SHA256SUMS say; nothing was pushed.
        StorageError: the registry does not take it.
    """
    from epctx.commands.push import command

    return command.run(
        Path(package),
        references.parse(reference),
        insecure=insecure,
        mount=mount,
        listener=listener or (lambda event: None),
        waiting=waiting,
    )


def pull(
    reference: str,
    folder: str | os.PathLike[str],
    *,
    insecure: bool = False,
    listener: Listener | None = None,
) -> PullReport:
    """Pull a package from a registry into a folder, whole or not at all.

    Args:
        reference: `oci://HOST/REPO:TAG`, or with `@sha256:…`, which goes before the tag.
        folder: it must not be there, or be empty, or be that package already.
        insecure: the registry speaks plain HTTP.
        listener: hears which files move.

    Raises:
        UsageError: the reference is none, or something else is in the folder.
        VerificationError: what the registry has is not what it says.
        StorageError: the registry does not give it, or the disk refuses.
    """
    return pull_command.run(
        references.parse(reference),
        Path(folder),
        insecure=insecure,
        listener=listener or (lambda event: None),
    )


def report(
    source: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    dist: str | os.PathLike[str] = "dist",
    device_results: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a build report as one HTML page that needs no network, and return its path.

    Nothing is built. Descriptions inside context binaries are read if these still lie beside the
    report. `diff(old, new, html=FILE)` writes the page of two builds.

    Args:
        source: a manifest, a build report (`.json`), or the folder of the outputs of one build.
        out: the page; None for `<name>.report.html` beside the report.
        dist: the folder with a manifest's report.
        device_results: file that `check_device.py` of a kit wrote; it is judged as by `verify`.

    Raises:
        UsageError: there is no report, or more than one; it is of another version; the device's
            results cannot be read.
        ManifestError: the manifest breaks the schema or a rule.
        StorageError: the page cannot be written.
    """
    path = _report_of(Path(source), Path(dist))
    page = Path(out) if out is not None else report_command.page_of(path)
    on_device = None
    if device_results is not None:
        built = path.parent / report_command.read(path).name
        judged = verify(built, device_results=device_results)
        on_device = section(results_of.read(Path(device_results)), judged)
    report_command.write(path, page, on_device)
    return page


def _shared(url: str | None, trust: str | os.PathLike[str] | None) -> Shared:
    """What is said of the shared cache."""
    return Shared(url=url, trust=None if trust is None else Path(trust))


def _report_of(source: Path, dist: Path) -> Path:
    """The build report of a manifest, or the one that is named."""
    if source.is_dir():
        return report_command.of_folder(source)
    if source.suffix == ".json":
        return source
    return report_command.of_manifest(load.load(source, allow_outside=True).name, dist, source)


def explain(code: str) -> Explanation:
    """What the error of a code means, as errors have it: cause, example, remedy.

    Raises:
        UsageError: there is no such code.
    """
    return pages.explain(code)


def schema(name: str = "manifest") -> str:
    """A JSON Schema as text: `manifest`, `report`, `lock` or `providers/<EP>`.

    Raises:
        UsageError: there is no schema of this name.
        ProviderUnavailable: an installed provider's schema cannot be read.
    """
    return schemas.text(name)
