"""A folder that can be pushed: the files of a group, made of nothing."""

from __future__ import annotations

from pathlib import Path

from epctx.files import digest


def group(folder: Path, **files: bytes) -> Path:
    """`dist/m` with one group; names have `_` for a dot."""
    inner = folder / "dist" / "m" / "default" / "main"
    inner.mkdir(parents=True)
    held = {name.replace("_", "."): content for name, content in files.items()}
    for name, content in held.items():
        (inner / name).write_bytes(content)
    lines = (f"{digest.of_bytes(held[n], 'sha256').hex}  {n}\n" for n in sorted(held))
    (inner / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return folder / "dist" / "m"
