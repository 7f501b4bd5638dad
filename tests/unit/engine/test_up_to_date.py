"""Whether a group is what it should be: compiled, verified, published, and still the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.state import GroupState
from epctx.engine.up_to_date import assess
from epctx.errors import ModelError
from tests.kit.projects import Project


def assessed(project: Project, *, numbers: bool = True) -> GroupState:
    """What a new process would find."""
    cache = Cache(locate(), pytest.fail)
    place = Place(out=project.folder / "dist", name="m")
    (planned,) = plan.read(project.manifest).groups
    return assess(planned, Lookup(cache, cache.digests, numbers=numbers), place)


def test_before_the_first_build_nothing_is_known(project: Project) -> None:
    found = assessed(project)
    assert not found.up_to_date and not found.checked
    assert found.published == "it is not compiled"
    assert found.verified == () and found.whole is None and found.files == ()
    assert not any(session.complete for session in found.sessions)


def test_after_a_build_there_is_nothing_to_do(project: Project) -> None:
    report = project.build()
    found = assessed(project)
    assert found.up_to_date and found.checked and found.published is None
    assert found.files == report.groups[0].files
    assert {f.name for f in found.files} < {p.name for p in (project.published / "g").iterdir()}
    assert found.report == report.groups[0].verify


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda g: (g / "a_ctx.onnx").unlink(), "a_ctx.onnx is missing"),
    "changed": (lambda g: (g / "a_ctx.onnx").write_bytes(b"x"), "a_ctx.onnx was changed"),
    "added": (lambda g: (g / "x").touch(), "x does not belong there"),
    "no sums": (lambda g: (g / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
    "renamed": (lambda g: g.rename(g.with_name("other")), "it is not published"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_in_the_outputs_is_told_and_only_published_again(
    edit: str, project: Project
) -> None:
    project.build()
    change, told = EDITS[edit]
    change(project.published / "g")
    found = assessed(project)
    assert found.published == told
    assert not found.up_to_date and found.checked, "nothing is to be carried out"


def test_of_a_source_that_was_edited_the_other_model_stays(project: Project) -> None:
    project.build()
    (project.folder / "a.data").write_bytes((project.folder / "b.data").read_bytes())
    found = assessed(project)
    assert [session.complete for session in found.sessions] == [False, True]
    assert found.published == "it is not compiled", "what lies there is of the former source"


def test_what_was_built_without_numbers_is_not_verified_with_them(project: Project) -> None:
    project.build(verify=False)
    assert assessed(project, numbers=False).up_to_date
    found = assessed(project)
    assert found.published is None and not found.checked and not found.up_to_date


def test_a_source_that_is_missing_is_the_models_error(project: Project) -> None:
    project.build()
    (project.folder / "a.onnx").unlink()
    with pytest.raises(ModelError, match=r"a\.onnx"):
        assessed(project)
