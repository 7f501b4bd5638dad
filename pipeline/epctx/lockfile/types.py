"""Types of the lock: sources, toolchain and outputs of a build (design section 9).

The lock is portable between machines: its paths are relative to the manifest, and it has no host
name, user or time. The host facts that bytes depend on are in `host` of an execution provider, or
in `hosts`. `cpus` lists the CPUs on which real EPs compiled, even if their bytes do not depend on
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from epctx.manifest import ExternalInitializers, OptionValue, PartitionSettings, Pieces
from epctx.providers.onnxruntime.host import Cpu

VERSION = 2


class LockedFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output; `size` in bytes, `sha256` in hex."""

    sha256: str
    size: int


class LockedSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input file; `size` in bytes, `digest` as `blake3:<hex>`."""

    digest: str
    size: int


class LockedToolchain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An execution provider's code, toolchain, and the host facts that its bytes depend on.

    The fields are those of the key: see epctx.keys.toolchain.ProviderRecord.
    """

    code: str
    host: Mapping[str, str]
    toolchain: Mapping[str, str]


class LockedProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An EP of a group: `provider` names its entry in `execution_providers` of the lock.

    A path-valued option has the digest of its content.
    """

    options: Mapping[str, OptionValue]
    provider: str


class LockedModel(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A model.

    Attributes:
        data: paths of its external data files in `sources`, by location in the model.
        dimensions: sizes of open dimensions, as in the manifest.
        shapes: shapes of inputs, as in the manifest.
        key: key of its optimize action.
        optimized: digest of the optimized graph and weights.
        calibration: name of its ranges in the file of `ranges`; None if it has no ranges.
        quantized: digest of the quantized model's file; None if it is not quantized.
        source: path of the model file in `sources`.
    """

    data: Mapping[str, str]
    dimensions: Mapping[str, int]
    key: str
    optimized: str
    shapes: Mapping[str, tuple[int, ...]]
    source: str
    calibration: str | None = None
    quantized: str | None = None


class LockedSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session group.

    Attributes:
        cpu: name in `cpus` of the CPU on which a real EP compiled it; None if only EPs compiled it
            that are the same everywhere.
        key: key of its compile action; for pieces, of the action that assembles them.
        models: names of its models, in the sharing group's order.
        outputs: its files, by name.
        sharing: name of the sharing group; None for one model that shares with nobody.
    """

    cpu: str | None
    key: str
    models: tuple[str, ...]
    outputs: Mapping[str, LockedFile]
    sharing: str | None


class LockedPieces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session group in pieces.

    Attributes:
        at: cut points of its first model, as in `partition.pieces.at`.
        cut: key of the cut action; an action with another key may give the same cut.
        keys: key of the compile action of each piece.
    """

    at: tuple[str, ...]
    cut: str
    keys: tuple[str, ...]


class LockedGroup(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A model group for one target: every setting that can change bytes, and what came out.

    Attributes:
        passes: passes that the manifest lists; those of the level `optimize` are not repeated.
        passes_of_others: package, version and code digest of the passes of other packages, by name
            of the pass.
        session_groups: session groups, by the name of their first model.
        quantize: `quantize` of the manifest, with the preset, and the sample files in their order;
            None if the group is not quantized.
        asked_pieces: `partition.pieces` of the manifest.
        pieces: session groups in pieces, by the name of their first model.
    """

    embed_mode: Literal[0, 1]
    execution_providers: tuple[LockedProvider, ...]
    external_initializers: ExternalInitializers | None
    models: Mapping[str, LockedModel]
    node_name_prefix: str
    optimize: str
    partition: PartitionSettings
    passes: tuple[str, ...]
    passes_of_others: Mapping[str, str]
    session_groups: Mapping[str, LockedSession]
    session_options: Mapping[str, str]
    quantize: Mapping[str, Any] | None = None
    asked_pieces: Pieces | None = None
    pieces: Mapping[str, LockedPieces] = field(default_factory=dict)

    @property
    def outputs(self) -> dict[str, LockedFile]:
        """Every file of the group's folder but SHA256SUMS, by name."""
        return {
            name: file
            for session in self.session_groups.values()
            for name, file in session.outputs.items()
        }


class LockedPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a composition, as the manifest has it.

    Attributes:
        inputs: the composition's input that feeds an input of the part, by input of the part.
        links: the `part.output` that feeds an input of the part, by input of the part.
    """

    group: str
    inputs: Mapping[str, str]
    links: Mapping[str, str]
    model: str
    prefix: str


class LockedComposition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A composition for one target: every setting that can change bytes, and what came out.

    Attributes:
        asked: outputs that the manifest asks for, as `part.output`, by name; None for all outputs
            that feed no part.
        order: its parts in the order in which they run.
        outputs: every file of its folder but SHA256SUMS, by name.
        parts: its parts, by name.
    """

    asked: Mapping[str, str] | None
    embed_mode: Literal[0, 1] | None
    order: tuple[str, ...]
    outputs: Mapping[str, LockedFile]
    parts: Mapping[str, LockedPart]


class LockedRuntime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of an EP in a package, by which ONNX Runtime selects it.

    Attributes:
        device: cpu, gpu or npu; None for any device that the EP has.
        native: whether ONNX Runtime itself has the EP.
        options: provider options of a session.
        sources: values of a node's `source` that the EP accepts, sorted.
    """

    device: str | None
    native: bool
    options: Mapping[str, str]
    sources: tuple[str, ...]


class LockedVariant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group for one target in a package.

    Attributes:
        execution_providers: names in `execution_providers` of the package, in priority order.
        files: files that the manifest puts beside its models, by name.
        group: `<target>/<group>`.
        models: names of its models, in the manifest's order, which is also that of the components.
    """

    execution_providers: tuple[str, ...]
    files: Mapping[str, LockedFile]
    group: str
    models: tuple[str, ...]


class LockedPackage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a package besides the groups; every byte of it follows from the lock.

    Attributes:
        assets: files of the manifest's assets, by name of the asset and path in it.
        component: name of the only component, which onnxruntime-genai reads; None if each model has
            a component.
        execution_providers: entries of EPs, by ONNX Runtime's name; a second entry of one EP is
            `name#2`.
        variants: variants of the package, in the order in which ONNX Runtime tries them.
        description: description in the manifest; None if it has none.
        version: version in the manifest; None if it has none.
    """

    assets: Mapping[str, Mapping[str, LockedFile]]
    component: str | None
    description: str | None
    execution_providers: Mapping[str, LockedRuntime]
    variants: tuple[LockedVariant, ...]
    version: str | None


class LockedHost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs on one kind of host, as far as they depend on the host.

    Attributes:
        compositions: outputs of compositions, by `<target>/<composition>` and name.
        execution_providers: `host` of LockedToolchain for each EP whose bytes depend on the host,
            by the name of the EP.
        golden: as in Lock.
        groups: session groups of model groups, by `<target>/<group>`, as in LockedGroup.
    """

    compositions: Mapping[str, Mapping[str, LockedFile]]
    execution_providers: Mapping[str, Mapping[str, str]]
    golden: Mapping[str, Mapping[str, LockedFile]]
    groups: Mapping[str, Mapping[str, LockedSession]]


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole lock; see epctx.lockfile.hosts for one of several kinds of host.

    Attributes:
        name: name of the manifest.
        toolchain: version of epctx, digest of its sources for each action, versions of libraries.
        sources: input files, by path relative to the manifest's folder, with `/`.
        execution_providers: toolchains of EPs, by ONNX Runtime's name; a second toolchain of one EP
            is `name#2`.
        cpus: CPUs, by a name that is a digest of their facts.
        compositions: compositions, by `<target>/<composition>`, the folder below `dist/<name>`.
        golden: golden inputs and outputs of a release that was made with `--golden`, without
            SHA256SUMS, by `<target>/<group or composition>` and name.
        groups: model groups, by `<target>/<group>`, the folder below `dist/<name>`.
        hosts: outputs for each kind of host, if there are several, by a name that is a digest of
            the facts. In this case `groups` and `compositions` have no outputs that depend on the
            host, and `host` of each EP is empty.
        lock_version: version of the format: 2 with `hosts`, else 1.
        ranges: `<manifest stem>.ranges.json`, the ranges that models are quantized with; None if no
            model needs ranges.
        oci: digest of the OCI manifest that `epctx push` makes of the package, `sha256:…`, by the
            name in `hosts`, or by `any` if nothing depends on the host. `epctx package` writes it.
        package: content of the package that `epctx package` makes; None if nothing is packaged, or
            if the lock is of a part of a manifest, or of an older epctx without this field.
    """

    compositions: Mapping[str, LockedComposition] = field(default_factory=dict)
    cpus: Mapping[str, Cpu] = field(default_factory=dict)
    execution_providers: Mapping[str, LockedToolchain]
    golden: Mapping[str, Mapping[str, LockedFile]] = field(default_factory=dict)
    groups: Mapping[str, LockedGroup]
    hosts: Mapping[str, LockedHost] = field(default_factory=dict)
    lock_version: Literal[1, 2] = 1
    name: str
    oci: Mapping[str, str] = field(default_factory=dict)
    package: LockedPackage | None = None
    ranges: LockedFile | None = None
    sources: Mapping[str, LockedSource]
    toolchain: Mapping[str, str]

    @property
    def folders(self) -> dict[str, Mapping[str, LockedFile]]:
        """Files of each folder below `dist/<name>`, without SHA256SUMS, by name."""
        folders: dict[str, Mapping[str, LockedFile]] = {
            name: group.outputs for name, group in self.groups.items()
        }
        return folders | {name: each.outputs for name, each in self.compositions.items()}
