"""Keys, and results that are there: nothing is carried out to find them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.lookup import Lookup
from epctx.engine.plan import PlannedGroup
from epctx.engine.state import SessionState
from epctx.errors import ModelError
from epctx.manifest import VerifySettings
from tests.kit.projects import Project


def opened(*, numbers: bool = True, notices: list[str] | None = None) -> Lookup:
    cache = Cache(locate(), pytest.fail if notices is None else notices.append)
    return Lookup(cache, cache.digests, numbers=numbers)


def planned(project: Project) -> PlannedGroup:
    (found,) = plan.read(project.manifest).groups
    return found


def sessions(lookup: Lookup, whole: PlannedGroup) -> list[SessionState]:
    group = whole.group
    return [
        lookup.session(group, each, [lookup.model(m, group.optimize) for m in each.models])
        for each in whole.session_groups
    ]


def test_a_verdict_without_a_check_that_is_required_is_none(project: Project) -> None:
    project.section("defaults", "verify")["numbers"] = "off"
    project.build()
    whole, lookup = planned(project), opened()
    (session, _) = sessions(lookup, whole)
    settings = replace(whole.group.verify, require=("numbers",))
    requiring = replace(whole.group, verify=settings)
    assert lookup.verification(whole.group, session).stored is not None
    assert lookup.verification(requiring, session).stored is None, "it is tried again"


def test_a_result_that_cannot_be_of_its_key_is_refused_and_told(project: Project) -> None:
    """As if somebody had put it there: another model's compile, of the right form."""
    project.build()
    whole = planned(project)
    first, second = sessions(opened(), whole)
    assert first.compile is not None and first.compile.stored is not None
    cache = Cache(locate(), pytest.fail)
    other = replace(first.compile.stored, result=second.result)
    cache.records.write("actions", first.compile.key.hex, other)
    notices: list[str] = []
    lookup = opened(notices=notices)
    assert sessions(lookup, whole)[0].result is None
    (told,) = notices
    assert "lists other files than it has" in told
    assert sessions(opened(), whole)[0].result is None, "it is set aside"


def test_a_file_of_inputs_that_is_missing_is_the_models_error(
    project: Project, tmp_path: Path
) -> None:
    group = planned(project).group
    files = replace(group.verify.inputs, files=(tmp_path / "none.npz",))
    settings: VerifySettings = replace(group.verify, inputs=files)
    with pytest.raises(ModelError, match=r"none\.npz"):
        opened().inputs(replace(group, verify=settings))
