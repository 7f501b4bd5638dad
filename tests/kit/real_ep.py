"""A session group through partition, compile and dump on a real EP: run in a fresh process.

    python -P -m tests.kit.real_ep < request.json > answer.json

The pipeline's worker does the same; this is without its protocol, so that a test of an EP's module
fails for that module's reasons.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # what a process imports before its stdout is moved may print to it
    import numpy as np
    import numpy.typing as npt
    import onnx_ir as ir

    from epctx.providers.onnxruntime.provider import OrtProvider
    from epctx.providers.onnxruntime.whole_model import GeneratingModel
    from epctx.stages.compile import CompiledGroup

    Array = npt.NDArray[np.generic]

ROOT = Path(__file__).parents[2]
Options = dict[str, str | int | bool | tuple[str, ...]]


@dataclass(kw_only=True)
class Request:
    """What to build. `models`: name to file.

    Attributes:
        providers: ONNX Runtime's name and options of each EP, in priority order. With `any:`
            before the name, as an EP that epctx has no module for.
        out: where the EPContext models and binaries go.
        run: also run the generating sessions against ONNX Runtime's CPU EP.
        load: nothing is built: what is in `out` is loaded and run.
        feeds: with `load`: values of inputs that have a default, in place of it.
    """

    providers: list[tuple[str, Options]]
    models: dict[str, str]
    out: str
    embed_mode: int = 0
    prefix: str = ""
    exclude_op_types: list[str] = field(default_factory=list)
    exclude_nodes: list[str] = field(default_factory=list)
    session_options: dict[str, str] = field(default_factory=dict)
    run: bool = False
    load: bool = False
    feeds: dict[str, list[int]] = field(default_factory=dict)


@dataclass(kw_only=True)
class ModelAnswer:
    """Of one model: op types left on the CPU, why, EPContext nodes, and how far numbers are off."""

    contexts: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    assigned: list[tuple[str, list[str]]] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    max_rel: float = 0.0
    cosine: float = 1.0


@dataclass(kw_only=True)
class Answer:
    """What came of it. `error`: class and text; then nothing was written."""

    files: dict[str, int] = field(default_factory=dict)
    models: dict[str, ModelAnswer] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    exit_code: int = 0
    log: str = ""


def build(
    request: Request,
    *,
    scratch: Path,
    variables: dict[str, str] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Answer:
    """Run the request in a process of its own, in the folder `scratch`, which is made.

    `before` is called when the folder is there.
    """
    scratch.mkdir(parents=True)
    before()
    log = scratch.parent / f"{scratch.name}.log"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    with log.open("wb") as stream:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "tests.kit.real_ep"],
            cwd=scratch,
            env=environment | {"ORT_DISABLE_TELEMETRY": "1"} | (variables or {}),
            input=msgspec.json.encode(request),
            stdout=subprocess.PIPE,
            stderr=stream,
            timeout=300,
            check=False,
        )
    answer = msgspec.json.decode(process.stdout, type=Answer) if process.stdout else Answer()
    answer.exit_code = process.returncode
    answer.log = log.read_text(encoding="utf-8", errors="replace")
    return answer


def main() -> None:
    """Carry out the request on stdin."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # vendor libraries print to file descriptor 1
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    Path(request.out).mkdir(parents=True, exist_ok=True)
    from epctx.errors import EpctxError

    try:
        answer = _load(request) if request.load else _build(request)
    except EpctxError as error:
        answer = Answer(error=(type(error).__name__, str(error)))
    answers.write(msgspec.json.encode(answer))
    answers.close()


def _build(request: Request) -> Answer:
    from epctx.files.digest import Digest
    from epctx.graph.model import OptimizedModel
    from epctx.graph.serde import canonical
    from epctx.manifest import ModelSource, PartitionSettings
    from epctx.providers.base import SessionGroupSpec
    from epctx.providers.onnxruntime.whole_model import GeneratingModel
    from epctx.stages import compile as compile_
    from epctx.stages import load, partition

    providers = [_bind(name, options) for name, options in request.providers]
    settings = PartitionSettings(
        exclude_op_types=tuple(request.exclude_op_types),
        exclude_nodes=tuple(request.exclude_nodes),
    )
    partitioned = []
    for name, path in request.models.items():
        loaded = load.run(ModelSource(name=name, path=Path(path)))
        optimized = OptimizedModel(
            name=name, model=loaded.model, passes=(), digest=Digest("blake3", "0" * 64)
        )
        partitioned.append(partition.run(optimized, providers, settings))
    spec = SessionGroupSpec(
        models=tuple(request.models),
        embed_mode=1 if request.embed_mode else 0,
        node_name_prefix=request.prefix,
        session_options=request.session_options,
        folder=Path.cwd(),
    )
    out = Path(request.out)
    whole = [GeneratingModel(m, Path.cwd() / "cpu" / m.name) for m in partitioned]
    answer = Answer()
    with compile_.run(partitioned, providers, spec) as compiled:
        for number, (name, model) in enumerate(compiled.models.items()):
            answer.models[name] = _describe(model, compiled, name)
            if request.run:
                _compare(answer.models[name], request.models[name], whole[number], compiled)
            (out / f"{name}_ctx.onnx").write_bytes(canonical.serialize(model))
        for binary in compiled.binaries:
            with (out / binary.name).open("wb") as stream:
                for chunk in binary.chunks():
                    stream.write(chunk)
    answer.files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    return answer


def _bind(name: str, options: Options) -> OrtProvider:
    from epctx.providers import registry
    from epctx.providers.onnxruntime import builtin
    from epctx.providers.onnxruntime.provider import OrtProvider

    other = name.removeprefix("any:")
    bound = builtin.create(other, options) if other != name else registry.bind(name, options)
    assert isinstance(bound, OrtProvider)
    return bound


def _describe(model: ir.Model, compiled: CompiledGroup, name: str) -> ModelAnswer:
    from epctx.graph import epcontext

    contexts: list[dict[str, Any]] = []
    left: list[str] = []
    for node in model.graph:
        if not epcontext.is_epcontext(node):
            left.append(f"{node.name}:{node.op_type}")
            continue
        context = epcontext.EPContextNode.from_ir(node)
        path = context.context_path
        contexts.append(
            {
                "name": node.name or "",
                "partition_name": context.partition_name or "",
                "source": context.source or "",
                "main_context": context.main_context,
                "embed_mode": context.embed_mode,
                "path": path or "",
                "bytes": len(context.ep_cache_context or b""),
            }
        )
    reasons: dict[str, str] = {}
    for workspace in compiled.workspaces:
        reasons.update({str(n.name): str(why) for n, why in workspace.left_out(name).items()})
    return ModelAnswer(
        contexts=contexts,
        left=left,
        reasons=reasons,
        metadata=dict(model.metadata_props),
    )


def _compare(
    answer: ModelAnswer, source: str, whole: GeneratingModel, compiled: CompiledGroup
) -> None:
    import onnxruntime as ort

    from epctx.inference.values import to_python

    feeds, expected = _expected(source)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    found = whole.run(values, compiled.workspaces[0].run)
    _measure(answer, expected, {name: to_python(value) for name, value in found.items()})


def _load(request: Request) -> Answer:
    import onnxruntime as ort

    answer = Answer()
    for name, source in request.models.items():
        options = ort.SessionOptions()
        for provider, own in request.providers:
            _bind(provider, own).add_to(options)
        session = ort.InferenceSession(
            str(Path(request.out) / f"{name}_ctx.onnx"), options, enable_fallback=0
        )
        feeds, expected = _expected(source, request.feeds)
        found = session.run(list(expected), dict(feeds))
        answer.models[name] = ModelAnswer()
        _measure(answer.models[name], expected, dict(zip(expected, found, strict=True)))
    return answer


def _expected(
    source: str, given: Mapping[str, list[int]] | None = None
) -> tuple[Mapping[str, Array], dict[str, Array]]:
    import numpy as np
    import onnx
    import onnxruntime as ort

    from epctx.graph.inputs import specs
    from epctx.inference.feeds import generate

    inputs = specs(onnx.load(source, load_external_data=False))
    feeds = generate(inputs, seed=0, index=0, ranges={})
    feeds |= {name: np.array(value, np.int64) for name, value in (given or {}).items()}
    cpu = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [output.name for output in cpu.get_outputs()]
    return feeds, dict(zip(names, cpu.run(None, dict(feeds)), strict=True))


def _measure(
    answer: ModelAnswer, expected: Mapping[str, Array], found: Mapping[str, Array]
) -> None:
    import numpy as np

    for name, want in expected.items():
        assert want.shape == found[name].shape
        a, b = (array.astype(np.float64).ravel() for array in (want, found[name]))
        answer.max_rel = max(answer.max_rel, float(np.abs(a - b).max() / np.abs(a).max()))
        answer.cosine = min(answer.cosine, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))


if __name__ == "__main__":
    main()
