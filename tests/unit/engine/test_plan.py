from pathlib import Path

import pytest

from epctx.engine import plan
from epctx.errors import UsageError
from epctx.manifest import Manifest, ModelGroup, ModelSource, Target

MODELS = {name: ModelSource(name=name, path=Path(f"/{name}.onnx")) for name in "abcd"}
LLM = ModelGroup(
    name="llm",
    models=tuple(MODELS[name] for name in "abc"),
    sharing_groups={"main": ("c", "a")},
)
EYE = ModelGroup(name="eye", models=(MODELS["d"],))
MANIFEST = Manifest(
    name="m",
    path=Path("/m.yaml"),
    targets=(
        Target(name="x", groups=(LLM, EYE)),
        Target(name="y", groups=(LLM,)),
    ),
)


def test_only_of_what_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"llm@z") as caught:
        plan.make(MANIFEST, only=["llm@z"])
    assert 'did you mean "llm@' in caught.value.remedy
