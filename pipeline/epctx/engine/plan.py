"""The plan: session groups that a manifest asks for (design section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.manifest import Composition, Manifest, ModelGroup, ModelSource
from epctx.parsing import load
from epctx.text import did_you_mean


class SessionGroup(Struct, frozen=True, kw_only=True):
    """The unit of compilation: a sharing group, or one model that shares with nobody.

    Attributes:
        sharing: the sharing group's name; None for a model that shares with nobody.
        models: its models, in the sharing group's order.
        at: cut points of a lock, as `partition.pieces.at`; empty if the lock has none.
    """

    sharing: str | None
    models: tuple[ModelSource, ...]
    at: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of the sharing group; without one, of the model."""
        return self.sharing or self.models[0].name


class PlannedGroup(Struct, frozen=True, kw_only=True):
    """A model group for one target: the unit of publication."""

    target: str
    group: ModelGroup
    session_groups: tuple[SessionGroup, ...]

    @property
    def label(self) -> str:
        """`group@target`, as `--only` takes it."""
        return f"{self.group.name}@{self.target}"


class PlannedComposition(Struct, frozen=True, kw_only=True):
    """A composition for one target: published in its own folder, after the groups of its parts.

    Attributes:
        groups: groups of its parts, in manifest order.
    """

    target: str
    composition: Composition
    groups: tuple[PlannedGroup, ...]

    @property
    def label(self) -> str:
        """`composition@target`, as `--only` takes it."""
        return f"{self.composition.name}@{self.target}"


class Plan(Struct, frozen=True, kw_only=True):
    """Groups and compositions to build, in manifest order; `whole` if they are all of them."""

    manifest: Manifest
    groups: tuple[PlannedGroup, ...]
    compositions: tuple[PlannedComposition, ...] = ()
    whole: bool


def read(path: Path, *, only: Sequence[str] = (), allow_outside: bool = False) -> Plan:
    """Plan a build of the manifest at `path`, or of the `GROUP[@TARGET]` in `only`.

    Raises:
        ManifestError: the manifest breaks the schema or a rule.
        UsageError: `only` names a group or a target that the manifest does not have.
    """
    return make(load.load(path, allow_outside=allow_outside), only=only)


def make(manifest: Manifest, *, only: Sequence[str] = ()) -> Plan:
    """Plan a build of `manifest`, or of the `GROUP[@TARGET]` in `only`.

    Raises:
        UsageError: `only` names a group or a target that the manifest does not have.
    """
    groups = [
        PlannedGroup(target=target.name, group=group, session_groups=_session_groups(group))
        for target in manifest.targets
        for group in target.groups
    ]
    of: dict[str, list[PlannedGroup]] = {}
    for group in groups:
        of.setdefault(group.target, []).append(group)
    composed = [
        _composition(target.name, composition, of.get(target.name, ()))
        for target in manifest.targets
        for composition in target.compositions
    ]
    only = [name for names in only for name in names.split(",")]
    if not only:
        return Plan(
            manifest=manifest, groups=tuple(groups), compositions=tuple(composed), whole=True
        )
    known = {g.label for g in groups} | {g.group.name for g in groups}
    known |= {c.label for c in composed} | {c.composition.name for c in composed}
    for wanted in only:
        if wanted not in known:
            raise UsageError(
                f'--only names "{wanted}", which the manifest does not build',
                file=manifest.path.name,
                remedy=did_you_mean(wanted, known),
                code=Code.NO_SUCH_CHOICE,
            )
    joined = tuple(c for c in composed if c.label in only or c.composition.name in only)
    parts = {group.label for each in joined for group in each.groups}
    chosen = tuple(g for g in groups if g.label in only or g.group.name in only or g.label in parts)
    whole = len(chosen) == len(groups) and len(joined) == len(composed)
    return Plan(manifest=manifest, groups=chosen, compositions=joined, whole=whole)


def _composition(
    target: str, composition: Composition, groups: Sequence[PlannedGroup]
) -> PlannedComposition:
    names = set(composition.groups)
    parts = (group for group in groups if group.group.name in names)
    return PlannedComposition(target=target, composition=composition, groups=tuple(parts))


def _session_groups(group: ModelGroup) -> tuple[SessionGroup, ...]:
    models = {model.name: model for model in group.models}
    sharing_of = {
        member: name for name, members in group.sharing_groups.items() for member in members
    }
    planned: dict[str, SessionGroup] = {}
    for model in group.models:
        sharing = sharing_of.get(model.name)
        if sharing is None:
            planned[f"model {model.name}"] = SessionGroup(sharing=None, models=(model,))
        elif f"sharing {sharing}" not in planned:
            members = tuple(models[name] for name in group.sharing_groups[sharing])
            planned[f"sharing {sharing}"] = SessionGroup(sharing=sharing, models=members)
    return tuple(planned.values())
