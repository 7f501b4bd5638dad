"""Digests of what the checked-in manifests build: `python -m scripts.baseline [MANIFEST…]`.

    python -m scripts.baseline                                   print the SHA-256 of every output
    python -m scripts.baseline --python A --python B             compare the outputs of two Pythons

Each manifest is built in a copy, without numbers and without any cache. A group whose EP has no
device on this host is named and left out. The second form builds with the packages of each Python,
for instance those of two versions of ONNX Runtime, and exits with 1 if a byte differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts import locks, quickstart_models

_VERSION = "import importlib.metadata as m; print('onnxruntime', m.version('onnxruntime'))"
_UNAVAILABLE = 5
"""Exit code of a build whose EP is not available on this host."""


class Built(NamedTuple):
    """Outputs of the manifests with one Python.

    Attributes:
        label: the version of ONNX Runtime that built them.
        digests: SHA-256 of each output, by its path below the output folder.
        failed: groups whose EP is not available on this host, as MANIFEST/GROUP@TARGET.
    """

    label: str
    digests: Mapping[str, str]
    failed: tuple[str, ...]


def build(python: str, names: Sequence[str], folder: Path) -> Built:
    """Build the checked-in manifests of these names into `folder` with this Python.

    Raises:
        RuntimeError: a build failed for another reason than an EP that is not available.
    """
    folder.mkdir()
    failed: list[str] = []
    out = folder / "dist"
    quickstart_models.write(folder / "models")
    for name in names:
        shutil.copyfile(locks.MANIFESTS / f"{name}.yaml", folder / f"{name}.yaml")
        options = ["--no-cache", "--no-verify", "--keep-going", "--out", str(out)]
        command = [python, "-m", "epctx", "build", f"{name}.yaml", *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode not in (0, _UNAVAILABLE):
            raise RuntimeError(f"{name}: exit code {done.returncode}\n{done.stderr}")
        report = json.loads((out / f"{name}.build.json").read_text(encoding="utf-8"))
        failed += [
            f"{name}/{group['group']}@{group['target']}"
            for group in report["groups"]
            if group["state"] == "failed"
        ]
    version = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, check=True)
    return Built(version.stdout.strip(), digests(out), tuple(failed))


def digests(out: Path) -> dict[str, str]:
    """Return the SHA-256 of each output below `out`; SHA256SUMS repeats these and is left out."""
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.glob("*/**/*"))
        if path.is_file() and path.name != "SHA256SUMS"
    }


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Paths of the outputs that differ, or that only one of both has."""
    return sorted(p for p in first.keys() | second.keys() if first.get(p) != second.get(p))


def lines(built: Sequence[Built]) -> list[str]:
    """Return the digests of one Python's outputs, or the comparison of two."""
    first, second = built[0], built[-1]
    failed = [f"no device for {group}" for group in sorted({*first.failed, *second.failed})]
    if len(built) == 1:
        return [*(f"{digest}  {path}" for path, digest in first.digests.items()), *failed]
    different = differences(first.digests, second.digests)
    total = len(first.digests.keys() | second.digests.keys())
    equal = f"{total - len(different)} of {total} outputs equal: {first.label}, {second.label}"
    return [*failed, *(f"differs: {path}" for path in different), equal]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build with each Python, and print the digests or the comparison."""
    names = [path.stem for path in locks.manifests()]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("manifest", nargs="*", help=f"names of manifests; default: {names}")
    parser.add_argument("--python", action="append", help="an interpreter; once or twice")
    asked = parser.parse_args(arguments)
    # Absolute, and links are kept: a virtual environment is found by its own path.
    found = (shutil.which(each) or each for each in asked.python or [sys.executable])
    pythons = [str(Path(each).absolute()) for each in found]
    if len(pythons) > 2 or not set(asked.manifest) <= set(names):
        parser.error(f"give one --python or two, and manifests among {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="epctx-baseline-") as scratch:
        built = [
            build(python, asked.manifest or names, Path(scratch, str(number)))
            for number, python in enumerate(pythons)
        ]
    print("\n".join(lines(built)))
    return int(built[0].digests != built[-1].digests)


if __name__ == "__main__":
    sys.exit(main())
