"""Projects that are packaged, and what becomes of their packages in other hands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epctx import api
from tests.kit import projects
from tests.kit.projects import Project

CPU = "CPUExecutionProvider"


def package(project: Project) -> dict[str, Any]:
    """Make the package; return its manifest."""
    project.write()
    api.package(project.manifest, out=project.folder / "dist", jobs=2)
    found: dict[str, Any] = json.loads((made(project) / "manifest.json").read_bytes())
    return found


def made(project: Project) -> Path:
    return project.folder / "dist" / "m.ortpackage"


def tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def variants(manifest: dict[str, Any], component: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = manifest["components"][component]["variants"]
    return found


def ort(manifest: dict[str, Any], variant: str, component: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = variants(manifest, component)[variant]["executor_info"]["ort"]
    return found


def with_extras(folder: Path) -> Project:
    """Two targets, a tokenizer of two files, a file for each target."""
    project = projects.make(folder, {"g": ["a"]})
    project.document["targets"] = {"one": {}, "two": {}}
    (folder / "tok" / "merges").mkdir(parents=True)
    (folder / "tok" / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "tok" / "merges" / "a.txt").write_text("a", encoding="utf-8")
    for target in ("one", "two"):
        (folder / f"{target}.txt").write_text(f"for {target}", encoding="utf-8")
    project.document["package"] = {
        "assets": {"tokenizer": "tok"},
        "files": {"readme.txt": "{target}.txt"},
    }
    return project


Damage = Callable[[Path], object]


def edit(change: Callable[[dict[str, Any]], None]) -> Damage:
    """A change of the manifest by someone who knows of SHA256SUMS."""

    def damage(folder: Path) -> None:
        edited(change)(folder)
        resum(folder)

    return damage


def edited(change: Callable[[dict[str, Any]], object]) -> Damage:
    """A change of the manifest, and of nothing else."""

    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        document = json.loads(path.read_bytes())
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return damage


def resum(folder: Path) -> None:
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in sorted(tree(folder) - {"SHA256SUMS"})
    ]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def vary(**change: object) -> Damage:
    return edit(lambda document: variants(document)["one"].update(change))


def options(**change: str) -> Damage:
    return edit(lambda document: ort(document, "one").update(session_options=change))


def flip(folder: Path) -> None:
    path = folder / "one" / "g" / "a_reference.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rename_asset(folder: Path) -> None:
    (asset,) = (folder / "shared_assets").iterdir()
    zeros = f"sha256-{'0' * 64}"
    document = (folder / "manifest.json").read_text(encoding="utf-8")
    asset.rename(asset.with_name(zeros))
    document = document.replace(asset.name.replace("-", ":"), zeros.replace("-", ":"))
    (folder / "manifest.json").write_text(document, encoding="utf-8")
    resum(folder)


def add_asset(folder: Path) -> None:
    digest = hashlib.sha256(f"{hashlib.sha256(b'x').hexdigest()}  x\n".encode()).hexdigest()
    (folder / "shared_assets" / f"sha256-{digest}").mkdir()
    (folder / "shared_assets" / f"sha256-{digest}" / "x").write_bytes(b"x")
    resum(folder)


def add_file(folder: Path) -> None:
    (folder / "x").write_bytes(b"")
    resum(folder)


def link(folder: Path) -> None:
    path = folder / "one" / "g" / "readme.txt"
    path.unlink()
    path.symlink_to(folder / "two" / "g" / "readme.txt")


def without_nodes(document: dict[str, Any]) -> None:
    variants(document)["one"].update(ep=CPU, device=None)


DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "flipped byte": (flip, "integrity/sums", "was changed"),
    "missing": (lambda f: (f / "two/g/readme.txt").unlink(), "integrity/sums", "is missing"),
    "added": (lambda f: (f / "x").write_bytes(b""), "integrity/sums", "is not in SHA256SUMS"),
    "added, resummed": (
        add_file,
        "conformance/unreferenced",
        "nothing in the package refers to it",
    ),
    "asset renamed": (rename_asset, "integrity/assets", "not the one in its name"),
    "asset of nobody": (add_asset, "conformance/unreferenced", "nothing in the package"),
    "link": (link, "conformance/paths", "is a link"),
    "version": (edit(lambda d: d.update(schema_version="2.0")), "conformance/manifest", "2.0"),
    "list": (edit(lambda d: d.update(components=[])), "conformance/manifest", "Expected `object`"),
    "unknown key": (vary(variant_dir="x"), "conformance/manifest", "unknown field `variant_dir`"),
    "no folder": (vary(variant_directory="three/g"), "conformance/paths", "does not exist"),
    "outside": (vary(variant_directory="../x"), "conformance/paths", "it has `..`"),
    "absolute": (vary(variant_directory="/x"), "conformance/paths", "it is absolute"),
    "short name": (vary(ep="Reference"), "conformance/selectable", "not a full name"),
    "no EP": (vary(ep=None), "conformance/selectable", "no EP"),
    "other EP": (
        vary(ep="QNNExecutionProvider"),
        "compatibility/variant",
        "but the package says QNN",
    ),
    "device of the CPU EP": (vary(ep=CPU, device="cpu"), "conformance/selectable", "1.31 selects"),
    "device": (vary(device="tpu"), "conformance/selectable", "'tpu'"),
    "compatibility": (vary(compatibility_string="v1"), "compatibility/variant", "says 'v1'"),
    "no model": (vary(executor_info={}), "conformance/manifest", "cannot create a session"),
    "other model": (
        vary(executor_info={"ort": {"model_file": "b_ctx.onnx"}}),
        "conformance/paths",
        "does not exist",
    ),
    "forbidden": (
        options(**{"session.enable_profiling": "1"}),
        "conformance/manifest",
        "opens no package",
    ),
    "files anywhere": (
        options(**{"session.moe.offload.derived_cache_dir": "/tmp"}),
        "conformance/manifest",
        "read or write any file",
    ),
    "number": (
        edit(lambda d: ort(d, "one").update(session_options={"a": 1})),
        "conformance/manifest",
        "Expected `str`",
    ),
    "data folder": (
        options(**{"session.model_external_initializers_file_folder_path": f"sha256:{'1' * 64}"}),
        "conformance/paths",
        "does not exist in the package",
    ),
}
