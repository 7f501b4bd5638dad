from __future__ import annotations

from pathlib import Path

from epctx.cache.digests import FreshDigests
from epctx.engine import publish
from epctx.engine.lookup import Lookup
from epctx.engine.report import GroupReport
from epctx.parsing import load
from tests.kit.projects import make

LOOKUP = Lookup(None, FreshDigests(), numbers=True)


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
