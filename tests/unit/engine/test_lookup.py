"""Keys, and results that are there: nothing is carried out to find them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.lookup import Lookup
from epctx.engine.plan import PlannedGroup
from epctx.engine.state import Compiled
from epctx.errors import ModelError
from epctx.manifest import ModelGroup, VerifySettings
from tests.kit.projects import Project


def opened(*, numbers: bool = True, notices: list[str] | None = None) -> Lookup:
    cache = Cache(locate(), pytest.fail if notices is None else notices.append)
    return Lookup(cache, cache.digests, numbers=numbers)


def planned(project: Project) -> PlannedGroup:
    (found,) = plan.read(project.manifest).groups
    return found


def sessions(lookup: Lookup, whole: PlannedGroup) -> list[Compiled]:
    group = whole.group
    return [
        lookup.session(group, each, [lookup.model(m, group.optimize) for m in each.models])
        for each in whole.session_groups
    ]


def test_of_a_source_that_was_never_loaded_nothing_is_known(project: Project) -> None:
    whole, lookup = planned(project), opened()
    model = lookup.model(whole.group.models[0], whole.group.optimize)
    assert (model.found, model.record, model.key, model.action) == (None, None, None, None)
    for session in sessions(lookup, whole):
        assert session.key is None and not session.complete and session.outputs == {}


def test_a_source_that_was_never_loaded_has_a_name_by_its_file(project: Project) -> None:
    group, lookup = planned(project).group, opened()
    first, second = (lookup.unloaded(model, group.optimize) for model in group.models)
    assert first != second
    assert lookup.unloaded(group.models[0], group.optimize) == first
    (project.folder / "a.onnx").write_bytes((project.folder / "a.onnx").read_bytes() + b"\0")
    assert opened().unloaded(group.models[0], group.optimize) != first
    (project.folder / "a.onnx").unlink()
    with pytest.raises(ModelError, match=r"a\.onnx"):
        opened().unloaded(group.models[0], group.optimize)


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
    verified = [lookup.verification(whole.group, session) for session in found]
    assert all(each.action is not None for each in verified)


def test_without_a_cache_keys_are_known_and_results_are_not(project: Project) -> None:
    project.build()
    whole, known = planned(project), opened()
    lookup = Lookup(None, known.digests, numbers=True)
    source = whole.group.models[0]
    found = known.sources.find(source)
    assert found is not None
    model = lookup.optimized(source, whole.group.optimize, found)
    assert model.key == known.model(source, whole.group.optimize).key
    assert model.action is None
    assert lookup.model(source, whole.group.optimize).found is None


def test_a_result_that_cannot_be_of_its_key_is_refused_and_told(project: Project) -> None:
    """As if somebody had put it there: another model's compile, of the right form."""
    project.build()
    whole = planned(project)
    first, second = sessions(opened(), whole)
    assert first.key is not None and second.action is not None
    assert first.action is not None
    cache = Cache(locate(), pytest.fail)
    cache.records.write(
        "actions", first.key.hex, replace(first.action, result=second.action.result)
    )
    notices: list[str] = []
    lookup = opened(notices=notices)
    assert sessions(lookup, whole)[0].action is None
    (told,) = notices
    assert "tells of other files than it has" in told
    assert sessions(opened(), whole)[0].action is None, "it is set aside"


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
