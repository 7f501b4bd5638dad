"""For each field of each record: what changes it changes the key, and nothing else does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct, field
from msgspec.structs import fields, replace

from epctx.actions.compile import Compile, CompiledModel, CompileResult
from epctx.actions.optimize import Optimize
from epctx.cache import StoredAction
from epctx.cache.digests import FreshDigests
from epctx.engine.lookup import Lookup
from epctx.engine.plan import PlannedGroup, SessionGroup
from epctx.engine.state import GroupState, Known, ModelState, SessionState
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.keys import Toolchain, records
from epctx.keys import records as making
from epctx.keys import toolchain as toolchains
from epctx.keys.records import key
from epctx.keys.source_digests import SourceDigests
from epctx.manifest import (
    ExternalInitializers,
    ModelGroup,
    ModelSource,
    OptimizeSettings,
    PartitionSettings,
    Pieces,
    ProviderSpec,
    QuantizeSettings,
    Reference,
    Tolerance,
    VerifyInputs,
    VerifySettings,
    WeightOnly,
)
from epctx.providers import registry
from epctx.providers.base import Fingerprint
from epctx.providers.onnxruntime import host


def cpu(*flags: str) -> host.Cpu:
    return host.Cpu(vendor="V", family="6", model="1", flags=flags)


class Case(Struct, frozen=True, kw_only=True):
    """All that a session group of two models and two EPs is made from."""

    group: ModelGroup
    optimized: Mapping[str, Digest]
    piece: int = 0
    sources: Mapping[str, SourceDigests]
    outputs: Mapping[str, Digest]
    inputs: VerifyInputs | None = None
    fingerprint: Fingerprint = field(default_factory=lambda: Fingerprint(toolchain={"sdk": "1"}))
    drivers: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    code: str = "epctx one"
    cpu: host.Cpu = field(default_factory=lambda: cpu("avx"))
    own: str = "sources"
    extensions: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, SourceDigests] = field(default_factory=dict)


def of(text: str) -> Digest:
    return digest.of_bytes(text.encode())


@pytest.fixture
def case(tmp_path: Path) -> Case:
    for name in ("backend.so", "library.so", "inputs.npz"):
        (tmp_path / name).write_text(name)
    models = tuple(
        ModelSource(name=name, path=tmp_path / f"{name}.onnx", dimensions={"batch": 1})
        for name in ("one", "two")
    )
    eps = (
        ProviderSpec(
            alias="a",
            provider="First",
            options={"soc": "60", "backend": str(tmp_path / "backend.so")},
            path_options=("backend",),
        ),
        ProviderSpec(alias="b", provider="Second"),
    )
    return Case(
        group=ModelGroup(
            name="group",
            models=models,
            execution_providers=eps,
            sharing_groups={"main": ("one", "two")},
            verify=VerifySettings(inputs=VerifyInputs(seed=1)),
        ),
        optimized={"one": of("one"), "two": of("two")},
        sources={
            name: SourceDigests(model=of(name), locations=("w",), data=(of(f"{name}.data"),))
            for name in ("one", "two")
        },
        outputs={"one_ctx.onnx": of("out")},
        inputs=VerifyInputs(seed=1),
        fingerprint=Fingerprint(
            toolchain={"sdk": "1"}, host={"isa": "avx"}, files={"lib": tmp_path / "library.so"}
        ),
    )


class _Provider:
    def __init__(self, case: Case) -> None:
        self._case = case

    def fingerprint(self) -> Fingerprint:
        return self._case.fingerprint

    def drivers(self) -> Mapping[str, str]:
        return self._case.drivers


Record = dict[str, Any]


def make(case: Case) -> list[Record]:
    """The records of a case, made as a build makes them, in an environment as it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "create", lambda spec: _Provider(case))
        patch.setattr(Toolchain, "_provider_code", lambda self, name, module: case.code)
        patch.setattr(Toolchain, "own", lambda self, patterns: case.own)
        patch.setattr(toolchains, "version", lambda name: case.versions.get(name, "1.0"))
        patch.setattr(host, "cpu", lambda: case.cpu)
        patch.setattr(Toolchain, "passes", lambda self, passes: case.extensions)
        digests = FreshDigests()
        toolchain = Toolchain(digests)
        source = case.group.models[0]
        found = case.sources[source.name]
        optimized = Optimize.of(source, case.group.optimize, digests=found).record(toolchain)
        compiled = Compile.of(case.group, case.optimized, case.piece).record(toolchain)
        lookup = Lookup(None, digests, numbers=case.inputs is not None)
        patch.setattr(lookup.sources, "find", lambda source: case.references["one"])
        settings = replace(case.group.verify, inputs=case.inputs or VerifyInputs())
        group = replace(case.group, verify=settings)
        session = SessionGroup(sharing="main", models=group.models)
        planned = PlannedGroup(target="x", group=group, session_groups=(session,))
        sources = ((model, case.sources[model.name]) for model in case.group.models)
        state = SessionState(
            session=session,
            models=tuple(ModelState(source=model, found=found) for model, found in sources),
            compile=Known(key=key(compiled), record={}, stored=stored(case)),
        )
        after = lookup.verified(GroupState(planned=planned, sessions=(state,)))
        assert after.whole is not None
        recorded = lookup.recording(group, key(compiled), lookup.inputs(group))
        others = (after.verified[0].record, recorded.record(toolchain), after.whole.record)
        return [optimized, compiled, *map(dict, others)]


def stored(case: Case) -> StoredAction[CompileResult]:
    """The compile, with the outputs of the case."""
    files = tuple(
        OutputFile(name=name, size=1, sha256=content, blake3=content)
        for name, content in case.outputs.items()
    )
    result = CompileResult(output=GroupOutput(models={}, files=files), models=(), unmatched=())
    return StoredAction(kind="compile", record=msgspec.Raw(b"{}"), result=result, files=())


Edit = Callable[[Case], Case]


def group(**changes: Any) -> Edit:
    return lambda case: replace(case, group=replace(case.group, **changes))


def models(**changes: Any) -> Edit:
    """Of the first model."""

    def edit(case: Case) -> Case:
        first, *others = case.group.models
        edited = replace(first, **changes)
        return replace(case, group=replace(case.group, models=(edited, *others)))

    return edit


def eps(**changes: Any) -> Edit:
    """Of the first EP."""

    def edit(case: Case) -> Case:
        first, *others = case.group.execution_providers
        edited = replace(first, **changes)
        return replace(case, group=replace(case.group, execution_providers=(edited, *others)))

    return edit


def partition(**changes: Any) -> Edit:
    return group(partition=PartitionSettings(**changes))


def verify(**changes: Any) -> Edit:
    return lambda case: group(verify=replace(case.group.verify, **changes))(case)


def tolerance(**changes: float) -> Edit:
    return verify(tolerance=Tolerance(**changes))


def case_(**changes: Any) -> Edit:
    return lambda case: replace(case, **changes)


def inputs(**changes: Any) -> Edit:
    return case_(inputs=VerifyInputs(**{"seed": 1, **changes}))


def source(**changes: Any) -> Edit:
    """Of the first model's content."""

    def edit(case: Case) -> Case:
        changed = dataclasses.replace(case.sources["one"], **changes)
        return replace(case, sources={**case.sources, "one": changed})

    return edit


def referred(content: str = "float", **limits: float) -> Edit:
    """The first model has a reference."""
    found = SourceDigests(model=of(content), locations=("w",), data=(of(f"{content}.data"),))
    asked = Reference(path=Path("float.onnx"), tolerance=Tolerance(**limits))

    def edit(case: Case) -> Case:
        return models(reference=asked)(replace(case, references={"one": found}))

    return edit


def fingerprint(**changes: Any) -> Edit:
    return lambda case: replace(
        case,
        fingerprint=replace(case.fingerprint, **changes),
    )


def content(name: str) -> Edit:
    """Another content of a file beside the models."""

    def edit(case: Case) -> Case:
        (case.group.models[0].path.parent / name).write_text("edited")
        return case

    return edit


def reversed_eps(case: Case) -> Case:
    eps = tuple(reversed(case.group.execution_providers))
    return group(execution_providers=eps)(case)


def reversed_models(case: Case) -> Case:
    return replace(case, optimized=dict(reversed(list(case.optimized.items()))))


def with_files(case: Case, **more: Any) -> Case:
    return inputs(files=(case.group.models[0].path.parent / "inputs.npz",), **more)(case)


def with_extension(case: Case) -> Case:
    """A pass of another package, which has changed."""
    case = group(optimize=OptimizeSettings(level="explicit", passes=("p",)))(case)
    return replace(case, extensions={"p": "pkg 1 blake3:0"})


def renamed(case: Case) -> Case:
    """As the manifest's keys say, but not the compiled models, which have names of their own."""
    sources = {"uno": case.sources["one"], "two": case.sources["two"]}
    return models(name="uno")(replace(case, sources=sources))


ACTIONS = ("Optimize", "Compile", "Verify", "Record", "Check")
OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER = range(5)
PINNED = [
    "305df9aa8a644dad",
    "22ad20917a2a0970",
    "50888fd863d21450",
    "d5ddf8c1c833131c",
    "b67d40d2ef1f9f7a",
]
CHANGES: list[tuple[str, Edit, set[int]]] = [
    # The record's field, what is edited, and which keys must change with it.
    ("Optimize.model", source(model=of("edited")), {OPTIMIZE, VERIFY, FOLDER}),
    ("VerifiedModel.model", source(model=of("edited")), {OPTIMIZE, VERIFY, FOLDER}),
    ("Optimize.data", source(data=(of("edited"),)), {OPTIMIZE, VERIFY, FOLDER}),
    ("VerifiedModel.data", source(data=(of("edited"),)), {OPTIMIZE, VERIFY, FOLDER}),
    ("Optimize.dimensions", models(dimensions={"batch": 2}), {OPTIMIZE, VERIFY, FOLDER}),
    ("VerifiedModel.dimensions", models(dimensions={"batch": 2}), {OPTIMIZE, VERIFY, FOLDER}),
    ("Optimize.shapes", models(shapes={"x": (1, 3)}), {OPTIMIZE, VERIFY, FOLDER}),
    ("VerifiedModel.shapes", models(shapes={"x": (1, 3)}), {OPTIMIZE, VERIFY, FOLDER}),
    ("Optimize.level", group(optimize=OptimizeSettings(level="none")), {OPTIMIZE}),
    (
        "Optimize.passes",
        group(optimize=OptimizeSettings(level="explicit", passes=("simplify",))),
        {OPTIMIZE},
    ),
    ("Optimize.extensions", with_extension, {OPTIMIZE}),
    (
        "Optimize.toolchain",
        case_(versions={"numpy": "2"}),
        {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "Optimize.toolchain",
        case_(versions={"onnx": "2"}),
        {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "Compile.toolchain",
        case_(versions={"onnxruntime": "2"}),
        {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "Verify.toolchain",
        case_(own="edited sources"),
        {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "CompiledModel.optimized",
        case_(optimized={"one": of("1"), "two": of("two")}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "CompiledModel.name",
        case_(optimized={"uno": of("one"), "two": of("two")}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("CompiledModel.piece", case_(piece=1), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("VerifiedModel.name", renamed, {VERIFY, FOLDER}),
    ("Compile.models", reversed_models, {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "Compile.models",
        case_(optimized={"one": of("one")}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("Compile.embed_mode", group(embed_mode=1), {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "Compile.node_name_prefix",
        group(node_name_prefix="p_"),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("Compile.partition", partition(min_nodes=2), {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "PartitionSettings.exclude_op_types",
        partition(exclude_op_types=("TopK",)),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "PartitionSettings.exclude_nodes",
        partition(exclude_nodes=("/head/*",)),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("PartitionSettings.min_nodes", partition(min_nodes=3), {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "PartitionSettings.require_coverage",
        partition(require_coverage=0.5),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "PartitionSettings.max_partitions",
        partition(max_partitions=3),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "Compile.session_options",
        group(session_options={"a": "b"}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "Compile.external_initializers",
        group(external_initializers=ExternalInitializers(file="{model}.data")),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "ExternalInitializers.file",
        group(external_initializers=ExternalInitializers(file="w-{model}.data")),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    (
        "ExternalInitializers.size_threshold",
        group(external_initializers=ExternalInitializers(file="{model}.data", size_threshold=9)),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("Compile.providers", reversed_eps, {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "Compile.providers",
        group(execution_providers=()),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("ProviderRecord.provider", eps(provider="Other"), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("ProviderRecord.options", eps(options={"soc": "73"}), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("ProviderRecord.options", content("backend.so"), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("ProviderRecord.code", case_(code="epctx two"), {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "ProviderRecord.toolchain",
        fingerprint(toolchain={"sdk": "2"}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("ProviderRecord.toolchain", content("library.so"), {COMPILE, VERIFY, RECORDING, FOLDER}),
    (
        "ProviderRecord.host",
        fingerprint(host={"isa": "avx512"}),
        {COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("Verify.compile", eps(options={"soc": "73"}), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("Verify.outputs", case_(outputs={"one_ctx.onnx": of("edited")}), {VERIFY, FOLDER}),
    ("Verify.outputs", case_(outputs={"uno_ctx.onnx": of("out")}), {VERIFY, FOLDER}),
    ("Verify.inputs", case_(inputs=None), {VERIFY, RECORDING, FOLDER}),
    ("InputsRecord.seed", inputs(seed=2), {VERIFY, RECORDING, FOLDER}),
    ("InputsRecord.count", inputs(count=2), {VERIFY, RECORDING, FOLDER}),
    ("InputsRecord.ranges", inputs(ranges={"x": (0.0, 1.0)}), {VERIFY, RECORDING, FOLDER}),
    ("InputsRecord.dimensions", inputs(dimensions={"n": (2, 3)}), {VERIFY, RECORDING, FOLDER}),
    ("InputsRecord.files", with_files, {VERIFY, RECORDING, FOLDER}),
    ("Verify.tolerance", tolerance(max_abs=1.0), {VERIFY, FOLDER}),
    ("Tolerance.cosine_min", tolerance(cosine_min=0.9), {VERIFY, FOLDER}),
    ("Tolerance.max_abs", tolerance(max_abs=0.1), {VERIFY, FOLDER}),
    ("Tolerance.max_rel", tolerance(max_rel=0.1), {VERIFY, FOLDER}),
    ("Tolerance.sqnr_min", tolerance(sqnr_min=20.0), {VERIFY, FOLDER}),
    ("Tolerance.top_k_min", tolerance(top_k_min=0.9), {VERIFY, FOLDER}),
    ("Tolerance.gain_max", tolerance(gain_max=0.1), {VERIFY, FOLDER}),
    ("Tolerance.floor", tolerance(floor=0.01), {VERIFY, FOLDER}),
    ("VerifiedModel.reference", referred(), {VERIFY, FOLDER}),
    ("Tolerance.saturates_at", tolerance(saturates_at=65504.0), {VERIFY, FOLDER}),
    ("Verify.allow_nonfinite", verify(allow_nonfinite=True), {VERIFY, FOLDER}),
    ("Verify.numbers", verify(numbers="generating"), {VERIFY, RECORDING, FOLDER}),
    ("Verify.budget", verify(budget=60.0), {VERIFY, RECORDING, FOLDER}),
    ("Verify.devices", case_(drivers={"npu": "2"}), {VERIFY, RECORDING, FOLDER}),
    (
        "Verify.devices",
        case_(cpu=cpu("avx", "avx2")),
        {VERIFY, RECORDING, FOLDER},
    ),
    ("Record.compile", group(embed_mode=1), {COMPILE, VERIFY, RECORDING, FOLDER}),
    ("Record.inputs", inputs(seed=3), {VERIFY, RECORDING, FOLDER}),
    ("Record.numbers", verify(numbers="generating"), {VERIFY, RECORDING, FOLDER}),
    ("Record.budget", verify(budget=5.0), {VERIFY, RECORDING, FOLDER}),
    ("Record.devices", case_(drivers={"npu": "3"}), {VERIFY, RECORDING, FOLDER}),
    (
        "Record.toolchain",
        case_(versions={"onnxruntime": "3"}),
        {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER},
    ),
    ("Check.sessions", tolerance(max_abs=3.0), {VERIFY, FOLDER}),
    ("Check.outputs", case_(outputs={"one_ctx.onnx": of("edited")}), {VERIFY, FOLDER}),
    ("Check.toolchain", case_(own="edited"), {OPTIMIZE, COMPILE, VERIFY, RECORDING, FOLDER}),
    ("Verify.models", renamed, {VERIFY, FOLDER}),
]


@pytest.mark.parametrize(
    ("name", "edit", "keys"), CHANGES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CHANGES)]
)
def test_what_changes_a_field_changes_the_keys_that_have_it(
    case: Case, name: str, edit: Edit, keys: set[int]
) -> None:
    before = [key(record) for record in make(case)]
    after = [key(record) for record in make(edit(case))]
    assert {i for i in range(5) if before[i] != after[i]} == keys


@pytest.mark.parametrize(
    "other",
    [referred("other"), referred(cosine_min=0.9)],
    ids=["its content", "its tolerance"],
)
def test_what_changes_a_reference_changes_the_key_of_verify_alone(case: Case, other: Edit) -> None:
    before, after = ([key(record) for record in make(edit(case))] for edit in (referred(), other))
    assert {i for i in range(5) if before[i] != after[i]} == {VERIFY, FOLDER}


RECORDS = (
    CompiledModel,
    PartitionSettings,
    ExternalInitializers,
    toolchains.ProviderRecord,
    records.InputsRecord,
    records.VerifiedModel,
    Tolerance,
)


def test_each_field_of_each_record_is_tested(case: Case) -> None:
    known = {f"{record.__name__}.{each.name}" for record in RECORDS for each in fields(record)}
    for name, made in zip(ACTIONS, make(case), strict=True):
        known |= {f"{name}.{field}" for field in made}
    known = {name for name in known if name.partition(".")[2] not in ("action", "version")}
    assert {name for name, _, _ in CHANGES} == known


def test_each_record_has_its_kind_and_version_in_the_key(case: Case) -> None:
    made = make(case)
    assert [record["action"] for record in made] == [
        "optimize",
        "compile",
        "verify",
        "recording",
        "check",
    ]
    for record in made:
        for change in ({"version": record["version"] + 1}, {"action": "other"}):
            assert key(record) != key(record | change)


def moved(case: Case) -> Case:
    """Everything in another folder, under other file names."""
    folder = case.group.models[0].path.parent
    other = folder / "elsewhere"
    other.mkdir()
    for name in ("backend.so", "library.so", "inputs.npz"):
        (folder / name).rename(other / f"moved-{name}")
    first, second = case.group.models
    edited = (
        replace(first, path=other / "m.onnx", external_data_dir=other / "weights"),
        replace(second, path=other / "n.onnx"),
    )
    options = {**case.group.execution_providers[0].options, "backend": f"{other}/moved-backend.so"}
    case = eps(options=options)(group(models=edited)(case))
    case = source(locations=("other-place",))(case)
    return fingerprint(files={"lib": other / "moved-library.so"})(case)


def all_excluded(case: Case, *names: str) -> Case:
    return partition(exclude_op_types=names, exclude_nodes=names)(case)


SAME: dict[str, tuple[Edit, Edit]] = {
    # Two edits that give the same keys.
    "group name": (group(), group(name="other")),
    "alias": (eps(), eps(alias="other")),
    "sharing group name": (group(), group(sharing_groups={"other": ("one", "two")})),
    "timeout": (group(), group(timeout=3.0)),
    "unknown options allowed": (eps(), eps(allow_unknown_options=True)),
    "paths": (group(), moved),
    "order of options": (
        eps(options={"a": "1", "b": "2"}),
        eps(options={"b": "2", "a": "1"}),
    ),
    "order of dimensions": (
        models(dimensions={"a": 1, "b": 2}),
        models(dimensions={"b": 2, "a": 1}),
    ),
    "order of what is excluded": (
        lambda case: all_excluded(case, "A", "B"),
        lambda case: all_excluded(case, "B", "A", "B"),
    ),
    "a seed that files leave unused": (
        with_files,
        lambda case: with_files(case, seed=7, count=3),
    ),
    "a budget for what is not run": (
        case_(inputs=None),
        lambda case: verify(budget=3.0)(replace(case, inputs=None)),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_cannot_change_the_bytes_changes_no_key(case: Case, name: str) -> None:
    one, two = SAME[name]
    assert [key(r) for r in make(one(case))] == [key(r) for r in make(two(case))]


def test_values_of_other_types_are_other_values(case: Case) -> None:
    keys = {key(make(eps(options={"n": value})(case))[COMPILE]) for value in (1, 1.5, True, "1")}
    assert len(keys) == 4


def test_the_form_of_keys_is_pinned(case: Case) -> None:
    """A key that changes without its version is a cache that misses, or worse, that hits."""
    fixed = replace(case, group=replace(case.group, execution_providers=()))
    assert [key(record).hex[:16] for record in make(fixed)] == PINNED


def test_ranges_are_those_of_the_nodes_and_pieces_that_are_quantized(case: Case) -> None:
    model = digest.of_bytes(b"model")
    settings = (
        QuantizeSettings(),
        QuantizeSettings(range_floor=-100, per_channel=False),  # nothing that calibration looks at
        QuantizeSettings(exclude_nodes=("norm",)),
        QuantizeSettings(weight_only=WeightOnly()),
        QuantizeSettings(weight_only=WeightOnly(block_size=64)),
    )
    groups = [replace(case.group, quantize=each) for each in settings]
    groups += [replace(groups[0], pieces=Pieces(count=count)) for count in (2, 3)]
    plain, same, *others = (key(making.calibration(model, each, ())) for each in groups)
    assert plain == same and len({plain, *others}) == 6
