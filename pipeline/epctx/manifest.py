"""Types of the manifest: parsed once, frozen, keyword-only. No other module gets the manifest as a
dict.

All values are resolved: defaults < group < target < command line. `parsing.load` makes a `Manifest`
from a file. A new key is a property of `manifest.schema.json` and a field here; if the key can
change the build's output, it is also a field of an action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

DEFAULT_EP: Final = "CPUExecutionProvider"
"""ONNX Runtime's own EP, which runs the nodes that no other EP takes."""
ENTRY_POINTS: Final = "epctx.execution_providers"
"""Group of entry points in which third parties register an EP."""
PLUGIN_LIBRARY: Final = "plugin.library"
"""Option with the library's path, for a plugin EP without a schema."""
Preset = Literal["qnn", "openvino", "cpu"]
"""EP whose settings are used to quantize a model."""
Requirement = Literal["numbers"]
"""Values of `verify.require`: a check that must have run."""
OptionValue = str | int | float | bool | tuple[str, ...]


class Tolerance(Struct, frozen=True, kw_only=True):
    """`verify.tolerance`; a field that is None has the default of the EP and precision.

    Attributes:
        cosine_min: least cosine similarity of an output, -1 to 1.
        max_abs: largest absolute difference, in the output's unit.
        max_rel: largest difference relative to the output's scale: its largest ordinary magnitude.
        sqnr_min: least signal-to-quantization-noise ratio, in decibels.
        top_k_min: minimum share of the decided rows of scores that must have the same largest
            elements, 0 to 1.
        gain_max: largest difference from 1 of an output's gain, over all input sets.
        floor: differences up to this value are not errors, in the output's unit.
        saturates_at: largest number of the type in which the EP computes. Values of larger
            magnitude may become this number or infinity, with their sign.
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
    """`reference` of a model: a model with the intended behaviour, such as the float original of a
    quantized model.

    Attributes:
        path: the `.onnx` file, absolute.
        external_data_dir: as in ModelSource.
        tolerance: allowed difference of the compiled model from the reference; a field that is None
            has the EP's default for quantized models.
        dimensions, shapes: as in ModelSource; None for those of the model.
        of_source: compare the reference with the source as quantized in this build, not with the
            compiled model.
    """

    path: Path
    external_data_dir: Path | None = None
    tolerance: Tolerance = field(default_factory=Tolerance)
    dimensions: Mapping[str, int] | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    of_source: bool = False


class Bucket(Struct, frozen=True, kw_only=True):
    """The manifest model that a bucket belongs to, and the bucket's choice of the listed sizes."""

    model: str
    sizes: Mapping[str, int]


class ModelSource(Struct, frozen=True, kw_only=True):
    """A source model, as the manifest names it.

    Attributes:
        name: the manifest's key; output names derive from it.
        path: the `.onnx` file, absolute.
        external_data_dir: folder of the external data, absolute; None for the model's folder.
        custom_ops: library with kernels of the model's own operators, absolute; None for none.
        dimensions: symbolic dimension name to its fixed size, in elements (>= 1).
        shapes: graph input name to its whole fixed shape.
        reference: further model with which the compiled model is compared, beside its source.
        bucket: set if the manifest lists sizes and this is the model for some of them; else None.
        guessed: dimensions and inputs whose sizes `epctx init` guessed. Does not affect the build's
            output.
    """

    name: str
    path: Path
    external_data_dir: Path | None = None
    custom_ops: Path | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reference: Reference | None = None
    bucket: Bucket | None = None
    guessed: tuple[str, ...] = ()

    @property
    def guesses(self) -> str:
        """The guessed sizes in words, as in `batch: 1, x: [1, 3, 224, 224]`; empty if none is
        guessed.
        """
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        sizes = {**self.dimensions, **shapes}
        return ", ".join(f"{name}: {sizes[name]}" for name in self.guessed if name in sizes)

    @property
    def as_reference(self) -> ModelSource | None:
        """Return the reference as a source, with its own dimensions and shapes, or else this
        model's.
        """
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
        options: provider options, validated against the EP's option schema and converted to the
            types that the EP gets (schemas/providers/README.md, "Types"). Paths are absolute.
        path_options: options that are paths. The cache key contains the file's content, not the
            path.
        allow_unknown_options: accept options outside the schema.
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
    """`quantize.calibration`: samples that determine the ranges.

    Attributes:
        files: `.npz` or ONNX `.pb` files, absolute, one sample per file.
        count: maximum number of samples, the first ones; None for all files, or 8 random samples.
        random: samples are generated.
    """

    files: tuple[Path, ...] = ()
    count: int | None = None
    random: bool = False


class TensorOverride(Struct, frozen=True, kw_only=True):
    """`quantize.overrides` of one tensor; None for the general setting. `range`: [lowest,
    highest].
    """

    type: str | None = None
    symmetric: bool | None = None
    range: tuple[float, float] | None = None


class WeightOnly(Struct, frozen=True, kw_only=True):
    """`quantize.weight_only`: weights of `bits` bits, with one scale per `block_size` weights."""

    bits: Literal[4, 8] = 4
    block_size: int = 32


class QuantizeSettings(Struct, frozen=True, kw_only=True):
    """`quantize`: settings to quantize float models. A field that is None has the preset's value.

    Attributes:
        preset: EP whose settings are used; None for the group's first EP.
        activations, weights: integer types by numpy's names (and int4, uint4).
        per_channel: a scale for each channel of a weight.
        symmetric: ranges are symmetric about zero.
        method: method that computes ranges from samples.
        exclude_op_types: op types of the default domain that stay float.
        exclude_nodes: glob patterns for names of nodes that stay float.
        range_floor: minimum of a range, since lower values are masks; None for no minimum.
        overrides: overrides by tensor name.
        weight_only: quantize the weights of MatMul in blocks of few bits; without samples, only
            these weights are quantized. None to treat them as other weights.
        tolerance: allowed difference of the quantized model from the float model.
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
        """True if activations are quantized too, which needs ranges."""
        return self.weight_only is None or self.calibration != Calibration()


class PartitionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`partition`: constraints of the partitioner. Excluded names are sorted and unique.

    Attributes:
        exclude_op_types: op types kept off every EP (`Op` of the default domain, or `domain::Op`).
        exclude_nodes: glob patterns of node names kept off every EP.
        min_nodes: smallest partition, in nodes.
        require_coverage: minimum share of the model's nodes on EPs, 0 to 1; None for no minimum.
        max_partitions: maximum number of partitions in a model; None for no maximum.
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
    """Measured peak memory of a compile, in bytes: a constant, plus a number of bytes per weight.

    Attributes:
        measured_on: version of the EP.
        base: bytes without any weight.
        first: bytes per weight, by kind: float, integer or 4-bit.
        further: bytes per weight, by kind, for each further model that shares the context.
    """

    measured_on: str
    base: int
    first: Mapping[str, float]
    further: Mapping[str, float]

    def of(self, models: Sequence[Mapping[str, int]]) -> int:
        """Return the bytes that the compile of models into one context takes.

        Args:
            models: for each model, its number of weights by kind.
        """
        rates = [self.first, *[self.further] * (len(models) - 1)]
        pairs = zip(rates, models, strict=True)
        needed = sum(rate[kind] * each[kind] for rate, each in pairs for kind in each)
        return self.base + round(needed)


class Pieces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`partition.pieces`: rule for cutting each model; exactly one attribute is set.

    Attributes:
        max_memory: bytes that the compile of one piece may take.
        count: number of pieces.
        at: values of the first model; each cut is after the node that computes the value.
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
        dimensions: sizes of a model's open dimensions, by name: one size for each set of sizes.
        files: `.npz` or ONNX `.pb` files, absolute; if given, no inputs are generated.
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
    """`verify`: settings for checks of numbers.

    Attributes:
        budget: time for all numbers of a group, in seconds; None for no limit.
        allow_nonfinite: the source may compute NaN and infinities on inputs from files.
        require: checks that fail if they are not run.
    """

    inputs: VerifyInputs = field(default_factory=VerifyInputs)
    tolerance: Tolerance = field(default_factory=Tolerance)
    numbers: Literal["full", "generating", "off"] = "full"
    budget: float | None = 300.0
    allow_nonfinite: bool = False
    require: tuple[Requirement, ...] = ()


class ExternalInitializers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`external_initializers`: `file` may contain `{model}`; applies to tensors of at least
    `size_threshold` bytes.
    """

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
        """EP whose settings are used to quantize the group's models."""
        if self.quantize is not None and self.quantize.preset is not None:
            return self.quantize.preset
        first = self.execution_providers[0].provider if self.execution_providers else DEFAULT_EP
        return PRESETS.get(first, "cpu")


PRESETS: Final[Mapping[str, Preset]] = {
    "QNNExecutionProvider": "qnn",
    "OpenVINOExecutionProvider": "openvino",
}
"""Presets by EP; every other EP has `cpu`."""


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
        prefix: prefix for the model's names of nodes, values and files.
        links: input to the output of an earlier part that feeds it; only links in the manifest.
        inputs: input to the composition's input that feeds it; only inputs in the manifest.
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
        name: name of the folder and the model.
        parts: parts in the order in which they run.
        outputs: the composition's outputs by name; None for all outputs that no part takes.
        embed_mode: None to keep the mode of each part's group.
        verify: only `inputs`, `tolerance`, `require`, and `numbers` full or off.
    """

    name: str
    parts: tuple[CompositionPart, ...]
    outputs: Mapping[str, PartOutput] | None = None
    embed_mode: Literal[0, 1] | None = None
    verify: VerifySettings = field(default_factory=VerifySettings)

    @property
    def groups(self) -> tuple[str, ...]:
        """The model groups of the parts, each once."""
        return tuple(dict.fromkeys(part.group for part in self.parts))


Written = Mapping[str, Any]
"""A part of a manifest as JSON data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A named variation of the build, with every group as built for this target.

    Attributes:
        compositions: compositions of which the target builds every part.
        written: for each group or composition its part of the manifest, as in a manifest for it
            alone, with defaults filled in and the target's changes applied.
    """

    name: str
    groups: tuple[ModelGroup, ...]
    compositions: tuple[Composition, ...] = ()
    written: Mapping[str, Written] = dataclasses.field(default_factory=dict, compare=False)


GENAI_CONFIG = "genai_config.json"
"""File by which onnxruntime-genai recognizes a model's folder."""


class GenaiSettings(Struct, frozen=True, kw_only=True):
    """`package.genai`: settings with which onnxruntime-genai loads the package.

    Attributes:
        component: the one component's name.
        source: folder, absolute, whose configuration and tokenizer are adapted to the models and
            put beside them; None if `files` lists the needed files.
        tokenizer: asset with the tokenizer; None if it is beside the models.
    """

    component: str = "model"
    source: Path | None = None
    tokenizer: str | None = None


class PackageSettings(Struct, frozen=True, kw_only=True):
    """`package`: content of a model package beside the models.

    Attributes:
        groups: names of the model groups to package; None for all.
        assets: a file or folder, absolute, by its name; stored once.
        files: files for every variant, by their name in the variant: absolute paths, in which
            `{target}` and `{group}` stand for the variant's target and group (`file`).
        genai: settings for onnxruntime-genai; None if it does not load the package.
    """

    version: str | None = None
    description: str | None = None
    groups: tuple[str, ...] | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    genai: GenaiSettings | None = None

    def holds(self, group: str) -> bool:
        """Tell whether a model group is packaged."""
        return self.groups is None or group in self.groups

    def file(self, name: str, *, target: str, group: str) -> Path:
        """Return the source path of a variant's file `name`."""
        return Path(filled(self.files[name].as_posix(), target=target, group=group))


def filled(path: str, *, target: str, group: str) -> str:
    """Fill in a path of `package.files` for one variant."""
    return path.replace("{target}", target).replace("{group}", group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole manifest, resolved.

    Attributes:
        path: the file, absolute.
        sha256: digest of the parsed bytes, in hex. The file may have changed since.
    """

    name: str
    path: Path
    targets: tuple[Target, ...]
    package: PackageSettings = dataclasses.field(default_factory=PackageSettings)
    sha256: str = dataclasses.field(default="", compare=False)
