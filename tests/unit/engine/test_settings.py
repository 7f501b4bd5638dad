from __future__ import annotations

from pathlib import Path

from epctx.cache.digests import FreshDigests
from epctx.engine import publish
from epctx.engine.lookup import Lookup
from epctx.engine.report import GroupReport
from epctx.parsing import load
from tests.kit.projects import make

LOOKUP = Lookup(None, FreshDigests(), numbers=True)


def test_targets_and_defaults_are_in_what_a_group_is_told_to_be(tmp_path: Path) -> None:
    project = make(tmp_path, {"g": ["a"]})
    project.document["defaults"] = {"timeout": "5m", "execution_providers": ["ref"]}
    project.document["targets"] = {
        "one": {},
        "two": {"model_groups": {"g": {"embed_mode": 1}}},
    }
    project.write()
    manifest = load.load(project.manifest)
    specs = manifest.targets[0].groups[0].execution_providers
    reports = [GroupReport(target=t, group="g", state="built") for t in ("one", "two")]
    one, two = publish.described(reports, manifest, LOOKUP, None)
    group = {"timeout": "5m", "execution_providers": ["ref"], "models": ["a"]}
    assert one.manifest["model_groups"]["g"] == group
    assert two.manifest["model_groups"]["g"] == {**group, "embed_mode": 1}
    assert two.manifest["models"] == {"a": {"path": "a.onnx"}}
    (ep,) = one.execution_providers
    assert (ep.alias, ep.provider) == ("ref", "ReferenceExecutionProvider")
    assert ep.toolchain == LOOKUP.toolchain.provider(specs[0]).toolchain


def test_an_ep_that_is_not_installed_has_no_toolchain(tmp_path: Path) -> None:
    project = make(tmp_path, {"g": ["a"]})
    project.section("execution_providers")["ref"] = {
        "provider": "StrangeExecutionProvider",
        "allow_unknown_options": True,
        "options": {"x": "1"},
    }
    project.write()
    manifest = load.load(project.manifest)
    report = GroupReport(target="default", group="g", state="failed")
    (found,) = publish.described([report], manifest, LOOKUP, None)
    (ep,) = found.execution_providers
    assert (ep.options, ep.toolchain) == ({"x": "1"}, {})
