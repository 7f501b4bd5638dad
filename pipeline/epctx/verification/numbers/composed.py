"""Numbers of a composition: one session of the whole against its parts, run one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from epctx.errors import ModelError, ProviderUnavailable
from epctx.files.outputs import context_file
from epctx.graph import inputs as graph_inputs
from epctx.graph.input_ranges import Hint
from epctx.graph.inputs import Array, InputSpec
from epctx.graph.join import wiring
from epctx.graph.join.wiring import Interface, Port, Wiring
from epctx.graph.serde import skeleton
from epctx.manifest import Composition
from epctx.providers.base import ExecutionProvider
from epctx.providers.hooks import Precision
from epctx.runtime import values
from epctx.runtime.feeds import Feeds
from epctx.runtime.session import Session
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder, summarize
from epctx.verification.numbers import precision, probabilities, sessions, sizes
from epctx.verification.numbers import source_model as sources
from epctx.verification.numbers.expected import differing, tell_random
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.runs import (
    Budget,
    Found,
    Pause,
    Run,
    Runs,
    Started,
    constant,
    unheard,
    unpaused,
)
from epctx.verification.numbers.sizes import Sizes
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import finding, obstacle, unchecked, words
from epctx.verification.request import BuiltPart, Composed

RunPart = Callable[[BuiltPart, Sequence[Feeds]], Sequence[Feeds]]
"""Runs a part on several inputs: for each its outputs, by name."""
_SIZES: Final = "set `verify.inputs.dimensions` of the composition"
_ON_DEVICE: Final = "verify it on the device"


def interfaces(composed: Composed) -> tuple[Interface, ...]:
    """The parts as they were built, and what the manifest says of each.

    Raises:
        ModelError: a part is missing or cannot be read.
    """
    return tuple(map(_interface, composed.parts))


def where(composition: Composition) -> str:
    """How messages name a composition."""
    return f"compose.{composition.name}"


def outputs_of(composition: Composition) -> Mapping[str, Port] | None:
    """The outputs that the manifest asks for; None: it leaves them open."""
    if composition.outputs is None:
        return None
    return {n: Port(part=o.part, name=o.output) for n, o in composition.outputs.items()}


def inputs_of(composed: Composed, wired: Wiring, model: ContextModel) -> tuple[InputSpec, ...]:
    """What the whole is fed, with what the parts' sources imply of it."""
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
    found: dict[Port, Precision] = {}
    for built in composed.parts:
        links = {to.name: p for to, p in wired.links.items() if to.part == built.part.name}
        fed = {name: found[port] for name, port in links.items() if port in found}
        with contextlib.suppress(ModelError):
            own = precision.precisions(skeleton.read(built.source.path), fed)
            found |= {Port(part=built.part.name, name=name): each for name, each in own.items()}
    return {name: found[port] for name, port in wired.outputs.items() if port in found}


def probable(composed: Composed, wired: Wiring) -> frozenset[str]:
    """Return the outputs that end in a Sigmoid or Softmax of the part that gives them."""
    sources = {built.part.name: built.source for built in composed.parts}
    found: set[str] = set()
    for name, port in wired.outputs.items():
        with contextlib.suppress(ModelError):
            model = skeleton.read(sources[port.part].path)
            found.update({name} if port.name in probabilities.outputs(model) else ())
    return frozenset(found)


def _sources(composed: Composed) -> Iterator[SourceModel]:
    """The sources of the parts, as far as they are there."""
    for built in composed.parts:
        with contextlib.suppress(ModelError):
            yield SourceModel.read(built.source)


def one_after_the_other(
    composed: Composed, wired: Wiring, given: Sequence[Feeds], run: RunPart
) -> list[Feeds]:
    """What the parts give, by the whole's names of outputs, for each of `given`, by its inputs'."""
    known: list[dict[Port, Array]] = [
        {port: each[name] for name, ports in wired.inputs.items() for port in ports}
        for each in given
    ]
    for built, interface in zip(composed.parts, interfaces(composed), strict=True):
        own = [Port(part=built.part.name, name=spec.name) for spec in interface.inputs]
        makers = {port: wired.links.get(port, port) for port in own}
        for port in makers.values():
            if any(port not in each for each in known):
                raise sessions.NotComparable(
                    f"output '{port.name}' of {port.part} is no tensor, and no other part is fed it"
                )
        fed = [{port.name: each[maker] for port, maker in makers.items()} for each in known]
        for each, made in zip(known, run(built, fed), strict=True):
            each |= {Port(part=built.part.name, name=n): array for n, array in made.items()}
    return [dict(_given(wired, each)) for each in known]


def _given(wired: Wiring, known: Mapping[Port, Array]) -> Iterator[tuple[str, Array]]:
    """The whole's outputs; of sequences and maps all that is told of them."""
    for name, port in wired.outputs.items():
        for made, array in known.items():
            suffix = values.suffix(made.name, port.name) if made.part == port.part else None
            if suffix is not None:
                yield f"{name}{suffix}", array


def find_sizes(
    input_sets: InputSets, inputs: Sequence[InputSpec], run: Callable[[Feeds], object]
) -> tuple[Sizes, ...]:
    """Sizes for the open dimensions of a composition, at which its parts run; one empty set where
    it has none, or is fed from files. Raises NotFound.
    """

    def runs(at: Sizes) -> str | None:
        try:
            run(input_sets.case(inputs, 0, at).feeds)
        except Exception as error:  # onnxruntime's errors have no common class
            return sessions.words(error)
        return None

    return input_sets.sizes(inputs, runs)


def _interface(built: BuiltPart) -> Interface:
    proto, part = skeleton.read(built.path), built.part
    return Interface(
        name=part.name,
        inputs=graph_inputs.specs(proto),
        outputs=wiring.outputs(proto),
        prefix=part.prefix,
        links={name: Port(part=o.part, name=o.output) for name, o in part.links.items()},
        outer=part.inputs,
    )


@dataclass(frozen=True, kw_only=True)
class ComposedNumbers:
    """Every output of the whole, on every input set."""

    composed: Composed
    started: Started = unheard
    pausing: Callable[[Pause], None] = unpaused
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Run the parts one after the other, then the whole; raises as `Numbers.check` does."""
        composition = self.composed.composition
        file = context_file(composition.name)
        model = next((each for each in folder.models if each.file == file), None)
        failed = next((each for each in earlier if each.outcome == "fail"), None)
        if model is None:
            return  # told by conformance
        if composition.verify.numbers == "off":
            reason, remedy = "the manifest says `numbers: off`", "set `verify.numbers` to full"
            yield unchecked(model, reason, remedy)
            if failed is None:
                run = _Run(folder, self.started, Budget(None), self.composed, model)
                yield from run.run([Run.load(model)], sharing=False)
        elif failed is not None:
            reason = f"not run, since {failed.policy} failed: {failed.subject} {failed.message}"
            yield unchecked(model, reason, "mend that first")
        else:
            run = _Run(folder, self.started, Budget(None), self.composed, model)
            yield from run.check()


@dataclass
class _Run(Runs):
    """The numbers of one composition."""

    composed: Composed
    model: ContextModel

    def check(self) -> Iterator[Found]:
        """Compare it; where that cannot be, load it at least."""
        compared = False
        for found in self._compare():
            compared = compared or (isinstance(found, Finding) and found.check == "loads")
            yield found
        if not compared:
            yield from self.run([Run.load(self.model)], sharing=False)

    def _compare(self) -> Iterator[Found]:
        model, composition = self.model, self.composed.composition
        try:
            parts = interfaces(self.composed)
        except ModelError as error:
            reason = f"a part to compare with is not there: {error.where}"
            yield unchecked(model, reason, "verify the whole output folder, with the parts")
            return
        wired = wiring.resolve(parts, outputs_of(composition), where=where(composition))
        never = obstacle(self.folder, model, sharing=False)
        if never is not None:
            yield unchecked(model, f"not on this host: {never[0]}", never[1])
            return
        inputs = inputs_of(self.composed, wired, model)
        input_sets = InputSets(composition.verify.inputs)
        problems = input_sets.problems(inputs)
        if problems:
            yield unchecked(model, "; ".join(problems), input_sets.remedy(inputs))
            return
        try:
            found = find_sizes(
                input_sets,
                inputs,
                lambda fed: one_after_the_other(self.composed, wired, [fed], self._run_part),
            )
        except sizes.NotFound as error:
            reason = f"its parts do not run at {sizes.words(error.sizes)}: {error.why}"
            yield unchecked(model, reason, _SIZES)
            return
        cases = tuple(input_sets.cases(inputs, found))
        input_sets.refuse_unused()
        try:
            given = [case.feeds for case in cases]
            expected = one_after_the_other(self.composed, wired, given, self._run_part)
            random = self._random(wired, given[0]) if given else frozenset()
        except Exception as error:  # onnxruntime's errors have no common class
            yield unchecked(model, f"a part does not run by itself: {words(error)}", _ON_DEVICE)
            return
        yield from tell_random(model, random)
        yield from self._sensitivity(
            [each for case, each in zip(cases, expected, strict=True) if case.sizes == found[0]]
        )
        yield from self.run([self._whole(wired, cases, expected, random)], sharing=False)

    def _random(self, wired: Wiring, given: Feeds) -> frozenset[str]:
        """The outputs that differ from themselves when the sessions of the parts run twice."""
        if not any(source.may_draw for source in _sources(self.composed)):
            return frozenset()
        one, two = one_after_the_other(self.composed, wired, [given, given], self._run_part)
        return differing(one, two)

    def _sensitivity(self, expected: Sequence[Feeds]) -> Iterator[Finding]:
        """A comparison that cannot fail must not look like one that has passed."""
        idle = constant(expected)
        if idle:
            listed = ", ".join(repr(name) for name in expected[0] if name in idle)
            yield finding(
                self.model,
                "sensitivity",
                "not checkable",
                f"its outputs {listed} do not depend on the inputs: this comparison cannot fail",
                "verify it with other inputs",
            )

    def loaded(self, model: ContextModel, session: Session) -> Iterator[Finding]:
        """Also what one session of onnxruntime does where the numbers come from several."""
        apart = session.get_reason_apart()
        if apart is None:
            yield finding(model, "loads", "pass", "loads on this host, in one session")
            return
        path, providers = self.folder.path / model.file, self.folder.providers.of(model.sources)
        try:
            sessions.load_natively(path, providers)
        except Exception as error:  # onnxruntime's errors have no common class
            told = f"not in one session of onnxruntime here: {sessions.words(error)}"
        else:
            told = "loads in one session of onnxruntime, and was not run in it"
        yield finding(model, "loads", "not checkable", f"{told}: {apart}", _ON_DEVICE)

    def refused(self, model: ContextModel, error: Exception) -> Finding:
        if isinstance(error, ProviderUnavailable):
            return super().refused(model, error)
        remedy = (
            "these EPs may not run in one session in this order: try another order of the "
            "parts, `embed_mode: 1`, or sessions of their own"
        )
        message = f"cannot be loaded in one session: {words(error)}"
        return finding(model, "loads", "fail", message, remedy)

    def failed(self, model: ContextModel, case: Case, error: Exception) -> Finding:
        message = f"{case.label}: fails where its parts run: {sessions.words(error)}"
        return finding(model, "runs", "fail", message, "ship the parts apart")

    def providers(self, model: ContextModel) -> Sequence[ExecutionProvider]:
        """In the order in which the manifest has the EPs."""
        known = self.folder.providers
        found = known.of(model.sources)
        return [each for each in known.asked or () if any(each is one for one in found)]

    def _run_part(self, built: BuiltPart, given: Sequence[Feeds]) -> list[Feeds]:
        """A part in a session of its own."""
        self.started(built.part.model)
        part = summarize(built.path.name, skeleton.read(built.path))
        session = sessions.open_files(
            built.path, self.providers(part), sharing=False, data=built.folder
        )
        try:
            return [sessions.run_files(session, each) for each in given]
        finally:
            sessions.close([session])

    def _whole(
        self,
        wired: Wiring,
        cases: Sequence[Case],
        expected: Sequence[Feeds],
        random: frozenset[str],
    ) -> Run:
        return Run(
            model=self.model,
            name=self.composed.composition.name,
            judge=Judge(
                file=self.model.file,
                sessions="files",
                providers=self.folder.providers.of(self.model.sources),
                precision=precisions(self.composed, wired),
                probabilities=probable(self.composed, wired),
                known={case.label: each for case, each in zip(cases, expected, strict=False)},
                asked=self.composed.composition.verify.tolerance,
                inputs="given" if self.composed.composition.verify.inputs.files else "generated",
                right="its parts, run one after the other",
                random=random,
            ),
            cases=list(zip(cases, expected, strict=True)),
            count=len(cases),
        )
