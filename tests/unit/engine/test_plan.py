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


def test_session_groups_are_sharing_groups_in_their_order_and_single_models() -> None:
    planned = plan.make(MANIFEST)
    assert planned.whole
    assert [group.label for group in planned.groups] == ["llm@x", "eye@x", "llm@y"]
    sessions = [(s.sharing, [m.name for m in s.models]) for s in planned.groups[0].session_groups]
    assert sessions == [("main", ["c", "a"]), (None, ["b"])]


@pytest.mark.parametrize(
    ("only", "labels"),
    [(["llm"], ["llm@x", "llm@y"]), (["llm@y"], ["llm@y"]), (["eye", "llm@x"], ["llm@x", "eye@x"])],
)
def test_only_keeps_the_manifest_order(only: list[str], labels: list[str]) -> None:
    planned = plan.make(MANIFEST, only=only)
    assert [group.label for group in planned.groups] == labels
    assert not planned.whole


def test_only_of_what_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"llm@z") as caught:
        plan.make(MANIFEST, only=["llm@z"])
    assert 'did you mean "llm@' in caught.value.remedy
