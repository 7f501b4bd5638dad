"""Model package on disk: its JSON, its paths, its shared assets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from epctx import codec
from epctx.files import paths
from epctx.files.digest import Digest
from epctx.files.listing import is_link
from epctx.manifest import GENAI_CONFIG

MANIFEST: Final = "manifest.json"
ASSETS: Final = "shared_assets"
SCHEMA_VERSION: Final = "1.0"
DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
CONTEXT_FILE: Final = "ep.context_file_path"
PATHS: Final = (DATA_FOLDER, CONTEXT_FILE, "ep.context_source_model_path")
"""Session options that are paths, relative to the variant's folder or into an asset."""
FORBIDDEN: Final = (
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "session.enable_profiling",
    "session.optimized_model_filepath",
)
"""Session options that make the package reader refuse a package."""
FILES: Final = (
    "session.moe.offload.",
    "session.moe_expert_counter_state_file",
    "session.node_partition_config_file",
)
"""Prefixes of session options that let a session read or write any file.

The reader of ONNX Runtime 1.31.1 and 1.32.0 accepts them in a package.
"""
DEVICES: Final = ("cpu", "gpu", "npu")

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""Type of `additional_metadata`."""
NOTHING: Final = msgspec.Raw(b"null")


class OrtInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`executor_info.ort`: settings of the ONNX Runtime session. Unknown keys are allowed."""

    model_file: str | None = None
    session_options: Mapping[str, str] = {}
    provider_options: Mapping[str, str] = {}


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`executor_info` by namespace; a string is the path of a file with the object.

    Namespaces of other executors are ignored.
    """

    ort: OrtInfo | str | None = None


class Variant(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One build of a component.

    Attributes:
        variant_directory: path relative to the component's folder; None for the variant's name.
        ep: ONNX Runtime's full name; a variant without an EP is never selected.
        device: cpu, gpu or npu; not set for the CPU EP, because ONNX Runtime 1.31.1 never selects
            such a variant.
        compatibility_string: compatibility string of the EP in the model's metadata.
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
    """Model in several variants; the first of several equally suitable variants is selected."""

    component_name: str | None = None
    variants: Mapping[str, Variant]
    additional_metadata: msgspec.Raw = NOTHING


class Package(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Package manifest. A component given as a string is the path of its component.json or folder.

    `schema_version` is "1.0"; the reader also accepts 1.
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
    """Encode a value for `additional_metadata`."""
    return msgspec.Raw(codec.encode(value))


def encode(package: Package) -> bytes:
    """Encode manifest.json; the same package always gives the same bytes."""
    return codec.encode(package, indent=2) + b"\n"


ASSET_REFERENCE: Final = re.compile(r"sha256:([0-9a-f]{64})(?:/(.*))?", re.DOTALL)
"""`sha256:<hex>`, or a path in that asset; the reader accepts no other spelling."""
ASSET_FOLDER: Final = re.compile(r"sha256-([0-9a-f]{64})")


def asset_folder(asset: Digest) -> str:
    """Return the folder of an asset in its package."""
    return f"{ASSETS}/sha256-{asset.hex}"


COMPONENT: Final = "component.json"


class Unresolved(Exception):
    """A reference in the package cannot be resolved; the message says why."""


class PackagePlaces(Struct, frozen=True, kw_only=True):
    """Resolves references in the package at `root`; results are relative to it, with `/`.

    Attributes:
        overrides: `shared_assets` of the manifest, which map assets to folders.
    """

    root: Path
    overrides: Mapping[str, str]

    def component(self, text: str) -> str:
        """File of an external component, which may be given by its folder.

        Raises:
            Unresolved: the file does not exist.
        """
        path = self.anything("", text)
        if (self.root / path).is_dir():
            path = f"{path}/{COMPONENT}"
        return self.file("", path)

    def folder(self, base: str, text: str) -> str:
        """Folder of a variant; `base` is the component's folder. Raises Unresolved."""
        path = self.anything(base, text)
        if not (self.root / path).is_dir():
            raise Unresolved(f"{text!r} is not a folder")
        return path

    def file(self, base: str, text: str) -> str:
        """Path of a regular file. Raises Unresolved."""
        path = self.anything(base, text)
        reason = paths.missing(self.root, path)
        if reason is not None:
            raise Unresolved(f"{text!r}: {reason}")
        return path

    def anything(self, base: str, text: str) -> str:
        """Path of an existing file or folder, reached without a link. Raises Unresolved."""
        asset = ASSET_REFERENCE.fullmatch(text)
        if asset is not None:
            uri, inner = f"sha256:{asset[1]}", asset[2]
            folder = self.overrides.get(uri) or asset_folder(Digest("sha256", asset[1]))
            joined = folder if inner is None else f"{folder}/{inner}"
        else:
            joined = f"{base}/{text}" if base and paths.objection(text) is None else text
        reason = paths.objection(joined)
        if reason is not None:
            raise Unresolved(f"{text!r}: {reason}")
        path = self.root
        for part in joined.split("/"):
            path = path / part
            try:
                status = path.lstat()
            except (OSError, ValueError):
                raise Unresolved(f"{text!r} does not exist in the package") from None
            if is_link(status):
                raise Unresolved(f"{text!r} passes through a link")
        return path.relative_to(self.root).as_posix()


def is_package(folder: Path) -> bool:
    """Tell whether a folder is, or is meant to be, a model package."""
    return (folder / MANIFEST).is_file() and not (folder / GENAI_CONFIG).is_file()
