"""Keys, and results that are there: nothing is carried out to find them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.lookup import Lookup
from epctx.engine.plan import PlannedGroup
from epctx.engine.state import GroupState, SessionState
from epctx.errors import ModelError
from epctx.manifest import ModelGroup, VerifySettings
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


def test_of_a_source_that_was_never_loaded_the_key_is_known(project: Project) -> None:
    whole, lookup = planned(project), opened()
    models = [lookup.model(model, whole.group.optimize) for model in whole.group.models]
    assert len({model.key for model in models}) == 2
    assert not any(model.complete for model in models)
    for session in sessions(lookup, whole):
        assert session.key is None and not session.complete and session.outputs == {}


def test_what_a_build_made_is_found_by_the_next(project: Project) -> None:
    report = project.build()
    whole, lookup = planned(project), opened()
    found = sessions(lookup, whole)
    assert all(session.complete for session in found)
    keys = {a.subject: a.key for a in report.groups[0].actions if a.action == "compile"}
    assert {s.session.label: str(s.key) for s in found} == keys
    files = {file.name: file.blake3 for file in report.groups[0].files}
    outputs = {name: content for session in found for name, content in session.outputs.items()}
    assert outputs == files
    assert lookup.verified(GroupState(planned=whole, sessions=tuple(found))).complete


def test_an_action_is_known_without_a_look_into_the_cache(project: Project) -> None:
    project.build()
    whole, lookup = planned(project), opened()
    (session, _) = sessions(lookup, whole)
    verify = lookup.verify(whole.group, session)
    found, unknown = lookup.verification(whole.group, session), lookup.unknown(verify)
    assert found.key == unknown.key and found.record == unknown.record
    assert found.stored is not None and unknown.stored is None


def test_a_verdict_without_a_check_that_is_required_is_none(project: Project) -> None:
    project.section("defaults", "verify")["numbers"] = "off"
    project.build()
    whole, lookup = planned(project), opened()
    (session, _) = sessions(lookup, whole)
    settings = replace(whole.group.verify, require=("numbers",))
    requiring = replace(whole.group, verify=settings)
    assert lookup.verification(whole.group, session).stored is not None
    assert lookup.verification(requiring, session).stored is None, "it is tried again"


def test_without_a_cache_keys_are_known_and_results_are_not(project: Project) -> None:
    project.build()
    whole, known = planned(project), opened()
    lookup = Lookup(None, known.digests, numbers=True)
    source = whole.group.models[0]
    model = lookup.model(source, whole.group.optimize)
    assert model.key == known.model(source, whole.group.optimize).key
    assert not model.complete


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
    assert "tells of other files than it has" in told
    assert sessions(opened(), whole)[0].result is None, "it is set aside"


def numbers_off(group: ModelGroup) -> ModelGroup:
    return replace(group, verify=replace(group.verify, numbers="off"))


def test_models_are_run_if_manifest_and_build_both_want_it(project: Project) -> None:
    group = planned(project).group
    assert opened().inputs(group) is not None and not opened().skips(group)
    assert opened(numbers=False).inputs(group) is None and opened(numbers=False).skips(group)
    off = numbers_off(group)
    assert opened().inputs(off) is None and not opened().skips(off)
    assert opened(numbers=False).inputs(off) is None
    assert not opened(numbers=False).skips(off), "the manifest asks for none"


def test_a_file_of_inputs_that_is_missing_is_the_models_error(
    project: Project, tmp_path: Path
) -> None:
    group = planned(project).group
    files = replace(group.verify.inputs, files=(tmp_path / "none.npz",))
    settings: VerifySettings = replace(group.verify, inputs=files)
    with pytest.raises(ModelError, match=r"none\.npz"):
        opened().inputs(replace(group, verify=settings))
