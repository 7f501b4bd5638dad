from __future__ import annotations

import pytest

from epctx.lockfile.types import (
    Lock,
    LockedComposition,
    LockedFile,
    LockedGroup,
    LockedModel,
    LockedPackage,
    LockedPart,
    LockedProvider,
    LockedRuntime,
    LockedSession,
    LockedSource,
    LockedToolchain,
    LockedVariant,
)
from epctx.manifest import ExternalInitializers, PartitionSettings
from epctx.providers.onnxruntime.host import Cpu


def digest(letter: str) -> str:
    return f"blake3:{letter * 64}"


@pytest.fixture
def lock() -> Lock:
    """A lock with something in every place."""
    session = LockedSession(
        cpu="cpu-1",
        key=digest("c"),
        models=("prefill", "decode"),
        outputs={
            "prefill_ctx.onnx": LockedFile(sha256="1" * 64, size=10),
            "decode_ctx.onnx": LockedFile(sha256="2" * 64, size=20),
            "prefill_qnn.bin": LockedFile(sha256="3" * 64, size=30),
        },
        sharing="main",
    )
    group = LockedGroup(
        embed_mode=0,
        execution_providers=(
            LockedProvider(
                options={"soc_model": "60", "threads": 2, "scale": 1e-5, "ops": ("A", "B")},
                provider="QNNExecutionProvider",
            ),
        ),
        external_initializers=ExternalInitializers(file="{model}.data", size_threshold=0),
        models={
            name: LockedModel(
                data={"tiny.data": "models/tiny.data"},
                dimensions={"batch": 1},
                key=digest("a"),
                optimized=digest("b"),
                shapes={"x": (1, 3)},
                source="models/tiny.onnx",
                calibration=digest("8"),
                quantized=digest("7"),
            )
            for name in ("prefill", "decode")
        },
        node_name_prefix="",
        optimize="basic",
        partition=PartitionSettings(
            exclude_nodes=("/head/*",),
            exclude_op_types=("TopK",),
            max_partitions=None,
            min_nodes=1,
            require_coverage=0.9,
        ),
        passes=(),
        passes_of_others={},
        session_groups={"prefill": session},
        session_options={"session.x": "1"},
        quantize={"preset": "qnn", "samples": ["models/tiny.data"]},
    )
    part = LockedPart(
        group="llm",
        inputs={"mask": "mask"},
        links={"x": "prefill.y"},
        model="decode",
        prefix="decode_",
    )
    whole = LockedComposition(
        asked={"y": "decode.y"},
        embed_mode=0,
        order=("prefill", "decode"),
        outputs={"whole_ctx.onnx": LockedFile(sha256="4" * 64, size=40)},
        parts={"decode": part},
    )
    package = LockedPackage(
        assets={"tokenizer": {"vocab/a.txt": LockedFile(sha256="5" * 64, size=50)}},
        component="model",
        description="small",
        execution_providers={
            "QNNExecutionProvider": LockedRuntime(
                device="npu",
                native=True,
                options={"htp_performance_mode": "burst"},
                sources=("QNNExecutionProvider",),
            )
        },
        variants=(
            LockedVariant(
                execution_providers=("QNNExecutionProvider",),
                files={"readme.txt": LockedFile(sha256="6" * 64, size=60)},
                group="default/llm",
                models=("prefill", "decode"),
            ),
        ),
        version="1.2.0",
    )
    return Lock(
        compositions={"default/whole": whole},
        name="tiny-llm",
        toolchain={"epctx": "0.1.0", "epctx/compile": digest("e"), "onnxruntime": "1.31.1"},
        sources={
            "models/tiny.onnx": LockedSource(digest=digest("d"), size=7),
            "models/tiny.data": LockedSource(digest=digest("f"), size=70),
        },
        execution_providers={
            "QNNExecutionProvider": LockedToolchain(
                code="epctx blake3:1",
                host={},
                toolchain={"onnxruntime-qnn": "2.7.0", "onnxruntime-qnn/libQnnHtp.so": digest("9")},
            )
        },
        cpus={"cpu-1": Cpu(family="6", flags=("avx", "avx2"), model="143", vendor="GenuineIntel")},
        golden={"default/llm": {"golden.json": LockedFile(sha256="7" * 64, size=77)}},
        groups={"default/llm": group},
        package=package,
        ranges=LockedFile(sha256="8" * 64, size=88),
    )
