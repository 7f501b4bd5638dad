"""The manifest as types: parsed once, frozen, keyword-only; no dict beyond this module.

Everything here is resolved: defaults < group < target < command line.
`parsing.load` makes it of a file. A new key is a property of `manifest.schema.json` and a field
here; if it can change what is built, it is a field of an action, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

DEFAULT_EP: Final = "CPUExecutionProvider"
"""ONNX Runtime's own EP: it runs what no other takes."""
ENTRY_POINTS: Final = "epctx.execution_providers"
"""The group of entry points that third parties register an EP in."""
PLUGIN_LIBRARY: Final = "plugin.library"
"""The option of a plugin EP without a schema that is the path of its library."""
Preset = Literal["qnn", "openvino", "cpu"]
"""Whose settings a model is quantized with."""
Requirement = Literal["numbers"]
"""A check that must have run: the values of `verify.require`."""
OptionValue = str | int | float | bool | tuple[str, ...]


class Tolerance(Struct, frozen=True, kw_only=True):
    """`verify.tolerance`; None: the default of the EP and precision.

    Attributes:
        cosine_min: least cosine similarity of an output, -1 to 1.
        max_abs: largest absolute difference, in the output's unit.
        max_rel: largest difference relative to the output's scale: its largest ordinary magnitude.
        sqnr_min: least signal-to-quantization-noise ratio, in decibels.
        top_k_min: of the decided rows of scores, the least share whose largest elements must be the
            same ones, 0 to 1.
        gain_max: largest difference from 1 of an output's gain, over all input sets.
        floor: differences up to it are no errors, in the output's unit.
        saturates_at: magnitudes beyond it may come out as it, or as infinite, with their sign: the
            largest number of the type that the EP computes in.
    """

    cosine_min: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    sqnr_min: float | None = None
    top_k_min: float | None = None
    gain_max: float | None = None
    floor: float | None = None
    saturates_at: float | None = None


class Reference(Struct, frozen=True, kw_only=True):
    """`reference` of a model: one that does what it should do, as the float one of a quantized one.

    Attributes:
        path: the `.onnx` file, absolute.
        external_data_dir: as in ModelSource.
        tolerance: how far the compiled model may be from it; None in a field: what the EP allows
            quantized models.
        dimensions, shapes: as in ModelSource; None: those of the model.
        of_source: the source, quantized in this build, is compared with it, not what is compiled of
            the source.
    """

    path: Path
    external_data_dir: Path | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    dimensions: Mapping[str, int] | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    of_source: bool = False


class Bucket(Struct, frozen=True, kw_only=True):
    """Of which model of the manifest a model is a bucket, and of which of the sizes it lists."""

    model: str
    sizes: Mapping[str, int]


class ModelSource(Struct, frozen=True, kw_only=True):
    """A source model, as the manifest names it.

    Attributes:
        name: the manifest's key; output names derive from it.
        path: the `.onnx` file, absolute.
        external_data_dir: where external data is resolved, absolute; None: the model's folder.
        dimensions: symbolic dimension name to its fixed size, in elements (>= 1).
        shapes: graph input name to its whole fixed shape.
        reference: what the compiled model is compared with beside its source.
        bucket: the manifest lists sizes, and this is the model of some; None: it does not.
        guessed: dimensions and inputs whose sizes `epctx init` guessed; what is built does not
            depend on it.
    """

    name: str
    path: Path
    external_data_dir: Path | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reference: Reference | None = None
    bucket: Bucket | None = None
    guessed: tuple[str, ...] = ()

    @property
    def guesses(self) -> str:
        """The guessed sizes in words: `batch: 1, x: [1, 3, 224, 224]`; empty if none is."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        sizes = {**self.dimensions, **shapes}
        return ", ".join(f"{name}: {sizes[name]}" for name in self.guessed if name in sizes)

    @property
    def as_reference(self) -> ModelSource | None:
        """The reference as a source, with the dimensions and shapes of this one, or its own."""
        other = self.reference
        if other is None:
            return None
        return ModelSource(
            name=self.name,
            path=other.path,
            external_data_dir=other.external_data_dir,
            dimensions=self.dimensions if other.dimensions is None else other.dimensions,
            shapes=self.shapes if other.shapes is None else other.shapes,
        )


class ProviderSpec(Struct, frozen=True, kw_only=True):
    """An entry of `execution_providers`: which EP, and its options.

    Attributes:
        alias: the manifest's key.
        provider: ONNX Runtime's name of the EP.
        options: provider options, validated against the EP's option schema and converted to what
            the EP is given (schemas/providers/README.md, "Types"); paths are absolute.
        path_options: the options that are paths; their content enters the key, not the path.
        allow_unknown_options: options outside the schema were let through on purpose.
    """

    alias: str
    provider: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    path_options: tuple[str, ...] = ()
    allow_unknown_options: bool = False


Level = Literal["none", "basic", "extended", "explicit"]


class OptimizeSettings(Struct, frozen=True, kw_only=True):
    """`optimize`: a level, or an explicit list of passes and levels (`level` is "explicit")."""

    level: Level = "basic"
    passes: tuple[str, ...] = ()


class Calibration(Struct, frozen=True, kw_only=True):
    """`quantize.calibration`: the samples that ranges are found with.

    Attributes:
        files: `.npz` or ONNX `.pb` files, absolute, a sample each.
        count: how many samples at most, the first ones; None: all files, or 8 random ones.
        random: samples are generated.
    """

    files: tuple[Path, ...] = ()
    count: int | None = None
    random: bool = False


class TensorOverride(Struct, frozen=True, kw_only=True):
    """`quantize.overrides` of one tensor; None: as every other. `range`: [lowest, highest]."""

    type: str | None = None
    symmetric: bool | None = None
    range: tuple[float, float] | None = None


class WeightOnly(Struct, frozen=True, kw_only=True):
    """`quantize.weight_only`: weights of `bits` bits each, `block_size` of them with one scale."""

    bits: Literal[4, 8] = 4
    block_size: int = 32


class QuantizeSettings(Struct, frozen=True, kw_only=True):
    """`quantize`: how float models become quantized ones. None: what the preset says.

    Attributes:
        preset: whose settings; None: of the group's first EP.
        activations, weights: integer types, as numpy names them (and int4, uint4).
        per_channel: a scale for each channel of a weight.
        symmetric: ranges are the same on both sides of zero.
        method: how ranges come from samples.
        exclude_op_types: op types of the default domain that stay float.
        exclude_nodes: glob patterns of names of nodes that stay float.
        range_floor: the least value of a range: what is below are masks; None: no floor.
        overrides: by name of the tensor.
        weight_only: weights of MatMul in blocks of few bits; without samples nothing else is
            quantized. None: as every other weight.
        tolerance: how far the quantized model may be from the float one.
    """

    preset: Preset | None = None
    activations: str | None = None
    weights: str | None = None
    per_channel: bool | None = None
    symmetric: bool | None = None
    method: Literal["minmax", "entropy", "percentile"] = "minmax"
    calibration: Calibration = field(default_factory=Calibration)
    exclude_op_types: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    range_floor: float | None = None
    overrides: Mapping[str, TensorOverride] = field(default_factory=dict)
    weight_only: WeightOnly | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def calibrated(self) -> bool:
        """Activations are quantized, too, for which ranges are needed."""
        return self.weight_only is None or self.calibration != Calibration()


class PartitionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`partition`: what the partitioner must honour. The excluded are sets: sorted, each once.

    Attributes:
        exclude_op_types: op types kept off every EP (`Op` of the default domain, or `domain::Op`).
        exclude_nodes: glob patterns of node names kept off every EP.
        min_nodes: smallest partition, in nodes.
        require_coverage: least share of the model's nodes on EPs, 0 to 1; None: not asked.
        max_partitions: most partitions in one model; None: not asked.
    """

    exclude_op_types: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    min_nodes: int = 1
    require_coverage: float | None = None
    max_partitions: int | None = None

    def __post_init__(self) -> None:
        for name in ("exclude_op_types", "exclude_nodes"):
            force_setattr(self, name, tuple(sorted(set(getattr(self, name)))))


class CompileMemory(Struct, frozen=True, kw_only=True):
    """Peak memory of a compile, in bytes, as it was measured: a constant, and so much a weight.

    Attributes:
        measured_on: the version of the EP.
        base: without any weight.
        first: bytes a weight, by its kind: float, integer or 4-bit.
        further: bytes a weight for each further model that shares the context, likewise.
    """

    measured_on: str
    base: int
    first: Mapping[str, float]
    further: Mapping[str, float]

    def of(self, models: Sequence[Mapping[str, int]]) -> int:
        """Return the bytes that the compile of models into one context takes.

        Args:
            models: of each, how many weights it has, by kind.
        """
        rates = [self.first, *[self.further] * (len(models) - 1)]
        pairs = zip(rates, models, strict=True)
        needed = sum(rate[kind] * each[kind] for rate, each in pairs for kind in each)
        return self.base + round(needed)


class Pieces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`partition.pieces`: where each model is cut; exactly one attribute is set.

    Attributes:
        max_memory: bytes that the compile of one piece may take.
        count: number of pieces.
        at: values of the first model after whose nodes the cuts come.
    """

    max_memory: int | None = None
    count: int | None = None
    at: tuple[str, ...] = ()


class VerifyInputs(Struct, frozen=True, kw_only=True):
    """`verify.inputs`: seeded random inputs, or files.

    Attributes:
        seed: seed of the generator.
        count: how many input sets.
        ranges: graph input name to (low, high), both inclusive.
        dimensions: sizes of dimensions that a model leaves open, by name: of the first set of
            sizes, of the second, ...
        files: `.npz` or ONNX `.pb` files, absolute; when given, nothing is generated.
    """

    seed: int = 0
    count: int = 1
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    dimensions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    @property
    def sets(self) -> int:
        """Number of input sets."""
        return len(self.files) or self.count


class VerifySettings(Struct, frozen=True, kw_only=True):
    """`verify`: how numbers are checked.

    Attributes:
        budget: in seconds, for all numbers of a group; None: no limit.
        allow_nonfinite: the source may give NaN and infinities on inputs that are read from files.
        require: checks whose "not run" is a failure.
    """

    inputs: VerifyInputs = field(default_factory=VerifyInputs)
    tolerance: Tolerance = field(default_factory=Tolerance)
    numbers: Literal["full", "generating", "off"] = "full"
    budget: float | None = 300.0
    allow_nonfinite: bool = False
    require: tuple[Requirement, ...] = ()


class ExternalInitializers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`external_initializers`: `file` may hold `{model}`; tensors of >= `size_threshold` bytes."""

    file: str
    size_threshold: int = 0


class ModelGroup(Struct, frozen=True, kw_only=True):
    """Models built with the same EPs, embed mode and prefix, in one output folder.

    Attributes:
        pieces: `partition.pieces`; None if each model is compiled whole.
    """

    name: str
    models: tuple[ModelSource, ...]
    execution_providers: tuple[ProviderSpec, ...] = ()
    sharing_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    embed_mode: Literal[0, 1] = 0
    node_name_prefix: str = ""
    optimize: OptimizeSettings = field(default_factory=OptimizeSettings)
    quantize: QuantizeSettings | None = None
    partition: PartitionSettings = field(default_factory=PartitionSettings)
    pieces: Pieces | None = None
    session_options: Mapping[str, str] = field(default_factory=dict)
    external_initializers: ExternalInitializers | None = None
    verify: VerifySettings = field(default_factory=VerifySettings)
    timeout: float | None = None

    @property
    def preset(self) -> Preset:
        """Whose settings its models are quantized with."""
        if self.quantize is not None and self.quantize.preset is not None:
            return self.quantize.preset
        first = self.execution_providers[0].provider if self.execution_providers else DEFAULT_EP
        return PRESETS.get(first, "cpu")


PRESETS: Final[Mapping[str, Preset]] = {
    "QNNExecutionProvider": "qnn",
    "OpenVINOExecutionProvider": "openvino",
}
"""By EP; of every other one: cpu."""


class PartOutput(Struct, frozen=True, kw_only=True):
    """An output of a part of a composition."""

    part: str
    output: str


class CompositionPart(Struct, frozen=True, kw_only=True):
    """A model of a group as a part of a composition.

    Attributes:
        name: the manifest's key, in messages.
        group: the model group that builds the model.
        model: a key of `models`.
        prefix: before its names of nodes, values and files.
        links: input to the output of a part before that feeds it; only what the manifest says.
        inputs: input to the composition's input that feeds it; only what the manifest says.
    """

    name: str
    group: str
    model: str
    prefix: str = ""
    links: Mapping[str, PartOutput] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)


class Composition(Struct, frozen=True, kw_only=True):
    """EPContext models joined into one (the design's "merge and interconnect").

    Attributes:
        name: of the folder and the model.
        parts: in the order in which they run.
        outputs: the composition's outputs by name; None: all that no part takes.
        embed_mode: None: as each part's group has it.
        verify: only `inputs`, `tolerance`, `require`, and `numbers` full or off.
    """

    name: str
    parts: tuple[CompositionPart, ...]
    outputs: Mapping[str, PartOutput] | None = None
    embed_mode: Literal[0, 1] | None = None
    verify: VerifySettings = field(default_factory=VerifySettings)

    @property
    def groups(self) -> tuple[str, ...]:
        """The model groups of its parts, each once."""
        return tuple(dict.fromkeys(part.group for part in self.parts))


Written = Mapping[str, Any]
"""A part of a manifest as JSON has it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A named variation, with every group as it is built for it.

    Attributes:
        compositions: those of which it builds every part.
        written: by group or composition what the manifest says of it, as a manifest of it alone
            would, defaults below and the target's changes above.
    """

    name: str
    groups: tuple[ModelGroup, ...]
    compositions: tuple[Composition, ...] = ()
    written: Mapping[str, Written] = dataclasses.field(default_factory=dict, compare=False)


GENAI_CONFIG = "genai_config.json"
"""The file by which onnxruntime-genai knows a model's folder."""


class GenaiSettings(Struct, frozen=True, kw_only=True):
    """`package.genai`: how onnxruntime-genai loads the package.

    Attributes:
        component: the one component's name.
        source: the folder, absolute, whose configuration and tokenizer are put beside the models,
            made to fit them; None: `files` has what is needed.
        tokenizer: the asset that is the tokenizer; None: it is beside the models.
    """

    component: str = "model"
    source: Path | None = None
    tokenizer: str | None = None


class PackageSettings(Struct, frozen=True, kw_only=True):
    """`package`: what a model package holds beside the models.

    Attributes:
        groups: names of the model groups that are packaged; None: all.
        assets: a file or folder, absolute, by its name; stored once.
        files: files that every variant gets, by their name there: absolute paths in which
            `{target}` and `{group}` stand for the variant's (`file`).
        genai: onnxruntime-genai is to load it; None: it need not.
    """

    version: str | None = None
    description: str | None = None
    groups: tuple[str, ...] | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    genai: GenaiSettings | None = None

    def holds(self, group: str) -> bool:
        """Whether a model group is packaged."""
        return self.groups is None or group in self.groups

    def file(self, name: str, *, target: str, group: str) -> Path:
        """Where the file `name` of a variant comes from."""
        return Path(filled(self.files[name].as_posix(), target=target, group=group))


def filled(path: str, *, target: str, group: str) -> str:
    """A path of `package.files` for one variant."""
    return path.replace("{target}", target).replace("{group}", group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole manifest, resolved.

    Attributes:
        path: the file, absolute.
        sha256: of the bytes that were parsed, in hex: the file may be another by now.
    """

    name: str
    path: Path
    targets: tuple[Target, ...]
    package: PackageSettings = dataclasses.field(default_factory=PackageSettings)
    sha256: str = dataclasses.field(default="", compare=False)
