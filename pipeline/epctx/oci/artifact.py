"""The manifests of artifacts: always the same bytes for the same files; untrusted when read.

A package is a CNCF ModelPack (model-spec 0.0.7). A layer is an unpacked file; its path is in two
annotations, since foreign clients read one or the other. The manifest has no time, host or user.
The signature and the attestation are artifacts of their own that refer to it.
https://github.com/modelpack/model-spec, https://github.com/opencontainers/image-spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from epctx import codec, limits
from epctx.files import digest as digests
from epctx.files import filenames, outputs, paths
from epctx.files.digest import Digest
from epctx.files.filenames import fold

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
MODEL: Final = "application/vnd.cncf.model.manifest.v1+json"
CONFIG: Final = "application/vnd.cncf.model.config.v1+json"
SIGNATURE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
ATTESTATION: Final = "application/vnd.in-toto+json"
ATTESTATION_FILES: Final = (".intoto.json", ".intoto.jsonl")
"""Endings of the names of attestations, which lie beside the package."""
PATH: Final = "org.cncf.model.filepath"
TITLE: Final = "org.opencontainers.image.title"
_KIND: Final = "application/vnd.cncf.model.{}.v1.raw"
_RAW: Final = frozenset(
    _KIND.format(each) for each in ("weight", "weight.config", "doc", "code", "dataset")
)
_CONFIGURES: Final = re.compile(r"SHA256SUMS|.*\.(json|jinja|model|txt|ya?ml)", re.IGNORECASE)
_DOCUMENTS: Final = re.compile(r"(LICENSE|NOTICE|README).*|.*\.md", re.IGNORECASE)


class Damaged(Exception):
    """A manifest cannot be decoded, or contradicts itself; the text is one clause."""


class Descriptor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Description of a blob or of another manifest, in the words of its JSON."""

    mediaType: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifactType: str | None = None


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A manifest, in the words of its JSON."""

    schemaVersion: int
    mediaType: str | None = None
    artifactType: str | None = None
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None


class Index(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """List of the manifests that refer to a manifest, in the words of its JSON."""

    schemaVersion: int
    mediaType: str | None = None
    manifests: tuple[Descriptor, ...] = ()


class Blob(Struct, frozen=True, kw_only=True):
    """Content by its SHA-256, `size` in bytes."""

    digest: Digest
    size: int


def blob_of(content: bytes) -> Blob:
    """Return the blob with this content."""
    return Blob(digest=digests.of_bytes(content, "sha256"), size=len(content))


NOTHING: Final = b"{}"
"""Configuration of an artifact without one."""


class Artifact(Struct, frozen=True, kw_only=True):
    """Content of a push: a manifest, and the configuration that it names."""

    manifest: bytes
    config: bytes

    @property
    def digest(self) -> Digest:
        """Digest of the manifest: the artifact's name."""
        return digests.of_bytes(self.manifest, "sha256")


def package(files: Mapping[str, Blob], *, name: str | None = None) -> Artifact:
    """Make the artifact of a package.

    Args:
        files: every file of the package, by path, with `/`.
        name: name that the package gives itself; None if it has no name.
    """
    listed = [(path, files[path]) for path in sorted(files, key=str.encode)]
    config = digests.canonical_json(
        {
            "config": {"format": "onnx"},
            "descriptor": {} if name is None else {"name": name},
            "modelfs": {"type": "layers", "diffIds": [str(each.digest) for _, each in listed]},
        }
    )
    layers = (_descriptor(_kind(path), each, {PATH: path, TITLE: path}) for path, each in listed)
    described = _descriptor(CONFIG, blob_of(config))
    return Artifact(manifest=_encoded(MODEL, described, layers), config=config)


def referrer(kind: str, name: str, content: bytes, subject: Descriptor) -> Artifact:
    """Make the artifact of a file, such as a signature, about another artifact.

    Args:
        kind: media type of the file and the artifact.
        name: name of the file.
        subject: the manifest that the file is about.
    """
    layer = _descriptor(kind, blob_of(content), {TITLE: name})
    config = _descriptor(EMPTY, blob_of(NOTHING))
    return Artifact(manifest=_encoded(kind, config, [layer], subject), config=NOTHING)


def descriptor(content: bytes, *, artifact_type: str | None = None, name: str = "") -> Descriptor:
    """Describe a manifest. `name`: name of its only file; empty if it has several."""
    annotations = {TITLE: name} if name else {}
    described = _descriptor(MANIFEST, blob_of(content), annotations)
    return msgspec.structs.replace(described, artifactType=artifact_type)


def index(manifests: Iterable[Descriptor]) -> bytes:
    """Encode the index of manifests, in the given order."""
    listed = Index(schemaVersion=2, mediaType=INDEX, manifests=tuple(manifests))
    return digests.canonical_json(msgspec.to_builtins(listed))


def fallback(subject: Digest) -> str:
    """Return the tag of a manifest's referrers index, for registries without a Referrers API."""
    return f"sha256-{subject.hex}"


def replaces(new: Descriptor, old: Descriptor) -> bool:
    """Return whether a file replaces another of the same kind and name in such an index."""
    names = (each.annotations.get(TITLE) for each in (new, old))
    return new.artifactType == old.artifactType and len(set(names)) == 1


def read(content: bytes) -> Manifest:
    """Decode an untrusted manifest. Raises Damaged."""
    try:
        manifest = codec.decode(content, Manifest)
    except msgspec.MsgspecError as error:
        raise Damaged("is not the manifest of an artifact") from error
    if manifest.schemaVersion != 2 or manifest.mediaType not in (None, MANIFEST):
        raise Damaged("is not the manifest of an artifact")
    if len(manifest.layers) > limits.REGISTRY_FILES.value:
        raise Damaged(f"lists more than {limits.REGISTRY_FILES}")
    return manifest


def read_index(content: bytes) -> tuple[Descriptor, ...]:
    """Decode an untrusted index, and return its manifests. Raises Damaged."""
    try:
        listed = codec.decode(content, Index)
    except msgspec.MsgspecError as error:
        raise Damaged("is not a list of its referrers") from error
    if listed.schemaVersion != 2 or len(listed.manifests) > limits.REGISTRY_REFERRERS.value:
        raise Damaged(f"is not a list of its referrers, of at most {limits.REGISTRY_REFERRERS}")
    return listed.manifests


def blob(described: Descriptor) -> Blob:
    """Return the blob of a descriptor. Raises Damaged if no such blob can exist."""
    try:
        sha256 = digests.parsed(described.digest, "sha256")
        if not 0 <= described.size <= limits.FILE_BYTES.value:
            raise ValueError(described.size)
        return Blob(digest=sha256, size=described.size)
    except ValueError:
        raise Damaged("lists a file with an impossible size or digest") from None


def files(manifest: Manifest) -> dict[str, Blob]:
    """Return the files of a package, by path, also of a foreign one with such layers.

    Raises:
        Damaged: the artifact is not a package, or a path leads out of it or occurs twice.
    """
    if manifest.artifactType not in (None, MODEL):
        raise Damaged(f"is an artifact of another type, {manifest.artifactType[:100]!r}")
    blobs: dict[str, Blob] = {}
    for layer in manifest.layers:
        if layer.mediaType not in _RAW:
            raise Damaged(f"has a layer that is not a plain file: {layer.mediaType[:100]!r}")
        path = _path(layer)
        if path in blobs:
            raise Damaged(f"lists {path[:100]!r} twice")
        blobs[path] = blob(layer)
    _refuse_collisions(blobs)
    if not blobs:
        raise Damaged("has no files")
    return blobs


def attached(manifest: Manifest, subject: Digest) -> tuple[str, Blob] | None:
    """Return name and blob of a file about an artifact; None if packages have no such file.

    Raises:
        Damaged: the file is too large, or no such blob can exist.
    """
    about = manifest.subject is not None and manifest.subject.digest == str(subject)
    if not about or len(manifest.layers) != 1:
        return None
    (layer,) = manifest.layers
    name = layer.annotations.get(TITLE, "")
    attests = manifest.artifactType == ATTESTATION and name.endswith(ATTESTATION_FILES)
    signs = manifest.artifactType == SIGNATURE and name == outputs.SIGNATURE
    if not (attests or signs) or filenames.problem(name):
        return None
    content = blob(layer)
    if content.size > limits.REGISTRY_ATTACHED_BYTES.value:
        raise Damaged(f"has a {name} of more than {limits.REGISTRY_ATTACHED_BYTES}")
    return name, content


def _path(layer: Descriptor) -> str:
    path = layer.annotations.get(PATH) or layer.annotations.get(TITLE, "")
    if not paths.is_plain(path) or max(map(len, path.encode().split(b"/"))) > 255:
        raise Damaged(f"has a path that is not valid, or leads out of the package: {path[:100]!r}")
    return path


def _refuse_collisions(names: Iterable[str]) -> None:
    """Raise Damaged if two paths are one file on some system, or a file is another's folder."""
    folded = {fold(path): path for path in names}
    folders = {parent for path in folded for parent in _parents(path)}
    if len(folded) < len(list(names)) or folders & folded.keys():
        raise Damaged("has two files with one path")


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    if _DOCUMENTS.fullmatch(name):
        return _KIND.format("doc")
    return _KIND.format("weight.config" if _CONFIGURES.fullmatch(name) else "weight")


def _descriptor(
    kind: str, content: Blob, annotations: Mapping[str, str] | None = None
) -> Descriptor:
    return Descriptor(
        mediaType=kind,
        digest=str(content.digest),
        size=content.size,
        annotations=annotations or {},
    )


def _encoded(
    kind: str,
    config: Descriptor,
    layers: Iterable[Descriptor],
    subject: Descriptor | None = None,
) -> bytes:
    manifest = Manifest(
        schemaVersion=2,
        mediaType=MANIFEST,
        artifactType=kind,
        config=config,
        layers=tuple(layers),
        subject=subject,
    )
    return digests.canonical_json(msgspec.to_builtins(manifest))
