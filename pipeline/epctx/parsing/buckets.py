"""Shape buckets: a model whose `dimensions` list several sizes is expanded into a model for each.

Buckets replace the model before rules and types see the manifest, so that later code knows only
models. A bucket has the position of its model in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from epctx.parsing.document.tree import Mark, Node
from epctx.parsing.schema import providers

BUCKET: Final = "bucket"
"""Key of an expanded model for its original name and sizes; no manifest can contain the key."""
PATTERN: Final = "bucket_name"
MODEL: Final = "{model}"
_LETTER = re.compile(r"[A-Za-z0-9]")
_Change = Callable[[Node], Node]


def lists(model: Node) -> dict[str, Node]:
    """Dimensions of a model that have a list of sizes."""
    dimensions = model.get("dimensions")
    entries = dimensions.mapping.items() if dimensions is not None else ()
    return {name: node for name, node in entries if node.kind == "list"}


def rows(model: Node) -> list[dict[str, Node]]:
    """Sizes of each bucket: the i-th size of every list. Empty if the lists differ in length."""
    listed = lists(model)
    if len({len(node.items) for node in listed.values()}) != 1:
        return []
    columns = (node.items for node in listed.values())
    return [dict(zip(listed, row, strict=True)) for row in zip(*columns, strict=True)]


def name(model: str, node: Node, row: Mapping[str, Node]) -> str:
    """Return a bucket's name: by `bucket_name`, else `<model>_s32`."""
    pattern = node.get(PATTERN)
    if pattern is None or pattern.string is None:
        return model + "".join(f"_{_letter(each)}{_digits(row[each])}" for each in row)
    text = pattern.string.replace(MODEL, model)
    for dimension, size in row.items():
        text = text.replace(f"{{{dimension}}}", _digits(size))
    return text


def _letter(dimension: str) -> str:
    match = _LETTER.search(dimension)
    return match[0] if match is not None else "d"


def _digits(size: Node) -> str:
    """Write a whole number without a fraction; JSON Schema accepts 32.0 as an integer."""
    return str(int(size.value)) if isinstance(size.value, float) else str(size.value)


def names(root: Node) -> dict[str, tuple[str, ...]]:
    """Bucket names of each model that has buckets."""
    models = root.get("models")
    bucket_names = {
        model: tuple(name(model, node, row) for row in rows(node))
        for model, node in (models.mapping.items() if models is not None else ())
    }
    return {model: buckets for model, buckets in bucket_names.items() if buckets}


def expand(root: Node) -> Node:
    """Replace every model that lists sizes by its buckets, in all places that name it.

    Models whose lists differ in length stay unchanged.
    """
    bucket_names = names(root)
    if not bucket_names:
        return root

    def listed(node: Node) -> Node:
        return replace(
            node, value=tuple(b for item in node.items for b in _item(item, bucket_names))
        )

    def group(node: Node) -> Node:
        node = _under(node, "models", listed)
        return _under(node, "sharing_groups", lambda sharing: _each(sharing, listed))

    def groups(node: Node) -> Node:
        return _under(node, "model_groups", lambda found: _each(found, group))

    root = _under(root, "models", _models)
    return _under(groups(root), "targets", lambda targets: _each(targets, groups))


def _under(node: Node, key: str, change: _Change) -> Node:
    child = node.get(key)
    if child is None or child.kind not in ("mapping", "list"):
        return node
    return replace(node, value={**node.mapping, key: change(child)})


def _each(node: Node, change: _Change) -> Node:
    """Change the children of a mapping, except null and values that the schema refuses."""
    children = node.mapping.items()
    return replace(
        node,
        value={
            key: change(child) if child.kind in ("mapping", "list") else child
            for key, child in children
        },
    )


def _item(item: Node, of: Mapping[str, tuple[str, ...]]) -> list[Node]:
    buckets = of.get(item.string or "")
    return [item] if buckets is None else [_text(each, item) for each in buckets]


def _text(text: str, at: Node) -> Node:
    return Node(value=text, text=text, mark=at.mark, path=at.path)


def _models(models: Node) -> Node:
    children: dict[str, Node] = {}
    marks: dict[str, Mark] = {}
    for model, node in models.mapping.items():
        model_buckets = {name(model, node, row): _bucket(model, node, row) for row in rows(node)}
        children |= {
            key: child for key, child in model_buckets.items() if key not in models.mapping
        }
        if not model_buckets:
            children[model] = node
        marks |= dict.fromkeys((model, *model_buckets), models.keys.get(model, node.mark))
    return replace(models, value=children, keys=marks)


def _bucket(model: str, node: Node, row: Mapping[str, Node]) -> Node:
    dimensions = node.mapping["dimensions"]
    own = {key: child for key, child in node.mapping.items() if key != PATTERN}
    own["dimensions"] = replace(dimensions, value={**dimensions.mapping, **row})
    origin = {"model": _text(model, node), "sizes": replace(dimensions, value=dict(row))}
    return replace(node, value={**own, BUCKET: replace(node, value=origin)})


def shared(group: Node, models: Node | None, entries: Mapping[str, Node]) -> Node:
    """Put the buckets of each model into a sharing group with the model's name.

    This is the default if an EP of the group can share. It is also the default if the group has no
    EP: then the models share their common weights. The group's own settings take precedence: a
    sharing group of that name (null for none), one that names a bucket, or `sharing_groups: {}`.

    Args:
        models: expanded `models` of the manifest.
        entries: entries of `execution_providers`, by alias.
    """
    listed = group.get("models")
    buckets_of: dict[str, list[Node]] = {}
    for item in listed.items if listed is not None and models is not None else ():
        of = models.get(item.string or "", BUCKET, "model") if models is not None else None
        if of is not None:
            buckets_of.setdefault(of.text, []).append(item)
    if not buckets_of:
        return group
    sharing = group.get("sharing_groups")
    own_groups = sharing.mapping if sharing is not None else {}
    taken = {item.string for members in own_groups.values() for item in members.items}
    added = {
        model: Node(value=tuple(items), mark=items[0].mark, path=items[0].path)
        for model, items in buckets_of.items()
        if len(items) > 1
        and model not in own_groups
        and taken.isdisjoint(item.string for item in items)
    }
    if not added or (sharing is not None and not own_groups) or not _may_share(group, entries):
        return group
    whole = replace(sharing or group, value={**own_groups, **added})
    return replace(group, value={**group.mapping, "sharing_groups": whole})


def _may_share(group: Node, entries: Mapping[str, Node]) -> bool:
    embed, listed = group.get("embed_mode"), group.get("execution_providers")
    if listed is None or (embed is not None and embed.value == 1):
        return False
    eps = [entries[item.text] for item in listed.items if item.text in entries]
    return not listed.items or (
        any(providers.can_share(each) for each in eps)
        and not any(any(providers.unshared_lists(each)) for each in eps)
    )
