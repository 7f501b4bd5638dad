"""Build a model as a stranger does: `epctx init`, then `epctx build`, and nothing set by hand.

python -m tests.zoo.stranger MODEL FOLDER
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tests.zoo import building
from tests.zoo.processes import python, run

INIT = ("--provider", "QNNExecutionProvider", "--option", "soc_model=60", "--yes")


def build(source: Path, folder: Path) -> dict[str, Any]:
    """Build `source` in a new `folder` that holds the model and its external data alone.

    Returns:
        Exit code, output and seconds of the last command, the error's code and message, the keys
        that `epctx init` wrote for the model, and the figures of the report.
    """
    shutil.copytree(source.parent, folder, copy_function=os.link)
    terminal = {"NO_COLOR": "1", "COLUMNS": "200"}
    ended = run(python("epctx", "init", source.name, *INIT), building.TIMEOUT, terminal, folder)
    result: dict[str, Any] = asdict(ended)
    if ended.code == 0:
        result["model"] = _model(folder / "epctx.yaml")
        command = python("epctx", "build", "epctx.yaml", "--no-cache")
        ended = run(command, building.TIMEOUT, terminal, folder)
        result |= building.figures(ended, folder / "dist" / "model.build.json")
    if error := re.search(r"^error\[(E\d+)\]: (.*)", ended.output, re.MULTILINE):
        result |= {"error": error[1], "message": error[2]}
    return result


def _model(manifest: Path) -> Mapping[str, Any]:
    """Return the keys of the manifest's only model."""
    (model,) = yaml.safe_load(manifest.read_text(encoding="utf-8"))["models"].values()
    return dict(model)


if __name__ == "__main__":
    print(json.dumps(build(Path(sys.argv[1]), Path(sys.argv[2])), indent=2))
