"""Rules on a resolved model group: references, sharing, names of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from epctx.error_codes import Code
from epctx.files.filenames import MAX_FILE_LENGTH, fold
from epctx.files.filenames import problem as name_problem
from epctx.files.outputs import SUMS, context_file, data_file
from epctx.parsing.document.tree import Node, Problem, at, at_key, of_kind, quoted
from epctx.parsing.precedence import TargetTree, names, present
from epctx.parsing.rules import options
from epctx.parsing.schema import providers
from epctx.text import did_you_mean

MODEL = "{model}"


class Scope(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Group resolved for a target, and the definitions that its names refer to."""

    root: Node
    broken: frozenset[Node]
    tree: TargetTree
    name: str
    node: Node

    def unbroken(self, key: str) -> Node | None:
        """List of the group; None if the schema refused it."""
        node = self.node.get(key)
        return node if node is not None and node not in self.broken else None

    @cached_property
    def models(self) -> list[str]:
        """Models of the group."""
        listed = self.unbroken("models")
        return list(dict.fromkeys(names(listed))) if listed is not None else []

    @property
    def sharing(self) -> dict[str, Node]:
        """Sharing groups that the schema did not refuse."""
        groups = present(self.node.get("sharing_groups"))
        return {name: node for name, node in groups.items() if node not in self.broken}

    @property
    def entries(self) -> list[tuple[Node, Node]]:
        """Existing EPs of the group: the item of the list, and the entry with that name."""
        listed = self.unbroken("execution_providers")
        items = listed.items if listed is not None else ()
        providers = self.tree.providers
        return [(item, providers[item.text]) for item in items if item.string in providers]


def check(scope: Scope) -> Iterator[Problem]:
    """Find problems in a group."""
    models = scope.root.get("models")
    if models is not None and models not in scope.broken:
        yield from references(scope.unbroken("models"), models.mapping, "model")
        quantized = scope.node.get("quantize")
        for name in scope.models if quantized is not None and quantized.kind == "mapping" else ():
            if (library := models.get(name, "custom_ops")) is not None:
                what = f"group {scope.name} quantizes this model, and quantization does not support"
                yield at(
                    library,
                    f"{what} `custom_ops`",
                    "build the quantized model, or leave `quantize` out",
                )
    yield from references(scope.unbroken("execution_providers"), scope.tree.providers, "EP")
    yield from _providers_given(scope)
    yield from of_kind(Code.SHARING, _sharing(scope))
    yield from of_kind(Code.OUTPUT_CLASH, _labels(scope))
    yield from of_kind(Code.WRONG_NAME, _initializers(scope))
    yield from of_kind(Code.WRONG_NAME, _prefix(scope))
    yield from of_kind(Code.OUTPUT_CLASH, _outputs(scope))
    yield from _pieces(scope)


def outputs(scope: Scope) -> dict[str, str]:
    """Outputs of the group, by case-folded name."""
    return {fold(name): origin for name, _, origin in _files(scope)}


def references(listed: Node | None, known: Mapping[str, Node], word: str) -> Iterator[Problem]:
    """Find names in a list that do not exist; `word` is the kind of thing named."""
    for item in listed.items if listed is not None else ():
        if item.string is not None and item.string not in known:
            remedy = did_you_mean(item.string, known)
            what = f"there is no {word} {quoted(item.string)}"
            yield at(item, what, remedy, Code.NO_SUCH_NAME)


def _providers_given(scope: Scope) -> Iterator[Problem]:
    if scope.node.get("execution_providers") is None and scope.node.kind == "mapping":
        remedy = "name them here or in `defaults`; `execution_providers: []` leaves all to the CPU"
        yield at(scope.node, "has no execution_providers", remedy, Code.MISSING_KEY)
    coverage = scope.node.get("partition", "require_coverage")
    listed = scope.unbroken("execution_providers")
    wanted = coverage is not None and isinstance(coverage.value, int | float) and coverage.value > 0
    if coverage is not None and wanted and listed is not None and not listed.items:
        remedy = "name an EP in execution_providers, or write require_coverage: null"
        yield at(coverage, f"group {scope.name} has no EP that could cover anything", remedy)


def _sharing(scope: Scope) -> Iterator[Problem]:
    first_of: dict[str, str] = {}
    sharing, listed = scope.sharing, scope.unbroken("models")
    for name, members in sharing.items():
        if len(members.items) < 2:
            what, remedy = "names one model, but sharing needs several", "name another model"
            yield at(members, what, remedy)
        for item in members.items:
            if item.string is None:
                continue
            if listed is not None and item.string not in scope.models:
                remedy = did_you_mean(item.string, scope.models)
                what = f"{quoted(item.string)} is not a model of group {scope.name}"
                yield at(item, what, f"{remedy}; only models of one group can share")
            first = first_of.setdefault(item.string, name)
            if first != name:
                what = f"{item.string} is in sharing group {quoted(first)} already"
                yield at(item, what, "remove it from one: a model can be in one sharing group")
    embed = scope.node.get("embed_mode")
    if sharing and embed is not None and embed.value == 1 and not isinstance(embed.value, bool):
        what = "must be 0 where models share a context: an embedded context cannot be shared"
        yield at(embed, what, "write embed_mode: 0, or remove sharing_groups")
    yield from _sharing_provider(scope)


def _sharing_provider(scope: Scope) -> Iterator[Problem]:
    listed, groups = scope.unbroken("execution_providers"), scope.node.get("sharing_groups")
    if not scope.sharing or groups is None or listed is None or not listed.items:
        return  # without an EP, the models share their common weights
    if len(scope.entries) == len(listed.items) and not any(
        providers.can_share(entry) for _, entry in scope.entries
    ):
        named = ", ".join(item.text for item, _ in scope.entries)
        remedy = "name an EP that can share in execution_providers, or remove sharing_groups"
        yield at_key(scope.node, "sharing_groups", f"{named} cannot share a context", remedy)
    for _, entry in scope.entries:
        for option, why in providers.unshared_lists(entry):
            what = f"is a list, but models of group {scope.name} share a context: {why}"
            remedy = "remove sharing_groups, or make a target for each"
            yield at(option, what, remedy)


def _pieces(scope: Scope) -> Iterator[Problem]:
    pieces = scope.node.get("partition", "pieces")
    if pieces is None or pieces.kind != "mapping" or pieces in scope.broken:
        return
    wanted = present(pieces)
    if len(wanted) != 1:
        remedy = "set exactly one of max_memory, count and at; null removes an inherited one"
        yield at(pieces, f"sets {' and '.join(wanted) or 'nothing'} for the cuts", remedy)
    listed = scope.unbroken("execution_providers")
    if listed is not None and not listed.items:
        remedy = "name an EP in execution_providers, or write pieces: null"
        yield at(pieces, f"group {scope.name} has no EP that could compile a piece", remedy)
    for item, entry in scope.entries:
        for option, why in providers.unshared_lists(entry):
            what = f"is a list, but the models of group {scope.name} are cut into pieces: {why}"
            yield at(option, what, "remove partition.pieces, or make a target for each")
        if "max_memory" in wanted and not _measured(entry):
            what = f"the memory that a compile on {item.text} takes was not measured"
            yield at(wanted["max_memory"], what, "write `count` or `at` instead")
    numbers = scope.node.get("verify", "numbers")
    if numbers is not None and numbers.string == "generating":
        what = f"must be full: of the pieces of group {scope.name}, only the files can be run"
        yield at(numbers, what, "write numbers: full")
    for model in scope.models:
        before, _, number = model.rpartition("_")
        if before in scope.models and number.isdecimal():
            what = f"{quoted(model)} is also the name of a piece of {quoted(before)}"
            clash = f"give {quoted(model)} another key in `models`, or write pieces: null"
            yield at(pieces, what, clash, Code.OUTPUT_CLASH)


def _measured(entry: Node) -> bool:
    provider = entry.get("provider")
    named = provider.string if provider is not None else None
    return named is not None and providers.compile_memory([named]) is not None


def _labels(scope: Scope) -> Iterator[Problem]:
    first_of: dict[str, str] = {}
    for item, entry in dict(scope.entries).items():
        label = options.label(entry)
        first = first_of.setdefault(fold(label), item.text)
        if first != item.text:
            what = f"writes [model]_{label}.bin, and so does {first}"
            yield at(item, what, _other_label(entry))


def _other_label(entry: Node) -> str:
    setting = options.label_options(entry)
    other = f", or give one another `{setting[0]}` option" if setting else ""
    return f"keep one of them in the group{other}"


def _initializers(scope: Scope) -> Iterator[Problem]:
    """Find faults in the initializer files' names: unique per model, and safe on every system."""
    file = scope.node.get("external_initializers", "file")
    if file is None or not file.string or file in scope.broken:
        return
    if MODEL not in file.string and len(scope.models) > 1:
        what = f"is one file for the {len(scope.models)} models of group {scope.name}"
        yield at(file, what, f'put {MODEL} into the name: "{MODEL}.data"')
    for model in scope.models:
        name = file.string.replace(MODEL, model)
        wrong = name_problem(name, limit=MAX_FILE_LENGTH)
        if wrong is not None and name_problem(model) is None:
            yield at(file, f"names {quoted(name)}, which {wrong}", "choose another name")
            return


def _prefix(scope: Scope) -> Iterator[Problem]:
    node = scope.node.get("node_name_prefix")
    if node is None or not node.string:
        return
    for model in scope.models:
        name = node.string + model
        problem = name_problem(name)
        if problem is not None and name_problem(model) is None:
            yield at(node, f"{quoted(name)} {problem}", "choose another prefix")


def _outputs(scope: Scope) -> Iterator[Problem]:
    """Find files of the group with equal names, ignoring case (design section 6)."""
    first_of: dict[str, tuple[str, str]] = {fold(SUMS): (SUMS, "the list of checksums")}
    reported: set[Node] = set()
    for name, node, origin in _files(scope):
        first = first_of.setdefault(fold(name), (name, origin))
        if first != (name, origin) and node not in reported:
            reported.add(node)
            same = "as" if first[0] == name else f"which some systems take for {first[0]}, as"
            what = f"{origin} is written to {name}, {same} {first[1]}"
            yield at(node, what, "rename one of them")


def _files(scope: Scope) -> Iterator[tuple[str, Node, str]]:
    """Name of each output, the node that causes it, and a description.

    If models or EPs clash already, only the first one counts, so that a clash is reported once.
    """
    listed = scope.unbroken("models")
    models: dict[str, str] = {}
    for item in listed.items if listed is not None else ():
        if item.string and models.get(fold(item.string)) != item.string:
            models.setdefault(fold(item.string), item.string)
            yield context_file(item.string), item, f"model {item.string}"
    labels: dict[str, Node] = {}
    embed = scope.node.get("embed_mode")
    for item, entry in scope.entries if embed is None or embed.value != 1 else ():
        label = options.label(entry)
        if labels.setdefault(fold(label), item) is item:
            for model in _writers(scope, entry, list(models.values())):
                yield f"{model}_{label}.bin", item, f"the context of {model} on {item.text}"
    file = scope.node.get("external_initializers", "file")
    for members in scope.sharing.values() if file is None or file.kind == "null" else ():
        for first in names(members)[:1]:
            yield data_file(first), members, f"the weights that models share with {first}"
    if file is not None and file.string and file not in scope.broken:
        for model in models.values() if MODEL in file.string else list(models.values())[:1]:
            yield file.string.replace(MODEL, model), file, f"the initializer file of {model}"


def _writers(scope: Scope, entry: Node, models: list[str]) -> list[str]:
    """Models that write a context binary of the EP: only the first of each sharing group."""
    if not providers.can_share(entry):
        return models
    later = {name for members in scope.sharing.values() for name in names(members)[1:]}
    return [model for model in models if model not in later]
