"""Examples, copied to a folder that has nothing of the repository beside it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scripts import genai_folder
from tests.zoo import processes

ROOT = Path(__file__).parents[2] / "examples"
TIMEOUT = 300
IGNORED = shutil.ignore_patterns(
    *("models", "dist", "calib", "*.lock.yaml", "*.ranges.json", "__pycache__", ".*_cache")
)


def copied(name: str, folder: Path) -> Path:
    """Copy an example to `folder`, with the model folder that 06 is told to need; return it."""
    shutil.copytree(ROOT / name, folder, ignore=IGNORED)
    if name == "06-llm":
        genai_folder.write(folder / "models" / "llama")
    return folder


def with_models(name: str, folder: Path, variables: Mapping[str, str]) -> Path:
    """Copy an example below `folder` and have its `run.py` make its models; return the copy.

    The script builds and runs them, too; what it built is left behind.
    """
    made = copied(name, folder / "made")
    cache = {"EPCTX_CACHE_DIR": str(folder / "cache")}
    processes.run([sys.executable, str(made / "run.py")], TIMEOUT, {**variables, **cache})
    built = shutil.ignore_patterns("dist", "*.lock.yaml", "*.ranges.json")
    return shutil.copytree(made, folder / name, ignore=built)


def variables(name: str, folder: Path) -> dict[str, str]:
    """Return the variables that an example needs: 04 has its provider installed below `folder`."""
    if name != "04-write-a-provider":
        return {}
    source, target = folder / "source", folder / "target"
    copied(name, source)
    offline = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)]
    subprocess.run(pip, cwd=folder, check=True)
    return {"PYTHONPATH": str(target)}


def bert(target: Path) -> None:
    """Write the model of 09: a BERT of two layers with open dimensions `batch` and `sequence`."""
    spec = importlib.util.spec_from_file_location("bert", ROOT / "09-buckets" / "make_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(target)
