"""Numbers of a composition: one session of the whole against its parts, run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from epctx.errors import EpctxError, ModelError, ProviderUnavailable
from epctx.files.outputs import context_file
from epctx.graph import inputs as graph_inputs
from epctx.graph.inputs import Array, InputSpec
from epctx.graph.join import wiring
from epctx.graph.join.wiring import Interface, Port, Wiring
from epctx.graph.serde import skeleton
from epctx.manifest import Composition
from epctx.providers.base import ExecutionProvider
from epctx.providers.hooks import Precision
from epctx.runtime.feeds import Feeds
from epctx.verification.eps import Options
from epctx.verification.findings import Finding, OutputNumbers, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder, summarize
from epctx.verification.numbers import compare, sessions
from epctx.verification.numbers import source_model as sources
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.policy import Started, unheard
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import finding, obstacle, unchecked, words
from epctx.verification.request import BuiltPart, Composed

if TYPE_CHECKING:
    from epctx.runtime.session import Session

Found = Finding | OutputNumbers
RunPart = Callable[[BuiltPart, Sequence[Feeds]], Sequence[Feeds]]
"""Runs a part on several inputs: for each its outputs, by name."""
_ON_DEVICE: Final = "verify it on the device"
_EXACTNESS: Final[tuple[Precision, ...]] = (
    "quantized",
    "bfloat16",
    "float16",
    "float32",
    "float64",
)


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
    hints: dict[Port, graph_inputs.Range | None] = {}
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


def precision(composed: Composed) -> Precision:
    """Of the least exact part."""
    found: list[Precision] = []
    for built in composed.parts:
        try:
            found.append(SourceModel.read(built.source).precision)
        except ModelError:
            continue
    return min(found, key=_EXACTNESS.index, default="float32")


def one_after_the_other(
    composed: Composed, wired: Wiring, given: Sequence[Feeds], run: RunPart
) -> list[Feeds]:
    """What the parts give by the whole's output names, for each of `given`, by its inputs' names.

    Args:
        run: runs a part on several inputs.
    """
    known: list[dict[Port, Array]] = [
        {port: each[name] for name, ports in wired.inputs.items() for port in ports}
        for each in given
    ]
    for built, interface in zip(composed.parts, interfaces(composed), strict=True):
        own = [Port(part=built.part.name, name=spec.name) for spec in interface.inputs]
        fed = [{port.name: values[wired.links.get(port, port)] for port in own} for values in known]
        for values, made in zip(known, run(built, fed), strict=True):
            values |= {Port(part=built.part.name, name=n): array for n, array in made.items()}
    return [{name: values[port] for name, port in wired.outputs.items()} for values in known]


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
    """Every output of the whole, on every input set.

    Attributes:
        composed: the composition and its parts.
        started: hears of each model whose files are loaded and run.
    """

    composed: Composed
    started: Started = unheard
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Run the parts one after the other, then the whole.

        Raises:
            ModelError: an input file of the manifest cannot be read.
            ManifestError: an input file or a range does not fit the composition.
        """
        composition = self.composed.composition
        file = context_file(composition.name)
        model = next((each for each in folder.models if each.file == file), None)
        failed = next((each for each in earlier if each.outcome == "fail"), None)
        if model is None:
            return  # told by conformance
        if composition.verify.numbers == "off":
            reason, remedy = "the manifest says `numbers: off`", "set `verify.numbers` to full"
            yield unchecked(model, reason, remedy)
        elif failed is not None:
            reason = f"not run, since {failed.policy} failed: {failed.subject} {failed.message}"
            yield unchecked(model, reason, "mend that first")
        else:
            yield from _Run(self.composed, folder, model, self.started).check()


class _Run:
    """The numbers of one composition."""

    def __init__(
        self, composed: Composed, folder: GroupFolder, model: ContextModel, started: Started
    ) -> None:
        self._started = started
        self._composed = composed
        self._folder = folder
        self._model = model
        self._settings = composed.composition.verify

    def check(self) -> Iterator[Found]:
        model, composition = self._model, self._composed.composition
        try:
            parts = interfaces(self._composed)
        except ModelError as error:
            reason = f"a part to compare with is not there: {error.where}"
            yield unchecked(model, reason, "verify the whole output folder, with the parts")
            return
        wired = wiring.resolve(parts, outputs_of(composition), where=where(composition))
        never = obstacle(self._folder, model, sharing=False)
        if never is not None:
            yield unchecked(model, f"not on this host: {never[0]}", never[1])
            return
        inputs = inputs_of(self._composed, wired, model)
        input_sets = InputSets(self._settings.inputs)
        problems = [spec.problem for spec in inputs if spec.problem is not None]
        if input_sets.generated and problems:
            remedy = "give values with `verify.inputs.files`"
            yield unchecked(model, "; ".join(problems), remedy)
            return
        cases = tuple(input_sets.cases(inputs))
        input_sets.refuse_unused()
        try:
            given = [case.feeds for case in cases]
            expected = one_after_the_other(self._composed, wired, given, self._run_part)
        except Exception as error:  # onnxruntime's errors have no common class
            told = words(error) if isinstance(error, EpctxError) else sessions.words(error)
            yield unchecked(model, f"a part does not run by itself: {told}", _ON_DEVICE)
            return
        yield from self._sensitivity(expected)
        yield from self._whole(cases, expected)

    def _sensitivity(self, expected: Sequence[Feeds]) -> Iterator[Finding]:
        """A comparison that cannot fail must not look like one that has passed."""
        first, *others = expected
        idle = [
            name
            for name, array in first.items()
            if others and all(compare.compare(array, other[name]).equal for other in others)
        ]
        if idle:
            listed = ", ".join(map(repr, idle))
            yield finding(
                self._model,
                "sensitivity",
                "not checkable",
                f"its outputs {listed} do not depend on the inputs: this comparison cannot fail",
                "verify it with other inputs",
            )

    def _open(self) -> Generator[Found, None, Session | None]:
        model = self._model
        try:
            folder = self._folder.path
            session = sessions.open_files(
                folder / model.file, self._arguments(model.sources), sharing=False, data=folder
            )
        except ProviderUnavailable as error:
            yield unchecked(model, f"not on this host: {words(error)}", error.remedy)
            return None
        except Exception as error:  # onnxruntime's errors have no common class
            told = words(error) if isinstance(error, EpctxError) else sessions.words(error)
            yield finding(
                model,
                "loads",
                "fail",
                f"cannot be loaded in one session: {told}",
                "these EPs may not run in one session in this order: try another order of the "
                "parts, `embed_mode: 1`, or sessions of their own",
            )
            return None
        apart = session.get_reason_apart()
        if apart is None:
            yield finding(model, "loads", "pass", "loads on this host, in one session")
        else:
            yield from self._load_only(apart)
        return session

    def _load_only(self, reason: str) -> Iterator[Found]:
        """What one session of onnxruntime does with it where the numbers come from several."""
        model = self._model
        try:
            sessions.load_natively(self._folder.path / model.file, self._providers())
        except Exception as error:  # onnxruntime's errors have no common class
            told = f"not in one session of onnxruntime here: {sessions.words(error)}"
        else:
            told = "loads in one session of onnxruntime, and was not run in it"
        yield finding(model, "loads", "not checkable", f"{told}: {reason}", _ON_DEVICE)

    def _arguments(self, sources: Sequence[str]) -> list[tuple[str, Options]]:
        """The EPs of nodes with these sources, in the order in which the manifest has them."""
        known = self._folder.providers
        found = [known.find(source) for source in sources]
        return [
            (provider.name, options)
            for provider, options in known.asked or ()
            if any(provider is each for each in found)
        ]

    def _providers(self) -> list[ExecutionProvider]:
        known = self._folder.providers
        found = (known.find(source) for source in self._model.sources)
        return list({id(each): each for each in found if each is not None}.values())

    def _run_part(self, built: BuiltPart, given: Sequence[Feeds]) -> list[Feeds]:
        """A part in a session of its own."""
        self._started(built.part.model)
        part = summarize(built.path.name, skeleton.read(built.path))
        session = sessions.open_files(
            built.path, self._arguments(part.sources), sharing=False, data=built.folder
        )
        try:
            return [sessions.run_files(session, each) for each in given]
        finally:
            sessions.close([session])

    def _whole(self, cases: Sequence[Case], expected: Sequence[Feeds]) -> Iterator[Found]:
        self._started(self._composed.composition.name)
        session = yield from self._open()
        if session is None:
            return
        judge = Judge(
            file=self._model.file,
            sessions="files",
            providers=self._providers(),
            precision=precision(self._composed),
            asked=self._settings.tolerance,
            right="its parts, run one after the other",
        )
        try:
            for case, right in zip(cases, expected, strict=True):
                try:
                    actual = sessions.run_files(session, case.feeds)
                except Exception as error:  # onnxruntime's errors have no common class
                    message = f"{case.label}: fails where its parts run: {sessions.words(error)}"
                    yield finding(self._model, "runs", "fail", message, "ship the parts apart")
                    continue
                yield from judge.judge(case.label, right, actual)
        finally:
            sessions.close([session])
        yield from judge.summary()
