"""Types of the lock: sources, toolchain and outputs of a build (design section 9).

Portable between machines: paths are relative to the manifest, and there is no host name, user or
time. What bytes depend on of the host is in `host` of an execution provider, or in `hosts`; `cpus`
tells where the binaries of real EPs were made, whether that matters to them or not.
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

    As in the key: see epctx.keys.records.ProviderRecord.
    """

    code: str
    host: Mapping[str, str]
    toolchain: Mapping[str, str]


class LockedProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An EP of a group: `provider` names its entry in `execution_providers` of the lock.

    Of options that are paths, the digest of their content.
    """

    options: Mapping[str, OptionValue]
    provider: str


class LockedModel(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A model.

    Attributes:
        data: its external data files, by their locations in it: paths of `sources`.
        dimensions, shapes: as in the manifest.
        key: of its optimize action.
        optimized: digest of the optimized graph and weights.
        calibration: the name of its ranges in the file of `ranges`; None: it has none.
        quantized: digest of the quantized model's file; None: it is not quantized.
        source: the model file: a path of `sources`.
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
        cpu: where a real EP compiled it: a name of `cpus`; None: only EPs that are the same
            everywhere did.
        key: of its compile action.
        models: in the sharing group's order.
        outputs: its files, by name.
        sharing: the sharing group; None: one model that shares with nobody.
    """

    cpu: str | None
    key: str
    models: tuple[str, ...]
    outputs: Mapping[str, LockedFile]
    sharing: str | None


class LockedPieces(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session group in pieces.

    Attributes:
        at: where its first model is cut, as `partition.pieces.at` names it.
        cut: the key of that; another one may come to the same.
        keys: of the compile of each piece.
    """

    at: tuple[str, ...]
    cut: str
    keys: tuple[str, ...]


class LockedGroup(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A model group for one target: every setting that can change bytes, and what came out.

    Attributes:
        passes: of `optimize: <level>`, explicit ones only.
        passes_of_others: those of other packages: name to package, version, digest.
        session_groups: by their first model.
        quantize: of the manifest, with the preset, and the samples' files in their order; None: it
            is not quantized.
        asked_pieces: `partition.pieces` of the manifest.
        pieces: session groups in pieces, by their first model.
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
        inputs: input to the composition's input that feeds it.
        links: input to `part.output` that feeds it.
    """

    group: str
    inputs: Mapping[str, str]
    links: Mapping[str, str]
    model: str
    prefix: str


class LockedComposition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A composition for one target: every setting that can change bytes, and what came out.

    Attributes:
        asked: the outputs that the manifest asks for, as `part.output`; None: all that are free.
        order: its parts in the order in which they run.
        outputs: every file of its folder but SHA256SUMS, by name.
        parts: by name.
    """

    asked: Mapping[str, str] | None
    embed_mode: Literal[0, 1] | None
    order: tuple[str, ...]
    outputs: Mapping[str, LockedFile]
    parts: Mapping[str, LockedPart]


class LockedRuntime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of an EP in a package, by which ONNX Runtime selects it.

    Attributes:
        device: cpu, gpu or npu; None: whatever the EP has.
        native: ONNX Runtime itself has the EP.
        options: the provider options of a session.
        sources: values of a node's `source` that it accepts, sorted.
    """

    device: str | None
    native: bool
    options: Mapping[str, str]
    sources: tuple[str, ...]


class LockedVariant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group for one target in a package.

    Attributes:
        execution_providers: in priority order: names of the package's `execution_providers`.
        files: what the manifest puts beside its models, by name.
        group: `<target>/<group>`.
        models: in the manifest's order, which is that of the components.
    """

    execution_providers: tuple[str, ...]
    files: Mapping[str, LockedFile]
    group: str
    models: tuple[str, ...]


class LockedPackage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a package besides the groups; every byte of it follows from the lock.

    Attributes:
        assets: the manifest's, by name: each file by its path in the asset.
        component: the one component that onnxruntime-genai reads; None: one for each model.
        execution_providers: by ONNX Runtime's name; what else is said of one EP is `name#2`.
        variants: in the order in which ONNX Runtime tries them.
        description, version: as in the manifest.
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
        compositions: the outputs of each by `<target>/<composition>` and name.
        execution_providers: of each EP whose bytes depend on the host: `host` of LockedToolchain.
        golden: as in Lock.
        groups: the session groups of each, by `<target>/<group>`, as in LockedGroup.
    """

    compositions: Mapping[str, Mapping[str, LockedFile]]
    execution_providers: Mapping[str, Mapping[str, str]]
    golden: Mapping[str, Mapping[str, LockedFile]]
    groups: Mapping[str, Mapping[str, LockedSession]]


class Lock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole lock; see epctx.lockfile.hosts for one of several kinds of host.

    Attributes:
        name: the manifest's.
        toolchain: epctx's version, the digests of its sources by action, versions of libraries.
        sources: by path, relative to the manifest's folder, with `/`.
        execution_providers: by ONNX Runtime's name; a second toolchain of one EP is `name#2`.
        cpus: by a name that is a digest of the rest.
        compositions: by `<target>/<composition>`, likewise.
        golden: golden inputs and outputs of a release that was made with `--golden`, by
            `<target>/<group or composition>` and name; SHA256SUMS is not among them.
        groups: by `<target>/<group>`, the folder below `dist/<name>`.
        hosts: by a name that is a digest of the facts, if there are several; then `groups` and
            `compositions` have no outputs that depend on the host, and `host` of EPs is empty.
        lock_version: of the form: 2 with `hosts`, else 1.
        ranges: `<manifest stem>.ranges.json`, which models are quantized with; None: none is.
        oci: the digest of the manifest that `epctx push` makes of the package, `sha256:…`, by the
            kind of host (`hosts`; `any` where nothing depends on it); `epctx package` writes it.
        package: what `epctx package` makes of them; None: nothing is packaged, or the lock is
            of a part of a manifest, or of an older epctx, which said nothing of packages.
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
        found: dict[str, Mapping[str, LockedFile]] = {
            name: group.outputs for name, group in self.groups.items()
        }
        return found | {name: each.outputs for name, each in self.compositions.items()}
