"""What goes into a package, and where: every file with its digests, before anything is copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from epctx.commands.package import assets
from epctx.commands.package.variants import BuiltGroup, BuiltModel
from epctx.files.digest import Digest
from epctx.files.items import Item, digest_of


class Contents(Struct, frozen=True, kw_only=True):
    """Every file of a package but its manifest and sums.

    Attributes:
        folders: of each group of each target, in the order given, the folder of its variants.
        data: of (folder, model) the asset that has the model's external data.
        items: every file, by its path in the package, with `/`.
        saved: bytes that would be stored again if nothing were shared.
    """

    folders: tuple[str, ...]
    data: Mapping[tuple[str, str], Digest]
    items: Mapping[str, Item]
    saved: int


def arrange(
    groups: Sequence[BuiltGroup], shared: Iterable[Mapping[str, Item]], *, apart: bool = False
) -> Contents:
    """Give every file its place.

    Folders that are the same to the byte are one. External data that the models of several folders
    have in common, file for file, goes into an asset.

    Args:
        groups: what was built, in the order of the variants.
        shared: the assets of the manifest.
        apart: each folder has all that its models need: onnxruntime-genai opens it alone.
    """
    items: dict[str, Item] = {}
    for files in shared:
        _put(items, assets.folder(digest_of(files)), files)
    wholes: dict[Digest, str] = {}
    folders: list[str] = []
    held: dict[str, tuple[BuiltGroup, Mapping[str, Item]]] = {}
    saved = 0
    for group in groups:
        files = group.files
        place = wholes.setdefault(digest_of(files), f"{group.target}/{group.name}")
        folders.append(place)
        if place in held:
            saved += sum(item.size for item in files.values())
        held.setdefault(place, (group, files))
    data: dict[tuple[str, str], Digest] = {}
    common = _common(held.values())
    for place, (group, files) in held.items():
        left = dict(files)
        for model in group.models:
            hashed = _data_of(model, files)
            if hashed is not None and common[hashed] > 1 and not apart:
                data[place, model.name] = hashed
                moved = {name: files[name] for name in model.data}
                target = assets.folder(hashed)
                if moved.keys() <= left.keys() and f"{target}/{model.data[0]}" in items:
                    saved += sum(item.size for item in moved.values())
                left = {name: item for name, item in left.items() if name not in moved}
                _put(items, target, moved)
        _put(items, place, left)
    return Contents(folders=tuple(folders), data=data, items=items, saved=saved)


def _common(held: Iterable[tuple[BuiltGroup, Mapping[str, Item]]]) -> Counter[Digest]:
    """How many folders have the same external data of a model."""
    return Counter(
        hashed
        for group, files in held
        for hashed in {_data_of(model, files) for model in group.models}
        if hashed is not None
    )


def _data_of(model: BuiltModel, files: Mapping[str, Item]) -> Digest | None:
    """The canonical hash of a model's external data; None if it has none."""
    return digest_of({name: files[name] for name in model.data}) if model.data else None


def _put(items: dict[str, Item], folder: str, files: Mapping[str, Item]) -> None:
    items.update({f"{folder}/{name}": item for name, item in files.items()})
