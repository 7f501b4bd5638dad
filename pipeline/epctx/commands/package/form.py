"""manifest.json of a model package, as ONNX Runtime 1.31.1 reads it.

Structs and not dataclasses: what is not said must not be written, and a key that is not known is an
error here as it is there. Source: model_package/README.md and
onnxruntime/core/session/model_package/README.md of onnxruntime; quirks were measured on 1.31.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from epctx import codec

MANIFEST: Final = "manifest.json"
ASSETS: Final = "shared_assets"
SCHEMA_VERSION: Final = "1.0"
DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
CONTEXT_FILE: Final = "ep.context_file_path"
PATHS: Final = (DATA_FOLDER, CONTEXT_FILE, "ep.context_source_model_path")
"""Session options that are paths: resolved from the variant's folder, or into an asset."""
FORBIDDEN: Final = (
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "session.enable_profiling",
    "session.optimized_model_filepath",
)
"""Session options with which the reader opens no package."""
FILES: Final = (
    "session.moe.offload.",
    "session.moe_expert_counter_state_file",
    "session.node_partition_config_file",
)
"""Beginnings of session options with which a session reads or writes files anywhere. The reader of
ONNX Runtime 1.31.1 and 1.32.0 takes them from a package."""
DEVICES: Final = ("cpu", "gpu", "npu")

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What `additional_metadata` may be."""
NOTHING: Final = msgspec.Raw(b"null")


class OrtInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`executor_info.ort`: what ONNX Runtime's session is made with. Unknown keys are allowed."""

    model_file: str | None = None
    session_options: Mapping[str, str] = {}
    provider_options: Mapping[str, str] = {}


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`executor_info` by namespace; a text is the path of a file that holds the object.

    Other executors' namespaces are not looked at.
    """

    ort: OrtInfo | str | None = None


class Variant(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One build of a component.

    Attributes:
        variant_directory: from the component's folder; None: the variant's name.
        ep: ONNX Runtime's whole name; without one it is never selected.
        device: cpu, gpu or npu; never with the CPU EP, which is not selected then (1.31.1).
        compatibility_string: the EP's, as the model's metadata has it.
    """

    variant_directory: str | None = None
    ep: str | None = None
    device: str | None = None
    compatibility_string: str | None = None
    executor_info: ExecutorInfo | None = None
    additional_metadata: msgspec.Raw = NOTHING


class Component(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A model in its variants; of those that fit as well, the first is selected."""

    component_name: str | None = None
    variants: Mapping[str, Variant]
    additional_metadata: msgspec.Raw = NOTHING


class Package(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The whole manifest. A component that is a text is the path of its component.json or folder.

    `schema_version`: "1.0"; the reader takes a bare 1 as well.
    """

    schema_version: str | Literal[1]
    package_name: str | None = None
    package_version: str | None = None
    description: str | None = None
    layout: Literal["portable", "installed"] = "portable"
    components: Mapping[str, Component | str]
    shared_assets: Mapping[str, str] = {}
    additional_metadata: msgspec.Raw = NOTHING


def metadata(value: Json) -> msgspec.Raw:
    """A value of `additional_metadata`."""
    return msgspec.Raw(codec.encode(value))


def encode(package: Package) -> bytes:
    """The bytes of manifest.json: the same for the same package."""
    return codec.encode(package, indent=2) + b"\n"
