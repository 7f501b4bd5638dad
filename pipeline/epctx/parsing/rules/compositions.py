"""Rules on compositions: names that their parts refer to, and limits of one session.

Names and types inside the models are checked when the models are joined (`graph.wiring`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from epctx.files.filenames import fold
from epctx.parsing import precedence
from epctx.parsing.buckets import BUCKET
from epctx.parsing.document.tree import Node, Problem, at, at_key, quoted
from epctx.parsing.precedence import TargetTree, names, present
from epctx.parsing.rules import options, settings
from epctx.parsing.rules.settings import Places
from epctx.text import did_you_mean


def model_of(name: str, part: Node) -> str:
    """Model of a part: its `model`, else the model with the part's name."""
    model = part.get("model")
    return name if model is None or model.string is None else model.string


def group_of(name: str, part: Node, tree: TargetTree) -> str | None:
    """Return the group of a target that builds a part's model; None without a unique group."""
    builders = tree.groups_of.get(model_of(name, part), ())
    group = part.get("group")
    if group is not None:
        return group.string if group.string in builders else None
    return builders[0] if len(builders) == 1 else None


def is_built(composition: Node, tree: TargetTree) -> bool:
    """Tell whether a target builds every part."""
    parts = composition.get("parts")
    parts_by_name = parts.mapping if parts is not None else {}
    return bool(parts_by_name) and all(
        group_of(name, part, tree) for name, part in parts_by_name.items()
    )


def check(root: Node, broken: frozenset[Node], places: Places) -> Iterator[Problem]:
    """Find problems in compositions; values that the schema refused are skipped."""
    compose = root.get("compose")
    if compose is None or compose.kind != "mapping" or compose in broken:
        return
    yield from _folders(compose, root)
    trees = precedence.targets(root)
    for name, node in compose.mapping.items():
        parts = node.get("parts")
        if parts is None or parts.kind != "mapping" or parts in broken:
            continue
        problems = [*_models(parts, root, trees), *_inputs(parts), *_outputs(node, parts)]
        yield from problems
        yield from settings.check(node, places)
        built = [tree for tree in trees if is_built(node, tree)]
        if not problems and not built:
            what = "is never built: no target builds all of its parts"
            yield at_key(compose, name, what, "build the parts' groups for one target")
        for tree in built:
            yield from _session(node, parts, tree)


def _folders(compose: Node, root: Node) -> Iterator[Problem]:
    """Refuse a composition that would have the folder of a group."""
    groups = root.get("model_groups")
    taken = {fold(name): f"model group {name}" for name in (groups.mapping if groups else {})}
    for name in compose.mapping:
        first = taken.setdefault(fold(name), f"composition {name}")
        if first != f"composition {name}":
            yield at_key(compose, name, f"has the folder of {first}", "rename one of them")


def _models(parts: Node, root: Node, trees: Sequence[TargetTree]) -> Iterator[Problem]:
    models = root.get("models")
    models_by_name = models.mapping if models is not None else {}
    for name, part in parts.mapping.items():
        wanted, group = model_of(name, part), part.get("group")
        place = part.get("model")
        if wanted not in models_by_name:
            bucket_names = [
                b
                for b, m in models_by_name.items()
                if (n := m.get(BUCKET, "model")) and n.text == wanted
            ]
            remedy = (
                f"name a bucket: {', '.join(bucket_names)}"
                if bucket_names
                else did_you_mean(wanted, models_by_name)
            )
            if place is not None:
                yield at(place, f"there is no model {quoted(wanted)}", remedy)
            else:
                what = f"there is no model {quoted(wanted)}, which the part's name refers to"
                yield at_key(parts, name, what, f"{remedy}; or set the part's `model`")
            continue
        builders = list(dict.fromkeys(g for tree in trees for g in tree.groups_of.get(wanted, ())))
        if group is not None and group.string is not None and group.string not in builders:
            what = f"group {quoted(group.string)} does not build {wanted}"
            remedy = f"name one that does: {', '.join(builders)}" if builders else ""
            yield at(group, what, remedy or f"list {wanted} in a group")
        elif group is None and not builders:
            what = f"no model group builds {wanted}"
            yield at_key(parts, name, what, "list it in the models of a group")
        elif group is None and any(len(tree.groups_of.get(wanted, ())) > 1 for tree in trees):
            what = f"several groups build {wanted}: {', '.join(builders)}"
            yield at_key(parts, name, what, f"choose one, as in `group: {builders[0]}`")


def _inputs(parts: Node) -> Iterator[Problem]:
    before: dict[str, None] = {}
    for name, part in parts.mapping.items():
        for origin in present(part.get("inputs")).values():
            yield from _origin(origin, parts.mapping, before, name)
        before[name] = None


def _origin(
    origin: Node, parts: Mapping[str, Node], before: Collection[str], own: str
) -> Iterator[Problem]:
    source, outer = origin.get("part"), origin.get("input")
    if source is not None and outer is not None:
        yield at(origin, "has two origins: a part, and the caller", "remove `part` or `input`")
    elif source is None and outer is None and origin.get("output") is not None:
        yield at(origin, "names an output, but no part", "add the `part` that computes it")
    elif source is not None and source.string is not None and source.string not in before:
        if source.string in parts:
            what = f"{quoted(source.string)} does not run before {own}"
            yield at(source, what, "list the parts in the order in which they run")
        else:
            what = f"there is no part {quoted(source.string)}"
            yield at(source, what, did_you_mean(source.string, before))


def _outputs(node: Node, parts: Node) -> Iterator[Problem]:
    first_of: dict[tuple[str, str], str] = {}
    for name, output in present(node.get("outputs")).items():
        part, output_name = output.get("part"), output.get("output")
        if part is None or part.string is None or output_name is None or output_name.string is None:
            continue
        if part.string not in parts.mapping:
            what = f"there is no part {quoted(part.string)}"
            yield at(part, what, did_you_mean(part.string, parts.mapping))
        first = first_of.setdefault((part.string, output_name.string), name)
        if first != name:
            yield at(output, f"is output {quoted(first)} already", "remove one of them")


def _session(node: Node, parts: Node, tree: TargetTree) -> Iterator[Problem]:
    """Refuse an EP that occurs twice in a session, and mixed embed modes."""
    groups = {layered.name: layered.node for layered in tree.groups}
    alias_of: dict[str, str] = {}
    wanted = node.get("embed_mode")
    for name, part in parts.mapping.items():
        group = groups[group_of(name, part, tree) or ""]
        listed = group.get("execution_providers")
        for alias in names(listed) if listed is not None else ():
            entry = tree.providers.get(alias)
            if entry is None:
                continue
            label = options.label(entry)
            first = alias_of.setdefault(fold(label), alias)
            if first != alias and tree.providers[first].plain() != entry.plain():
                what = f"one session would have {label} twice, as {first} and as {alias}"
                setting = options.label_options(entry)
                other = f", or give one another `{setting[0]}` option" if setting else ""
                yield at_key(parts, name, what, f"build the parts with one of them{other}")
        embed = group.get("embed_mode")
        if wanted is not None and wanted.value == 0 and embed is not None and embed.value == 1:
            what = f"asks for context binaries as files, but the group of {name} embeds its own"
            yield at(wanted, what, "write embed_mode: 0 in that group, or remove it here")
