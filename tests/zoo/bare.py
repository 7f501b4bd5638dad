"""What a script without epctx does for QNN: ONNX Runtime's compile API, then a session.

    python -m tests.zoo.bare MODEL COMPILED RESULT.json

Symbolic dimensions are overridden by name with the sizes that `stock` found, as such scripts do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import onnxruntime_qnn

from tests.zoo import stock
from tests.zoo.agree import difference

PROVIDER = "QNNExecutionProvider"
SOC = "60"


def options(device: Any, sizes: dict[str, int]) -> ort.SessionOptions:
    """Those of a script that compiles for one chip."""
    made = ort.SessionOptions()
    own = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": SOC}
    made.add_provider_for_devices([device], own)
    for name, size in sizes.items():
        made.add_free_dimension_override_by_name(name, size)
    return made


def main(source: Path, compiled: Path, result: Path) -> None:
    """Compile, run, compare with the CPU EP; what was reached is in the result."""
    ort.set_default_logger_severity(4)
    found, feeds = stock.judge(source)
    told: dict[str, Any] = {"compiles": False, "runs": False, "contexts": 0, "others": 0}

    def tell() -> None:
        result.write_text(json.dumps(told), encoding="utf-8")

    tell()
    ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    device = next(each for each in ort.get_ep_devices() if each.ep_name == PROVIDER)
    sizes = found.get("sizes", {})
    try:
        ort.ModelCompiler(options(device, sizes), str(source)).compile_to_file(str(compiled))
        nodes = onnx.load(compiled, load_external_data=False).graph.node
        contexts = sum(node.op_type == "EPContext" for node in nodes)
        told.update(compiles=contexts > 0, contexts=contexts, others=len(nodes) - contexts)
        tell()
        session = ort.InferenceSession(str(compiled), options(device, sizes), enable_fallback=0)
        actual = session.run(None, feeds)
    except Exception as error:  # onnxruntime's errors have no common class
        told["error"] = str(error)[:1000]
        tell()
        return
    plain = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    differences = [difference(*pair) for pair in zip(plain.run(None, feeds), actual, strict=True)]
    known = [each for each in differences if each is not None]
    told.update(
        runs=True, difference=max(known, default=0) if len(known) == len(differences) else None
    )
    tell()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
