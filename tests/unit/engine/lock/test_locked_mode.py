"""Checks of `--locked`, and EPs that are known to be unstable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx.engine import plan
from epctx.engine.lock import locked_mode
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan
from epctx.errors import LockError, UsageError
from epctx.lockfile import file
from epctx.lockfile.types import Lock, LockedFile
from epctx.manifest import Manifest, ModelGroup, ModelSource, OptionValue, ProviderSpec, Target
from epctx.providers import registry
from epctx.providers.reference import ReferenceExecutionProvider
from tests.kit.projects import Project


@pytest.fixture
def built(project: Project) -> Project:
    project.build()
    return project


def read(project: Project, *only: str) -> tuple[Lock, Plan, OutputPaths]:
    lock = file.read(project.lock)
    place = OutputPaths(out=project.folder / "dist", name="m")
    return lock, plan.read(project.manifest, only=only), place


def link_to_nothing(group: Path) -> None:
    (group / "a_ctx.onnx").unlink()
    (group / "a_ctx.onnx").symlink_to("gone")


OUTPUTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda g: (g / "a_ctx.onnx").write_bytes(b"x"), "was changed after it was built"),
    "missing": (lambda g: (g / "a_ctx.onnx").unlink(), "is missing"),
    "added": (lambda g: (g / "x.bin").touch(), "does not belong there"),
    "a link to nothing": (
        link_to_nothing,
        "was changed after it was built",
    ),
}


@pytest.mark.parametrize("edit", OUTPUTS)
def test_edited_outputs_are_refused(edit: str, built: Project) -> None:
    change, told = OUTPUTS[edit]
    change(built.published / "g")
    with pytest.raises(LockError) as caught:
        locked_mode.refuse_edited_outputs(*read(built))
    name = "x.bin" if edit == "added" else "a_ctx.onnx"
    assert caught.value.why is not None and f"default/g/{name}" in caught.value.why
    assert told in caught.value.why
    assert caught.value.remedy.startswith("restore the files")


@pytest.mark.parametrize("name", ["SHA256SUMS", "golden"])
def test_what_no_lock_has_is_not_held_to_it(name: str, built: Project) -> None:
    """Sums are verified; golden inputs come and go by themselves."""
    if name == "golden":
        (built.published / "g" / "golden").mkdir()
    else:
        (built.published / "g" / name).write_text("other")
    locked_mode.refuse_edited_outputs(*read(built))


def other(lock: Lock, group: str, **names: str) -> Lock:
    """The lock with other digests of outputs."""
    found = lock.groups[group]
    sessions = {
        first: replace(
            session,
            outputs={
                name: LockedFile(sha256=names.get(name.split(".")[0], f.sha256), size=f.size)
                for name, f in session.outputs.items()
            },
        )
        for first, session in found.session_groups.items()
    }
    return replace(lock, groups={**lock.groups, group: replace(found, session_groups=sessions)})


INPUTS: dict[str, Callable[[Project, Path], Any]] = {
    "a model": lambda p, path: p.section("models", "a").update(path=path.as_posix()),
    "a folder of data": lambda p, path: p.section("models", "a").update(
        external_data_dir=path.parent.as_posix()
    ),
    "inputs": lambda p, path: p.section("defaults").update(
        verify={"inputs": {"files": [path.as_posix()]}}
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("where", ["dist/m/default/g", "dist/m.staging"])
def test_an_input_in_the_place_of_outputs_is_refused(
    kind: str, where: str, project: Project
) -> None:
    """The swap would remove it."""
    path = project.folder / where / "x" / "input.npz"
    path.parent.mkdir(parents=True)
    path.write_bytes((project.folder / "a.onnx").read_bytes())
    INPUTS[kind](project, path.relative_to(project.folder))
    project.write()
    planned = plan.read(project.manifest)
    place = OutputPaths(out=project.folder / "dist", name="m")
    with pytest.raises(UsageError, match="lies in a folder that its outputs replace"):
        locked_mode.refuse_sources_in_outputs(planned, place)
    beside = OutputPaths(out=project.folder / "other", name="m")
    locked_mode.refuse_sources_in_outputs(planned, beside)


class Wavering(ReferenceExecutionProvider):
    """An EP that knows of itself that it writes other bytes each time."""

    name = "WaveringExecutionProvider"
    unstable = "models with a Foo: write a Bar"

    def why_unstable(self, nodes: object) -> None:
        """Return none: no node is unstable."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Groups of targets `x` and `y`: `one` on Wavering, `two` on it too, `three` on another EP."""

    def create(spec: ProviderSpec) -> ReferenceExecutionProvider:
        options: Mapping[str, OptionValue] = spec.options
        steady = spec.provider == "ReferenceExecutionProvider"
        return ReferenceExecutionProvider(options) if steady else Wavering(options)

    monkeypatch.setattr(registry, "create", create)
    ref = ProviderSpec(alias="ref", provider="ReferenceExecutionProvider")
    own = ProviderSpec(alias="own", provider="WaveringExecutionProvider")
    model = (ModelSource(name="a", path=Path("/a.onnx")),)
    one = ModelGroup(name="one", models=model, execution_providers=(own,))
    two = ModelGroup(name="two", models=model, execution_providers=(ref, own))
    three = ModelGroup(name="three", models=model, execution_providers=(ref,))
    targets = tuple(Target(name=name, groups=(one, two, three)) for name in "xy")
    return plan.make(Manifest(name="m", path=Path("/m.yaml"), targets=targets))


def known(planned: Plan, *folders: str) -> list[str]:
    return list(locked_mode.unstable_eps(planned, folders))


def test_an_ep_that_wavers_is_told_once_whatever_differs(planned: Plan) -> None:
    told = "WaveringExecutionProvider: models with a Foo: write a Bar"
    assert known(planned, "x/one") == [told]
    assert known(planned, "y/two") == [told]
    assert known(planned, "x/one", "x/two", "y/one") == [told]


def test_nothing_is_told_of_groups_that_are_the_same(planned: Plan) -> None:
    assert known(planned) == []
    assert known(planned, "x/three") == [], "all of its EPs write the same each time"
    assert known(planned, "z/one", "one", "x") == []
