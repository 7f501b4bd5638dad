"""What a user does: a manifest of the model, `epctx build`, and what the report says of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tests.zoo.processes import Ended, python, run

PROVIDERS: Mapping[str, Mapping[str, Any]] = {
    "reference": {"provider": "ReferenceExecutionProvider"},
    "qnn": {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}},
}
TIMEOUT = 600


def manifest(source: Path, provider: str, sizes: Mapping[str, int], folder: Path) -> Path:
    """Write the manifest of `source` into `folder`, with the model and all that is beside it.

    Args:
        source: The model.
        provider: "reference", which is given symbolic dimensions as they are, or "qnn".
        sizes: Of symbolic dimensions, by name, for an EP that needs them.
        folder: Where there is nothing yet.
    """
    shutil.copytree(source.parent, folder, copy_function=os.link)
    model: dict[str, Any] = {"path": source.name}
    if sizes and provider == "qnn" and min(sizes.values()) > 0:
        model["dimensions"] = dict(sizes)
    document = {
        "schema_version": 1,
        "name": "zoo",
        "models": {"model": model},
        "execution_providers": {"ep": dict(PROVIDERS[provider])},
        "model_groups": {"group": {"models": ["model"], "execution_providers": ["ep"]}},
    }
    path = folder / "zoo.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def build(source: Path, provider: str, sizes: Mapping[str, int], folder: Path) -> dict[str, Any]:
    """Build `source` in `folder`, numbers checked; what came of it. Arguments as of `manifest`."""
    path = manifest(source, provider, sizes, folder)
    ended = run(
        python("epctx", "build", str(path), "--out", str(folder / "dist"), "--no-cache"),
        TIMEOUT,
        {"NO_COLOR": "1", "COLUMNS": "200"},
    )
    return figures(ended, folder / "dist" / "zoo.build.json") | _agreement(ended, source, folder)


def figures(ended: Ended, report: Path) -> dict[str, Any]:
    """Return the end of the command and the part of the report that the table shows."""
    told: dict[str, Any] = asdict(ended)
    if ended.code is None or not report.is_file():
        return told
    group = json.loads(report.read_text(encoding="utf-8"))["groups"][0]
    numbers = (group["verify"] or {}).get("numbers", [])
    findings = (group["verify"] or {}).get("findings", [])
    told["findings"] = [each for each in findings if each["outcome"] != "pass"]
    told["compared"] = len(numbers)
    told["passed"] = sum(bool(each["passed"]) for each in numbers)
    told["max_rel"] = max((each["comparison"]["max_rel"] or 0 for each in numbers), default=None)
    for model in group["models"]:
        told["coverage"] = model["coverage"]
        told["partitions"] = len(model["partitions"])
    return told


def _agreement(ended: Ended, source: Path, folder: Path) -> dict[str, Any]:
    """What the zoo's own comparison says of files that were built."""
    built = next(folder.glob("dist/zoo/*/group/model_ctx.onnx"), None)
    if ended.code != 0 or built is None:
        return {}
    import onnx

    nodes = onnx.load(built, load_external_data=False).graph.node
    contexts = sum(node.op_type == "EPContext" for node in nodes)
    told: dict[str, Any] = {"contexts": contexts, "others": len(nodes) - contexts}
    result = folder / "agree.json"
    ran = run(python("tests.zoo.agree", str(source), str(built), str(result)), TIMEOUT)
    if result.is_file():
        return told | dict(json.loads(result.read_text(encoding="utf-8")))
    return told | {"difference": None, "agreement": ran.output[-1000:]}


if __name__ == "__main__":
    print(json.dumps(build(Path(sys.argv[1]), sys.argv[2], {}, Path(sys.argv[3])), indent=2))
