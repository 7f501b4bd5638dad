"""Numbers of a composition: one session of the whole against its parts, run one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx
from msgspec.structs import replace

from epctx.errors import ModelError, ProviderUnavailable
from epctx.files.outputs import context_file
from epctx.graph import inputs as graph_inputs
from epctx.graph import wiring
from epctx.graph.inputs import Array, Hint, InputSpec
from epctx.graph.serde import reader
from epctx.graph.wiring import Interface, Port, Wiring
from epctx.inference import values
from epctx.inference.feeds import Feeds
from epctx.inference.session import Session
from epctx.manifest import Composition, CompositionPart
from epctx.providers.base import ExecutionProvider, Precision
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder, summarize
from epctx.verification.numbers import (
    expected,
    recordings,
    sessions,
    sizes,
    tolerances,
)
from epctx.verification.numbers import source_model as sources
from epctx.verification.numbers.expected import REPEATS, drawn, tell_random
from epctx.verification.numbers.files import Feeding, Started
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.judge import Judge, constant
from epctx.verification.numbers.policy import Found, judged, loads
from epctx.verification.numbers.sizes import Sizes
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import finding, obstacle, unchecked, words
from epctx.verification.request import BuiltPart, Composed, Kept

RunPart = Callable[[BuiltPart, Sequence[Feeds]], Sequence[Feeds]]
"""Runs a part on several inputs; returns the outputs for each, by name."""
_SIZES: Final = "set `verify.inputs.dimensions` of the composition"
_ON_DEVICE: Final = "verify it on the device"


def interfaces(composed: Composed) -> tuple[Interface, ...]:
    """Return the interfaces of the built parts, with the manifest's entries.

    Raises:
        ModelError: a part is missing or cannot be read.
    """
    return tuple(_interface(each.part, reader.read(each.path)) for each in composed.parts)


def require_wirable(composition: Composition, models: Mapping[str, onnx.ModelProto]) -> None:
    """Check before a compile that the sources of the parts fit together as the manifest says.

    Args:
        composition: the manifest's composition.
        models: inputs and outputs of the source models, by name.

    Raises:
        ManifestError, ModelError: as `wiring.resolve`.
    """
    parts = [_interface(part, models[part.model]) for part in composition.parts]
    wiring.resolve(parts, outputs_of(composition), where=where(composition))


def where(composition: Composition) -> str:
    """Return the name of a composition in messages."""
    return f"compose.{composition.name}"


def outputs_of(composition: Composition) -> Mapping[str, Port] | None:
    """Return the outputs that the manifest names; None if it names none."""
    if composition.outputs is None:
        return None
    return {n: Port(part=o.part, name=o.output) for n, o in composition.outputs.items()}


def inputs_of(composed: Composed, wired: Wiring, model: ContextModel) -> tuple[InputSpec, ...]:
    """Return the inputs of the whole, with the hints of its parts' sources."""
    hints: dict[Port, Hint | None] = {}
    for built in composed.parts:
        for spec in sources.inputs(built.source):
            hints[Port(part=built.part.name, name=spec.name)] = spec.hint
    return tuple(
        replace(
            spec,
            hint=next((h for p in wired.inputs.get(spec.name, ()) if (h := hints.get(p))), None),
        )
        for spec in model.inputs
    )


def precisions(composed: Composed, wired: Wiring) -> dict[str, Precision]:
    """Return the precision of each output, through the parts that it depends on."""
    by_port: dict[Port, Precision] = {}
    for built in composed.parts:
        links = {to.name: p for to, p in wired.links.items() if to.part == built.part.name}
        fed = {name: by_port[port] for name, port in links.items() if port in by_port}
        with contextlib.suppress(ModelError):
            own = tolerances.precisions(reader.read(built.source.path), fed)
            by_port |= {Port(part=built.part.name, name=name): each for name, each in own.items()}
    return {name: by_port[port] for name, port in wired.outputs.items() if port in by_port}


def probable(composed: Composed, wired: Wiring) -> frozenset[str]:
    """Return the outputs that end in a Sigmoid or Softmax of the part that gives them."""
    sources = {built.part.name: built.source for built in composed.parts}
    names: set[str] = set()
    for name, port in wired.outputs.items():
        with contextlib.suppress(ModelError):
            model = reader.read(sources[port.part].path)
            names.update({name} if port.name in tolerances.probability_outputs(model) else ())
    return frozenset(names)


def _sources(composed: Composed) -> Iterator[SourceModel]:
    """Yield the sources of the parts that can be read."""
    for built in composed.parts:
        with contextlib.suppress(ModelError):
            yield SourceModel.read(built.source)


def one_after_the_other(
    composed: Composed, wired: Wiring, all_feeds: Sequence[Feeds], run: RunPart
) -> list[Feeds]:
    """Run the parts one after the other; return the whole's outputs for each of `all_feeds`."""
    computed: list[dict[Port, Array]] = [
        {port: each[name] for name, ports in wired.inputs.items() for port in ports}
        for each in all_feeds
    ]
    for built, interface in zip(composed.parts, interfaces(composed), strict=True):
        own = [Port(part=built.part.name, name=spec.name) for spec in interface.inputs]
        makers = {port: wired.links.get(port, port) for port in own}
        for port in makers.values():
            if any(port not in each for each in computed):
                raise sessions.NotComparable(
                    f"output '{port.name}' of {port.part} is not a tensor, and no part takes it"
                )
        fed = [{port.name: each[maker] for port, maker in makers.items()} for each in computed]
        for each, outputs in zip(computed, run(built, fed), strict=True):
            each |= {Port(part=built.part.name, name=n): array for n, array in outputs.items()}
    return [dict(_whole_outputs(wired, each)) for each in computed]


def _whole_outputs(wired: Wiring, computed: Mapping[Port, Array]) -> Iterator[tuple[str, Array]]:
    """Yield the whole's outputs; a sequence or map is several arrays."""
    for name, port in wired.outputs.items():
        for source, array in computed.items():
            suffix = values.suffix(source.name, port.name) if source.part == port.part else None
            if suffix is not None:
                yield f"{name}{suffix}", array


def find_sizes(
    input_sets: InputSets, inputs: Sequence[InputSpec], run: Callable[[Feeds], object]
) -> tuple[Sizes, ...]:
    """Return sizes of a composition's open dimensions at which its parts run. The result is one
    empty set if no dimension is open, or inputs come from files. Raises NotFound.
    """

    def runs(at: Sizes) -> str | None:
        try:
            run(input_sets.case(inputs, 0, at).feeds)
        except Exception as error:  # onnxruntime's errors have no common class
            return sessions.words(error)
        return None

    return input_sets.sizes(inputs, runs)


def _interface(part: CompositionPart, proto: onnx.ModelProto) -> Interface:
    return Interface(
        name=part.name,
        inputs=graph_inputs.specs(proto),
        outputs=wiring.outputs(proto),
        prefix=part.prefix,
        links={name: Port(part=o.part, name=o.output) for name, o in part.links.items()},
        outer=part.inputs,
    )


def run_parts(
    composed: Composed,
    folder: GroupFolder,
    kept: Kept,
    earlier: Sequence[Finding],
    started: Started,
) -> None:
    """Run the parts one after the other on all input sets, and keep the right outputs of the whole.

    Args:
        folder: folder of the composition.
        kept: folders of the outputs, or of the reason why there are none.
        earlier: earlier findings; nothing is run if a check failed.
        started: called with each model before native code loads it.
    """
    composition = composed.composition
    model = _model(composed, folder)
    off = composition.verify.numbers == "off"
    if model is None or off or any(each.outcome == "fail" for each in earlier):
        return
    if obstacle(folder, model, sharing=False) is not None:
        return

    def run(built: BuiltPart, all_feeds: Sequence[Feeds]) -> list[Feeds]:
        started(built.part.model, 0, 0)
        part = summarize(built.path.name, reader.read(built.path))
        providers = _ordered(folder, part)
        session = sessions.open_files(built.path, providers, sharing=False, data=built.folder)
        try:
            return [sessions.run_files(session, each) for each in all_feeds]
        finally:
            sessions.close([session])

    refused = _run_parts(composed, model, kept, run)
    if refused is not None:
        recordings.keep(kept.source, composition.name, expected.REFUSAL, refused)


def _run_parts(composed: Composed, model: ContextModel, kept: Kept, run: RunPart) -> Finding | None:
    """Keep the parts' outputs; return the finding why there are none, or None."""
    composition, name = composed.composition, composed.composition.name
    try:
        parts = interfaces(composed)
    except ModelError as error:
        reason = f"a part to compare with is not there: {error.where}"
        return unchecked(model, reason, "verify the whole output folder, with the parts")
    wired = wiring.resolve(parts, outputs_of(composition), where=where(composition))
    inputs, input_sets = inputs_of(composed, wired, model), InputSets(composition.verify.inputs)
    problems = input_sets.problems(inputs)
    if problems:
        return unchecked(model, "; ".join(problems), input_sets.remedy(inputs))
    try:
        size_sets = find_sizes(
            input_sets, inputs, lambda fed: one_after_the_other(composed, wired, [fed], run)
        )
    except sizes.NotFound as error:
        reason = f"its parts do not run at {sizes.words(error.sizes)}: {error.why}"
        return unchecked(model, reason, _SIZES)
    if size_sets[0]:
        recordings.keep(kept.source, name, expected.SIZES, size_sets)
    all_feeds = [case.feeds for case in input_sets.cases(inputs, size_sets)]
    random: frozenset[str] = frozenset()
    try:
        outputs = one_after_the_other(composed, wired, all_feeds, run)
        if all_feeds and any(source.may_draw for source in _sources(composed)):
            again = iter(one_after_the_other(composed, wired, all_feeds[-1:] * (1 + REPEATS), run))
            random = drawn(lambda: next(again))
    except Exception as error:  # onnxruntime's errors have no common class
        return unchecked(model, f"a part does not run by itself: {words(error)}", _ON_DEVICE)
    for feeds, right in zip(all_feeds, outputs, strict=True):
        recordings.write(kept.source, name, feeds, right)
    recordings.keep(kept.source, name, expected.RANDOM, sorted(random))
    return None


def _model(composed: Composed, folder: GroupFolder) -> ContextModel | None:
    """Return the composition's model; None if it is missing, which conformance reports."""
    file = context_file(composed.composition.name)
    return next((each for each in folder.models if each.file == file), None)


def _ordered(folder: GroupFolder, model: ContextModel) -> Sequence[ExecutionProvider]:
    """Return a model's EPs in the manifest's order."""
    providers = folder.providers.of(model.sources)
    return [each for each in folder.providers.asked or () if any(each is one for one in providers)]


class Whole(Feeding):
    """The input sets of a composition on which its parts have run."""

    def __init__(self, composed: Composed, kept: Kept) -> None:
        self._composed = composed
        self._kept = kept
        self._sets = InputSets(composed.composition.verify.inputs)
        self.count = self._sets.count

    def cases(self, model: ContextModel, index: int | None) -> Iterator[Case]:
        """Yield the cases of one input set, or of all."""
        name, source = self._composed.composition.name, self._kept.source
        if recordings.kept(source, name, expected.RANDOM, tuple[str, ...]) is None:
            return  # the parts were not run
        wired = _wired(self._composed)
        inputs = inputs_of(self._composed, wired, model)
        size_sets = expected.read_sizes(source, name)
        if index is None:
            yield from self._sets.cases(inputs, size_sets)
        elif index < self.count:
            yield from self._sets.nth(inputs, index, size_sets)

    def providers(self, folder: GroupFolder, model: ContextModel) -> Sequence[ExecutionProvider]:
        """Return its EPs in the manifest's order."""
        return _ordered(folder, model)

    def loaded(
        self, folder: GroupFolder, model: ContextModel, session: Session
    ) -> Iterator[Finding]:
        """Yield the findings of a load. If the numbers come from several sessions, also load the
        model in one.
        """
        apart = session.get_reason_apart()
        if apart is None:
            yield finding(model, "loads", "pass", "loads on this host, in one session")
            return
        try:
            sessions.load_natively(folder.path / model.file, folder.providers.of(model.sources))
        except Exception as error:  # onnxruntime's errors have no common class
            message = f"not in one session of onnxruntime here: {sessions.words(error)}"
        else:
            message = "loads in one session of onnxruntime, and was not run in it"
        yield finding(model, "loads", "not checkable", f"{message}: {apart}", _ON_DEVICE)

    def refused(self, model: ContextModel, error: Exception) -> Finding:
        """Return the finding about a model that could not be loaded."""
        if isinstance(error, ProviderUnavailable):
            return super().refused(model, error)
        remedy = (
            "these EPs may not run in one session in this order: try another order of the "
            "parts, `embed_mode: 1`, or sessions of their own"
        )
        message = f"cannot be loaded in one session: {words(error)}"
        return finding(model, "loads", "fail", message, remedy)

    def failed(self, model: ContextModel, case: Case, error: Exception) -> Finding:
        """Return the finding about a model that does not run on a case."""
        message = f"{case.label}: fails where its parts run: {sessions.words(error)}"
        return finding(model, "runs", "fail", message, "ship the parts apart")


def _wired(composed: Composed) -> Wiring:
    composition = composed.composition
    return wiring.resolve(interfaces(composed), outputs_of(composition), where=where(composition))


@dataclass(frozen=True, kw_only=True)
class ComposedNumbers:
    """Every output of the whole, on every input set; `kept` as in `Numbers`."""

    composed: Composed
    kept: Kept | None = None
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Compare the whole with its parts; raises as `Numbers.check` does."""
        composition = self.composed.composition
        model = _model(self.composed, folder)
        failed = next((each for each in earlier if each.outcome == "fail"), None)
        if model is None or self.kept is None:
            return
        if composition.verify.numbers == "off":
            reason, remedy = "the manifest says `numbers: off`", "set `verify.numbers` to full"
            yield unchecked(model, reason, remedy)
        elif failed is not None:
            reason = f"not run, since {failed.policy} failed: {failed.subject} {failed.message}"
            yield unchecked(model, reason, "fix that first")
            return
        else:
            yield from self._judge(model, folder, self.kept)
            return
        yield from loads(model, self.kept, earlier)

    def _judge(self, model: ContextModel, folder: GroupFolder, kept: Kept) -> Iterator[Found]:
        composition, name = self.composed.composition, self.composed.composition.name
        refused = recordings.kept(kept.source, name, expected.REFUSAL, Finding)
        cases = list(Whole(self.composed, kept).cases(model, None)) if refused is None else []
        findings = list(loads(model, kept, (), runs=bool(cases)))
        if refused is not None:
            yield refused
        if not cases:
            yield from findings
            return
        InputSets(composition.verify.inputs).refuse_unused([model.inputs])
        rights = [recordings.read(kept.source, name, case.feeds) or {} for case in cases]
        random = recordings.kept(kept.source, name, expected.RANDOM, tuple[str, ...]) or ()
        yield from tell_random(model, frozenset(random))
        both = list(zip(cases, rights, strict=True))
        idle = constant([right for case, right in both if case.sizes == cases[0].sizes])
        if idle:
            listed = ", ".join(repr(each) for each in rights[0] if each in idle)
            message = (
                f"its outputs {listed} do not depend on the inputs: this comparison cannot fail"
            )
            remedy = "verify it with other inputs"
            yield finding(model, "sensitivity", "not checkable", message, remedy)
        yield from findings
        if any(each.outcome == "fail" for each in findings):
            return
        wired = _wired(self.composed)
        judge = Judge(
            file=model.file,
            sessions="files",
            providers=folder.providers.of(model.sources),
            precision=precisions(self.composed, wired),
            probabilities=probable(self.composed, wired),
            known={case.label: right for case, right in both},
            asked=composition.verify.tolerance,
            inputs="given" if composition.verify.inputs.files else "generated",
            right="its parts, run one after the other",
            random=frozenset(random),
        )
        yield from judged(model, kept, both, judge)
