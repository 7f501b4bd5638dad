"""The commands of the command line as functions; results are the types of `--format json`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec.structs import replace

from epctx import lockfile as locks
from epctx.arguments import checked
from epctx.cache.store import Shared
from epctx.commands import build as command
from epctx.commands import environment
from epctx.commands import explain as pages
from epctx.commands import import_ as import_command
from epctx.commands import plan as plan_command
from epctx.commands import pull as pull_command
from epctx.commands.bisect.result import Bisection
from epctx.commands.build import On
from epctx.commands.diff import page as comparison_page
from epctx.commands.diff.compare import Comparison, compare, side
from epctx.commands.doctor import command as doctor_command
from epctx.commands.doctor.probe import Diagnosis
from epctx.commands.environment import Variable
from epctx.commands.explain import Explanation
from epctx.commands.init import command as init_command
from epctx.commands.init import options as choice
from epctx.commands.init.options import SizeOptions
from epctx.commands.inspect.inspection import Inspection
from epctx.commands.options import (
    DOCUMENT,
    EITHER,
    FOLDER,
    MODELS,
    NEW_FOLDER,
    OUTPUTS,
    REREAD,
    STARTER,
    AnyPath,
    BuilderId,
    CacheUrl,
    Existing,
    Groups,
    Jobs,
    Keys,
    Manifest,
    NewManifest,
    Option,
    Outputs,
    Pem,
    Written,
    located,
    variables,
)
from epctx.commands.package import writing as package_command
from epctx.commands.package.writing import PackageReport
from epctx.commands.plan import PlanReport
from epctx.commands.pull import PullReport
from epctx.commands.report import command as report_command
from epctx.commands.report.figures import device_section
from epctx.commands.reproduce import command as reproduce_command
from epctx.commands.reproduce.result import Reproduction, variations_of
from epctx.commands.validate import command as validate_command
from epctx.commands.validate.command import Validation
from epctx.commands.verify import folders as group_folders
from epctx.engine import ranges as calibrated
from epctx.engine.events import Expect, Listener
from epctx.engine.options import BuildOptions, ReleaseOptions
from epctx.engine.output import place
from epctx.engine.report import BuildReport
from epctx.errors import UsageError
from epctx.machines.address import Tls
from epctx.manifest import Requirement
from epctx.oci import reference as references
from epctx.parsing import load
from epctx.parsing.schema import apply as schemas
from epctx.signing.keys import Signer, Trusted
from epctx.verification import device_results as results_of
from epctx.verification.findings import VerifyReport

if TYPE_CHECKING:
    from epctx.commands.import_context import ImportReport
    from epctx.commands.kit.command import KitReport
    from epctx.commands.push import PushReport
    from epctx.commands.sign import SignReport


LOCK: Final = Existing(
    otherwise="name the .lock.yaml beside a manifest, which `epctx build` writes"
)
PACKAGE: Final = replace(
    FOLDER, otherwise="name dist/<name>.ortpackage, which `epctx package` writes"
)
Pems = Annotated[Sequence[AnyPath], Option(metavar="PEM"), DOCUMENT]
DeviceResults = Annotated[AnyPath | None, Option(metavar="FILE"), Existing()]


@checked
def plan(
    manifest: Manifest = None,
    *,
    out: Outputs = "dist",
    only: Groups = (),
    verify: bool = True,
    allow_outside: bool = False,
    remote_cache: CacheUrl = None,
    trust: Keys = None,
    listener: Listener | None = None,
) -> PlanReport:
    """Show what a build of the manifest would do and why, without doing it.

    Args:
        verify: plan a build that runs the models.
        listener: called with an event when the plan has to wait.

    Raises:
        ManifestError: the manifest breaks the schema or a rule; an EP refuses its options.
        UsageError: `only` names a group that the manifest does not have.
        LockError: the lock of the manifest cannot be read.
        ModelError: a source is missing.
        ProviderUnavailable: an EP is not installed.
    """
    return plan_command.plan(
        located(manifest),
        out=Path(out),
        only=only,
        numbers=verify,
        allow_outside=allow_outside,
        shared=_shared(remote_cache, trust),
        listener=listener or (lambda event: None),
    )


@checked
def build(
    manifest: Manifest = None,
    *,
    out: Outputs = "dist",
    only: Groups = (),
    jobs: Jobs = None,
    keep_going: Annotated[bool, Option(short="k")] = False,
    verify: bool = True,
    cache: bool = True,
    locked: bool = False,
    from_cache: bool = False,
    reports: Annotated[AnyPath | None, Option(metavar="DIR"), FOLDER] = None,
    recalibrate: bool = False,
    golden: bool = False,
    archive: bool = False,
    attest: bool = False,
    builder_id: BuilderId = None,
    sign: Pem = None,
    cert: Pem = None,
    chain: Pem = None,
    allow_outside: bool = False,
    remote_cache: CacheUrl = None,
    trust: Keys = None,
    on: Annotated[str | None, Option(metavar="dask://HOST:PORT")] = None,
    tls: Tls | None = None,
    listener: Listener | None = None,
    expect: Expect | None = None,
) -> BuildReport:
    """Build EPContext models as a manifest declares, verify and publish them.

    The outputs are in `<out>/<name>/`, the report is `<out>/<name>.build.json`.

    Args:
        manifest: the manifest; if omitted epctx.yaml, or the only manifest in manifests/.
        out: the output folder.
        only: build this group only; may be repeated. The whole manifest if omitted.
        jobs: number of session groups to build at the same time; one per core if omitted or 0.
        keep_going: build and publish the other groups if one fails.
        verify: run the models to compare numbers. Checks that run no model are always made.
        cache: use or keep results in the cache.
        locked: fail if anything would differ from the lock beside the manifest; never write it.
        from_cache: publish the results that other machines put into the cache; build nothing.
        reports: with `from_cache`, a folder with the build reports of these machines.
        recalibrate: calibrate quantized models again, instead of using their recorded ranges.
        golden: ship inputs and expected outputs with each group.
        archive: also write all outputs as one `<name>.tar`.
        attest: write `<name>.intoto.json`, an in-toto attestation with SLSA provenance.
        builder_id: URI of the builder, for the attestation; taken from the CI system's variables if
            omitted.
        sign: sign the outputs with this private key, as `epctx sign` does (OpenSSF Model Signing).
        cert: certificate of the signing key.
        chain: certificates of the certificate's issuers, the nearest first.
        allow_outside: let paths lead out of the manifest's folder.
        remote_cache: URL of a cache that machines share: s3://, gs://, az://, file:// or https://.
        trust: file of the public keys whose signatures count in the shared cache.
        on: build on the workers of this scheduler; dask://local?workers=N starts workers here.
        tls: certificates for the other machines; None for no certificates, which is an error unless
            the scheduler runs on this host.
        listener: called with each event of the build, from several threads but one at a time.
        expect: called once with the groups that will be built, and their estimated seconds.

    Raises:
        EpctxError: the first failure in manifest order; its `report` has all of them.
    """
    done = command.run(
        located(manifest),
        BuildOptions(
            out=Path(out),
            jobs=jobs or 0,
            keep_going=keep_going,
            numbers=verify,
            locked=locked,
            from_cache=from_cache,
            reports=None if reports is None else Path(reports),
            recalibrate=recalibrate,
            expect=expect or (lambda groups: None),
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
        on=None if on is None else On(url=on, tls=tls or Tls()),
    )
    if done.failure is not None:
        done.failure.report = done.report
        raise done.failure
    return done.report


@checked
def package(
    manifest: Manifest = None,
    *,
    out: Outputs = "dist",
    jobs: Jobs = None,
    verify: bool = True,
    cache: bool = True,
    locked: bool = False,
    attest: bool = False,
    builder_id: BuilderId = None,
    sign: Pem = None,
    cert: Pem = None,
    chain: Pem = None,
    allow_outside: bool = False,
    remote_cache: CacheUrl = None,
    trust: Keys = None,
    listener: Listener | None = None,
    expect: Expect | None = None,
) -> PackageReport:
    """Build as `epctx build` does, and write an ONNX Runtime model package beside it.

    The package has a component for each model, with a variant for each target. ONNX Runtime 1.28
    and later picks the variant that fits the device. `package` in the manifest adds a tokenizer and
    other files. Only the package is signed.

    Args:
        out: the output folder, which also gets `<name>.ortpackage`.

    Raises:
        EpctxError: the build failed, so no package was written; a file of `package` is missing;
            the disk cannot be written.
    """
    done, failure = package_command.run(
        located(manifest),
        BuildOptions(
            out=Path(out),
            jobs=jobs or 0,
            numbers=verify,
            locked=locked,
            expect=expect or (lambda groups: None),
            release=ReleaseOptions(attest=attest, packaged=True, builder=builder_id),
        ),
        cached=cache,
        shared=_shared(remote_cache, trust),
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
        signer=Signer.from_options(sign, cert, chain),
    )
    if failure is not None:
        failure.report = done.build
        raise failure
    assert done.package is not None
    return done.package


@checked
def sign(
    folder: Annotated[AnyPath, Option(metavar="FOLDER"), FOLDER],
    *,
    key: Annotated[AnyPath, Option(metavar="PEM"), DOCUMENT],
    cert: Pem = None,
    chain: Pem = None,
    waiting: Callable[[], None] = lambda: None,
) -> SignReport:
    """Sign every file of a folder with OpenSSF Model Signing; write FOLDER/model.sig.

    `epctx verify --trusted-key` and `model_signing verify` check the folder against the signature.

    Args:
        folder: a package, dist/NAME, or any folder to be shipped.
        key: the private key: ECDSA on P-256, P-384 or P-521, in PEM, without a password.
        waiting: called if the command has to wait for a build that holds the folder.

    Raises:
        UsageError: the key or a certificate cannot be used, the folder is empty or contains a link,
            or `cryptography` is not installed.
        VerificationError: a file differs from its digest in a `SHA256SUMS`.
    """
    from epctx.commands import sign as command

    signer = Signer.from_options(key, cert, chain)
    assert signer is not None
    return command.run(Path(folder), signer, waiting)


@checked
def verify(
    paths: Annotated[
        AnyPath | Sequence[AnyPath],
        Option(metavar="DIR|MODEL|oci://…", parser="place"),
        EITHER,
    ],
    *,
    manifest: Annotated[AnyPath | None, Option(metavar="FILE"), STARTER] = None,
    lock: Annotated[AnyPath | None, Option(metavar="FILE"), LOCK] = None,
    trusted_key: Pems = (),
    trusted_ca: Pems = (),
    golden: bool = False,
    device_results: DeviceResults = None,
    strict: bool = False,
    require: Sequence[Requirement] = (),
    allow_outside: bool = False,
    insecure: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> VerifyReport:
    """Check every file against SHA256SUMS and its format, and every model against its source.

    Models are read and run in worker processes, so a crash in an EP's SDK is a finding. The command
    waits for a build that publishes to the same folders; a later build waits for the command.

    Args:
        paths: folders of built groups, packages, models; with a lock, files of a release.
        manifest: the manifest of the build: compare numbers with the source models, and check
            options and prefixes.
        lock: also compare every file with this lock file.
        trusted_key: require a signature by this public key, in PEM; may be repeated. Unsigned files
            are not opened.
        trusted_ca: accept a signature by a key that this authority certifies, in PEM; may be
            repeated.
        golden: run the golden inputs in the folders, and compare with the golden outputs.
        device_results: judge the results that check_device.py of a kit (`epctx kit`) wrote.
        strict: also fail if something cannot be checked.
        require: fail if the numbers of a model were not compared.
        insecure: use plain HTTP for the registry: anybody on the network can read the traffic.
        waiting: called if the command has to wait for a build that holds the folders.

    Raises:
        UsageError: there is nothing to verify, a folder belongs to no group of the manifest or the
            lock, or the device's results cannot be read.
        LockError: the lock cannot be read.
        ManifestError: the manifest breaks the schema or a rule, or its inputs do not fit the
            models.
    """
    from epctx.commands.package import checking
    from epctx.commands.verify import command, releases, signatures

    results = None if device_results is None else Path(device_results).absolute()
    if results is not None:
        results_of.read(results)
    trusted = Trusted.load([Path(p) for p in trusted_key], [Path(p) for p in trusted_ca])
    arguments = [paths] if isinstance(paths, str | os.PathLike) else paths
    places = [t if references.is_reference(t := os.fspath(each)) else Path(t) for each in arguments]
    locked = None if lock is None else locks.read(Path(lock))
    name = None if locked is None else locked.name
    with (
        command.fetched(places, insecure=insecure, name=name) as fetched,
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
            all_requests = [*requests, *inside]
            all_requests, missing = group_folders.match(all_requests, parsed, named)
            requests, inside = all_requests[: len(requests)], all_requests[len(requests) :]
        released = []
        if locked is not None:
            requests, unlocked, astray = group_folders.match_lock(
                requests, locked, named, where=where.removeprefix("the lock ")
            )
            reported = {each.folder for each in missing}
            missing += [each for each in unlocked if each.folder not in reported]
            others = {*judged.rest} - {*files, *survey.byproducts}
            strays = (*astray, *survey.kits, *others)
            released += group_folders.reported(sorted(strays), releases.stray(where))
        for each in files:
            if locked is None or judged.admits(each.resolve()):
                released.append(releases.check(each, locked, where))
        released += [releases.check(each, locked, where) for each in beside]
        released += fetched.findings(locked, where)
        result = command.run(
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
        unlisted = judged.rest if locked is None and trusted is None else ()
        uncovered = (
            *group_folders.reported(sorted(unlisted), releases.uncovered),
            *group_folders.reported(sorted({*survey.byproducts} - {*rest}), releases.byproduct),
        )
        return fetched.with_references(replace(result, folders=(*result.folders, *uncovered)))


@checked
def kit(
    source: Annotated[AnyPath, Option(metavar="DIR|PACKAGE"), FOLDER],
    *,
    out: Annotated[AnyPath | None, Option(short="o", metavar="DIR"), NEW_FOLDER] = None,
    golden: Annotated[AnyPath | None, Option(metavar="DIR"), FOLDER] = None,
    expect_driver: Annotated[str | None, Option(metavar="VERSION")] = None,
) -> KitReport:
    """Write a kit: a folder with which a device without epctx checks and times the models.

    On the device, check_device.py needs Python, numpy, onnxruntime and the packages of the EPs. It
    writes the results that `epctx verify --device-results` judges. The kit's source is checked
    first, and not changed.

    Args:
        source: a folder of built groups, with golden files, or a package.
        out: the kit's folder; `<source>.kit` beside it if omitted.
        golden: folder of a build with `--golden`, for a package, which has no golden files itself.
        expect_driver: driver version that the device must have; any other version is reported.

    Raises:
        UsageError: there is nothing to pack, golden files are missing, or the kit's folder holds
            other files.
        VerificationError: `source` has changed since it was built.
        StorageError: the kit cannot be written.
    """
    from epctx.commands.kit import command

    return command.write(
        Path(source),
        None if out is None else Path(out),
        golden=None if golden is None else Path(golden),
        expect_driver=expect_driver,
    )


@checked
def reproduce(
    manifest: Annotated[AnyPath | None, Option(metavar="[MANIFEST]"), REREAD] = None,
    *,
    only: Groups = (),
    vary: Annotated[Sequence[str] | None, Option(metavar="NAME", complete="variations")] = None,
    find_cause: bool = False,
    jobs: Jobs = None,
    out: Annotated[AnyPath | None, Option(short="o", metavar="DIR"), OUTPUTS] = None,
    allow_outside: bool = False,
    listener: Listener | None = None,
) -> Reproduction:
    """Build a manifest twice, without cache, and compare every byte.

    The builds differ in path, environment, exec-path, home, locale, time-zone, hash-seed, umask,
    time, file-order, file-times, cores, jobs, user and host-name, also inside the workers, which a
    normal build shields from them. Models are not run. `dist` and the lock are not written; the
    lock is compared.

    Args:
        vary: vary only this; may be repeated. Everything if omitted.
        find_cause: if something differs, build once more for each variation.
        out: keep both builds, `first` and `second`, in this new folder.

    Raises:
        UsageError: `out` is not empty; `only` or `vary` has a name that does not exist.
        EpctxError: a build failed; its `where` says which one.
    """
    return reproduce_command.reproduce(
        located(manifest),
        only=only,
        jobs=jobs or os.cpu_count() or 1,
        vary=variations_of(vary),
        find_cause=find_cause,
        out=None if out is None else Path(out),
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
    )


@checked
def bisect(
    manifest: Annotated[AnyPath, Option(metavar="MANIFEST"), REREAD],
    group: Annotated[str, Option(metavar="GROUP[@TARGET]", complete="groups")],
    model: Annotated[str, Option(metavar="MODEL")],
    *,
    cuts: Annotated[int, Option(metavar="N", least=1)] = 8,
    budget: Annotated[float | None, Option(metavar="TIME", parser="duration")] = None,
    out: Outputs = "dist",
    allow_outside: bool = False,
    listener: Listener | None = None,
) -> tuple[Bisection, Path]:
    """Find the first wrong node of a model, or a node that does not compile; propose a repair.

    The model is built repeatedly, with inner values as outputs, which are compared with the
    source's values. If a build fails or crashes, nodes are kept off the EPs, half of them first. A
    repair is tried before it is proposed. DIR gets the results as JSON and as a page. The exit code
    is 7 if something is wrong.

    Args:
        manifest: the manifest of the build that fails.
        group: the model group; its first target, unless one is named.
        model: a model of the group.
        cuts: number of nodes whose values are read in one build.
        budget: time after which no further build begins, in seconds; 90s, 10m or 1h on the command
            line.

    Returns:
        The result, and the path of the page.

    Raises:
        UsageError: there is no such group or model; `epctx[report]` is not installed.
        VerificationError: this host cannot run the compiled model.
        EpctxError: a build failed before any numbers were compared.
    """
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.bisect import command

    result = command.bisect(
        Path(manifest),
        group,
        model,
        cuts=cuts,
        budget=budget,
        allow_outside=allow_outside,
        listener=listener or (lambda event: None),
    )
    return result, command.write_result(result, Path(out))


@checked
def inspect(file: Annotated[AnyPath, Option(metavar="FILE"), Existing()]) -> Inspection:
    """Describe a model or a context binary: nodes, graphs, sizes, shared weights.

    Args:
        file: an EPContext model, or a context binary.

    Raises:
        UsageError: there is no such file.
        ModelError: it is neither a model nor a binary that an installed EP knows.
    """
    from epctx.commands.inspect import command

    return command.inspect(Path(file))


@checked
def diff(
    old: Annotated[AnyPath, Option(metavar="A"), EITHER],
    new: Annotated[AnyPath, Option(metavar="B"), EITHER],
    *,
    html: Annotated[AnyPath | None, Option(metavar="FILE"), Written()] = None,
) -> Comparison:
    """Show what differs between two builds, two locks, or a build and a lock.

    The comparison covers toolchain, sources, settings, partitions and files, and the nodes,
    attributes and tensors in files. It lists causes before effects.

    Args:
        old: a folder of outputs (`dist`, `dist/<name>`), a `.build.json`, or a lock.
        new: the other side, in one of the same forms.
        html: also write the comparison of two builds to this file, as one HTML page that needs no
            network.

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


@checked
def validate(
    manifest: Manifest = None, *, models: bool = True, allow_outside: bool = False
) -> Validation:
    """Check manifests and the headers of their models, and report every fault.

    No weights are read and nothing is compiled. A fault that would fail a build is an error, with
    the exit code of that build. A setting that a build accepts, but that may be a mistake, is a
    warning.

    Args:
        models: read the models. Without them, files may be missing, as in some checkouts.

    Raises:
        ManifestError: the file cannot be read.
        ProviderUnavailable: an installed provider's option schema cannot be used.
    """
    return validate_command.validate(located(manifest), models=models, allow_outside=allow_outside)


@checked
def init(
    models: Annotated[Sequence[AnyPath], Option(metavar="MODEL.onnx|FOLDER"), MODELS] = (),
    manifest: NewManifest = None,
    *,
    provider: Annotated[str | None, Option(metavar="NAME", complete="providers")] = None,
    options: Annotated[
        Mapping[str, str] | None, Option(name="option", metavar="KEY=VALUE", complete="options")
    ] = None,
    share: bool = False,
    quantize: bool = False,
    dimensions: Annotated[
        Mapping[str, int] | None, Option(name="dimension", metavar="NAME=SIZE")
    ] = None,
    shapes: Annotated[
        Mapping[str, Sequence[int]] | None, Option(name="shape", metavar="INPUT=SIZES")
    ] = None,
    inputs: Annotated[Sequence[AnyPath], Option(metavar="FILE"), Existing()] = (),
    schema: bool = False,
    force: bool = False,
    ask_size: Callable[[str, int], int] | None = None,
) -> Path:
    """Write a starter manifest for models, which builds as it is and lists further settings.

    Open sizes of a model come from `shapes` and `dimensions`, from input files (`inputs`,
    calib/*.npz), or from metadata that the exporter wrote into the model. The others are guesses,
    which the manifest lists. A model with open sizes is run at the proposed sizes on ONNX Runtime's
    CPU EP, in a separate process.

    Args:
        models: ONNX models, or a model folder of onnxruntime-genai.
        manifest: the manifest to write; if omitted epctx.yaml here, or in the folder nearest to the
            models that holds them all. It says if links out of that need --allow-outside.
        provider: ONNX Runtime's name of the execution provider; one that is installed if omitted.
        options: a provider option; may be repeated.
        share: let all models share one context, in this order.
        quantize: quantize float32 models to integers first, for NPUs.
        dimensions: size of an open dimension, in elements; may be repeated.
        shapes: shape of an input, like x=1,3,224,224; may be repeated.
        inputs: a file of inputs (.npz, .npy, .pb), for sizes and to verify; may be repeated.
        schema: also write the JSON schema with which editors complete the manifest.
        force: replace an existing file.
        ask_size: called with each open size that would be a guess, and the guess; returns the size.

    Returns:
        The manifest's path.

    Raises:
        ModelError: a model cannot be read.
        ManifestError: the provider or an option is unknown, or a value is wrong.
        UsageError: the manifest exists already, a model lies outside its folder, or the models
            cannot be shared or quantized.
        StorageError: the manifest cannot be written.
    """
    return init_command.write(
        [Path(model) for model in models],
        None if manifest is None else Path(manifest),
        provider=provider or choice.proposed(choice.installed(), options or {}),
        options=options,
        share=share,
        quantize=quantize,
        size_options=SizeOptions(
            dimensions=dimensions or {},
            shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
            files=tuple(map(Path, inputs)),
            ask=ask_size,
        ),
        schema=schema,
        force=force,
    )


@checked
def import_ep_weight_sharing(
    line: Annotated[str, Option(metavar="'FLAGS'")],
    manifest: NewManifest = None,
    *,
    force: bool = False,
) -> Path:
    """Write the manifest that builds what ep_weight_sharing_ctx_gen builds.

    Args:
        line: the tool's command line as one argument, with or without the tool's name; paths are
            relative to the current folder.
        manifest: the manifest to write; if omitted epctx.yaml here, or in the folder nearest to the
            models that holds them all.
        force: replace an existing file.

    Returns:
        The manifest's path.

    Raises:
        UsageError: the line is not a command line of the tool, a model does not exist or lies
            outside the manifest's folder, or the manifest exists already.
        ManifestError: an option or a session entry is unknown, or a value is wrong.
        StorageError: the manifest cannot be written.
    """
    return import_command.write(line, None if manifest is None else Path(manifest), force=force)


@checked
def import_qnn_context(
    binary: Annotated[AnyPath, Option(metavar="FILE.bin"), Existing()],
    out: Annotated[AnyPath | None, Option(name="out", short="o", metavar="DIR"), NEW_FOLDER] = None,
    *,
    soc_model: Annotated[str | None, Option(metavar="CHIP")] = None,
    quantized_io: bool = False,
    force: bool = False,
) -> ImportReport:
    """Write EPContext models around a context binary of Qualcomm AI Hub or QAIRT, and check them.

    Each graph of the binary becomes a model, with its inputs and outputs in the binary's order. The
    models are checked as `epctx verify` does, and run where this host can. If a check fails,
    nothing is written.

    Args:
        binary: the context binary.
        out: folder for the models and a copy of the binary; if omitted the models are written
            beside the binary.
        soc_model: chip that the binary must be for, such as 73 or sm8650.
        quantized_io: keep quantized inputs and outputs as integers. If omitted they become float32.
        force: replace the files if they are there.

    Raises:
        InvalidGraph: the file is not a context binary of QNN, is damaged, or is for another chip.
        ProviderUnavailable: onnxruntime-qnn is not installed.
        ManifestError: the chip is not known.
        UsageError: a file is there already.
        StorageError: the models cannot be written.
    """
    from epctx.commands import import_context  # it loads onnx

    return import_context.write(
        Path(binary),
        None if out is None else Path(out),
        soc_model=soc_model,
        quantized=quantized_io,
        force=force,
    )


@checked
def doctor() -> Diagnosis:
    """Show which execution providers are installed, what they can do here, and what to repair.

    Each EP's library is loaded in a process of its own, so that a crash is reported as a problem.
    The command changes nothing, and takes a few seconds.
    """
    return doctor_command.diagnose()


@checked
def env() -> list[Variable]:
    """List the environment variables that epctx reads: current value, default and meaning."""
    return environment.variables(variables(build))


@checked
def check_environment(warn: Callable[[str, str], None] = lambda what, remedy: None) -> None:
    """Check the variables of the environment that every command reads.

    Args:
        warn: called with a message about a name that may be misspelt, and the remedy.

    Raises:
        UsageError: the value of a variable is invalid.
    """
    environment.check()
    for name, near in environment.unknown(variables(build)):
        warn(f"{name} is not a variable of epctx", f"{near} (`epctx env` lists them)")


@checked
def worker(
    scheduler: Annotated[str, Option(metavar="dask://HOST:PORT")],
    *,
    name: Annotated[str | None, Option(metavar="NAME")] = None,
    jobs: Jobs = None,
    tls: Tls | None = None,
    notify: Callable[[str], None] = lambda words: None,
) -> None:
    """Run jobs of `epctx build --on` on this machine, until the worker is ended.

    Args:
        scheduler: address of the scheduler that gives the jobs.
        name: name of this machine in reports.
        tls: certificates; None for no certificates, which is an error for other hosts.
        notify: called with messages for people.

    Raises:
        UsageError: the address is invalid, or would be used without TLS; there is no shared cache.
        ProviderUnavailable: dask is not installed; the scheduler cannot be reached.
    """
    from epctx.commands import worker as command

    command.serve(scheduler, tls or Tls(), name=name, jobs=jobs or 0, notify=notify)


@checked
def push(
    package: Annotated[AnyPath, Option(metavar="PACKAGE"), PACKAGE],
    reference: Annotated[str, Option(metavar="oci://HOST/REPO[:TAG]")],
    *,
    insecure: bool = False,
    mount: Annotated[str | None, Option(metavar="REPO")] = None,
    listener: Listener | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> PushReport:
    """Push a package to an OCI registry, with the signature in it and the attestation beside it.

    The artifact is a CNCF ModelPack; the same package always has the same digest. Files that the
    registry already has are not sent again.

    Args:
        package: a model package, or a folder of built groups.
        reference: the destination.
        insecure: use plain HTTP for the registry: anybody on the network can read the traffic.
        mount: another repository of the registry, whose files are reused instead of sent.
        listener: called with an event for each file that is sent.
        waiting: called if the command has to wait for a build that holds the package.

    Raises:
        UsageError: the reference is invalid, or there is no package.
        VerificationError: the package differs from its SHA256SUMS; nothing was pushed.
        StorageError: the registry refuses the package.
    """
    from epctx.commands import push as command

    return command.run(
        Path(package),
        references.parse(reference),
        insecure=insecure,
        mount=mount,
        listener=listener or (lambda event: None),
        waiting=waiting,
    )


@checked
def pull(
    reference: Annotated[str, Option(metavar="oci://HOST/REPO[:TAG][@sha256:…]")],
    folder: Annotated[AnyPath, Option(metavar="DIR"), NEW_FOLDER],
    *,
    insecure: bool = False,
    listener: Listener | None = None,
) -> PullReport:
    """Pull a package from an OCI registry, completely or not at all; check every file's digest.

    A signature is part of the package; attestations are written beside it. Only `@sha256:…` fixes
    the content, since a tag can be moved. `epctx verify` checks the rest.

    Args:
        reference: the package; a digest goes before the tag.
        folder: the destination: a new folder, an empty one, or one that holds this package.
        insecure: use plain HTTP for the registry: anybody on the network can read the traffic.
        listener: called with an event for each file that is received.

    Raises:
        UsageError: the reference is invalid, or the folder holds other files.
        VerificationError: the registry's content differs from its digests.
        StorageError: the registry does not provide the package, or the disk cannot be written.
    """
    return pull_command.run(
        references.parse(reference),
        Path(folder),
        insecure=insecure,
        listener=listener or (lambda event: None),
    )


@checked
def report(
    source: Annotated[AnyPath | None, Option(metavar="[MANIFEST|JSON|DIST]"), EITHER] = None,
    *,
    out: Annotated[AnyPath | None, Option(short="o", metavar="FILE"), Written()] = None,
    dist: Annotated[AnyPath, Option(metavar="DIR"), OUTPUTS] = "dist",
    device_results: DeviceResults = None,
) -> Path:
    """Write a build report as one HTML page that needs no network, and return its path.

    Nothing is built. If the context binaries still lie beside the report, their descriptions are
    read. `diff(old, new, html=FILE)` writes the page of two builds.

    Args:
        source: a manifest, a build report (`.json`), or the folder of the outputs of one build.
        out: the page; `<name>.report.html` beside the report if omitted.
        dist: the folder that holds the manifest's report.
        device_results: results that `check_device.py` of a kit wrote; judged as `verify` does.

    Raises:
        UsageError: there is no report, or more than one; it is of another version; the device's
            results cannot be read.
        ManifestError: the manifest breaks the schema or a rule.
        StorageError: the page cannot be written.
    """
    path = _report_of(located(source), Path(dist))
    page = Path(out) if out is not None else report_command.page_of(path)
    on_device = None
    if device_results is not None:
        built = path.parent / report_command.read(path).name
        judged = verify(built, device_results=device_results)
        on_device = device_section(results_of.read(Path(device_results)), judged)
    report_command.write(path, page, on_device)
    return page


def _shared(url: str | None, trust: AnyPath | None) -> Shared:
    """Return the shared cache that the arguments name."""
    return Shared(url=url, trust=None if trust is None else Path(trust))


def _report_of(source: Path, dist: Path) -> Path:
    """Return the build report of a manifest, or the named one."""
    if source.is_dir():
        return report_command.of_folder(source)
    if source.suffix == ".json":
        return source
    return report_command.of_manifest(load.load(source, allow_outside=True).name, dist, source)


@checked
def explain(code: str) -> Explanation:
    """Return cause, example and remedy of an error code.

    Raises:
        UsageError: there is no such code.
    """
    return pages.explain(code)


@checked
def schema(name: str = "manifest") -> str:
    """Return a JSON Schema as text: `manifest`, `report`, `lock` or `providers/<EP>`.

    Raises:
        UsageError: there is no schema of this name.
        ProviderUnavailable: an installed provider's schema cannot be read.
    """
    return schemas.text(name)
