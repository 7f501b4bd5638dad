"""The files of models: opened, run on inputs, judged; models that share a context all together.

Sources, parts of a composition and golden outputs differ in what is right and in what they tell the
user; what they do is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from epctx.errors import EpctxError, ProviderUnavailable
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.graph.inputs import Array
from epctx.providers.base import ExecutionProvider
from epctx.runtime.session import Session
from epctx.verification.findings import NOT_CHECKED, REBUILD, Finding, OutputNumbers
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.numbers import sessions
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.tasks import finding, obstacle, unchecked, words

_UNOPTIMIZED: Final = (
    "build it with `optimize: {level: none}`: if it loads then, a pass of epctx has made what ONNX "
    "Runtime does not take; report it"
)
Found = Finding | OutputNumbers
Outputs = Mapping[str, Array]
Started = Callable[[str], None]
"""Hears, before it happens, of which model the EPs load and run files: native code may crash."""


def unheard(model: str) -> None:
    """Nobody wants to know."""


class Pause(Struct, frozen=True, kw_only=True):
    """The moment before something is run that nobody can interrupt.

    Attributes:
        model: what the manifest calls the model that is run.
        number: of its input set, from 1 on; 0: it is no run of the model's files on one.
        of: how many input sets it has.
        left: seconds until the budget ends; None: it does not.
        rest: what is to be said beside what was found before, if all ends here.
    """

    model: str
    number: int = 0
    of: int = 0
    left: float | None = None
    rest: Iterable[Found] = ()


def unpaused(pause: Pause) -> None:
    """Nobody ends what is run."""


class Budget:
    """The time that numbers may take. Its clock starts with it.

    Args:
        seconds: None: as long as they need.
        spent: of them, before.
        pausing: hears of each moment before a run: what is run does not look at the clock, so it
            must be ended by others.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        spent: float = 0.0,
        pausing: Callable[[Pause], None] = unpaused,
    ) -> None:
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds - spent
        self._pausing = pausing

    @property
    def used_up(self) -> bool:
        """Whether nothing more is to be run."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def pause(self, pause: Pause) -> None:
        """Before something is run: let whoever can end it know what holds then."""
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        self._pausing(replace(pause, left=left))

    def finding(self, model: ContextModel, case: Case | None = None) -> Finding:
        """That an input set was left out; None: all of a model's that were not told yet."""
        which = "" if case is None else f"{case.label}: "
        message = f"{which}{NOT_CHECKED}budget ({self._seconds:g} s are used up)"
        return unchecked(model, message, "raise `verify.budget`")


class Run(Struct, frozen=True, kw_only=True):
    """A model whose files are loaded and run.

    Attributes:
        name: what the manifest calls it.
        cases: the input sets, each with the outputs that are right; taken once.
        count: how many they are; 0: that is not known.
        judge: compares; None: it is loaded and not run.
    """

    model: ContextModel
    name: str
    cases: Iterable[tuple[Case, Outputs]] = ()
    count: int = 0
    judge: Judge | None = None

    @classmethod
    def load(cls, model: ContextModel) -> Run:
        """No run of it: it is loaded, so that nothing is shipped that no session takes."""
        return cls(model=model, name=model.file.removesuffix(CONTEXT_SUFFIX))

    def unchecked(self, message: str, remedy: str) -> Finding:
        """That it could not even be loaded here, and why."""
        check = "loads" if self.judge is None else "outputs"
        return finding(self.model, check, "not checkable", message, remedy)


@dataclass
class Runs:
    """Runs files of a folder; what they tell is of sources, unless a subclass says otherwise.

    `left`: the files of which nothing was told yet, if the budget ends now.
    """

    folder: GroupFolder
    started: Started
    budget: Budget
    left: dict[str, ContextModel] = field(default_factory=dict, init=False)

    def run(self, runs: Iterable[Run], *, sharing: bool) -> Iterator[Found]:
        """Load models together, run them in their order, and destroy them in reverse order.

        Args:
            sharing: their context is shared.
        """
        opened: list[tuple[Run, Session]] = []
        try:
            for run in runs:
                session = yield from self._open(run, sharing=sharing)
                if session is not None:
                    opened.append((run, session))
                else:
                    self.left.pop(run.model.file, None)
                del session
            for number in range(len(opened)):
                self.left.pop(opened[number][0].model.file, None)
                yield from self.judge(*opened[number])
        finally:
            sessions.close([session for _, session in opened])

    def untold(self) -> Iterator[Finding]:
        """What is to be said of the files of which nothing was, if the budget ends now."""
        return map(self.budget.finding, list(self.left.values()))

    def _open(self, run: Run, *, sharing: bool) -> Generator[Found, None, Session | None]:
        model = run.model
        never = obstacle(self.folder, model, sharing=sharing)
        if never is not None:
            yield run.unchecked(f"not on this host: {never[0]}", never[1])
            return None
        if self.budget.used_up:
            for case, _ in run.cases:
                yield self.budget.finding(model, case)
            return None
        self.started(run.name)
        self.budget.pause(Pause(model=run.name, rest=self.untold()))
        try:
            session = sessions.open_files(
                self.folder.path / model.file,
                self.providers(model),
                sharing=sharing,
                data=self.folder.data_folder(model),
            )
        except Exception as error:  # onnxruntime's errors have no common class
            yield self.refused(model, error)
            return None
        yield from self.loaded(model, session)
        return session

    def judge(self, run: Run, session: Session) -> Iterator[Found]:
        """Run a model on each of its input sets, as far as the budget goes."""
        if run.judge is None:
            return
        self.started(run.name)
        for number, (case, right) in enumerate(run.cases):
            if self.budget.used_up:
                yield self.budget.finding(run.model, case)
                continue
            self.budget.pause(self._before(run, case, number))
            try:
                actual = sessions.run_files(session, case.feeds)
            except Exception as error:  # onnxruntime's errors have no common class
                yield self.failed(run.model, case, error)
                continue
            yield from run.judge.judge(case.label, self.expected(right, actual), actual)
        yield from run.judge.summary()
        self.budget.pause(
            Pause(model=run.name, number=run.count + 1, of=run.count, rest=self.untold())
        )

    def _before(self, run: Run, case: Case, number: int) -> Pause:
        """Before a run on the input set `number`, which does not end if the budget ends first."""

        def rest() -> Iterator[Found]:
            assert run.judge is not None
            yield self.budget.finding(run.model, case)
            if number + 1 < run.count:
                left = run.count - number - 1
                message = f"{left} more input set{'s' * (left > 1)}"
                yield self.budget.finding(run.model, replace(case, label=message))
            yield from run.judge.summary()
            yield from self.untold()

        return Pause(model=run.name, number=number + 1, of=run.count, rest=rest())

    def providers(self, model: ContextModel) -> Sequence[ExecutionProvider]:
        """A model's EPs, as the runtime takes them."""
        return self.folder.providers.of(model.sources)

    def loaded(self, model: ContextModel, session: Session) -> Iterator[Finding]:
        """What a model tells that could be loaded."""
        apart = session.get_reason_apart()
        how = "" if apart is None else f", each EP in a session of its own: {apart}"
        yield finding(model, "loads", "pass", f"loads on this host{how}")

    def refused(self, model: ContextModel, error: Exception) -> Finding:
        """What a model tells that could not."""
        if isinstance(error, ProviderUnavailable):
            return unchecked(model, f"not on this host: {words(error)}", error.remedy)
        if isinstance(error, EpctxError):
            return finding(model, "loads", "fail", words(error), error.remedy)
        return finding(model, "loads", "fail", f"cannot be loaded: {words(error)}", _UNOPTIMIZED)

    def failed(self, model: ContextModel, case: Case, error: Exception) -> Finding:
        """What an input set tells on which a model that was loaded does not run."""
        if isinstance(error, EpctxError):
            return finding(model, "runs", "fail", f"{case.label}: {words(error)}", error.remedy)
        message = f"{case.label}: fails where its source runs: {words(error)}"
        return finding(model, "runs", "fail", message, REBUILD)

    def expected(self, right: Outputs, actual: Outputs) -> Outputs:
        """What is right, in the types of what was computed where only bits are kept of it."""
        return right


def constant(results: Sequence[Outputs]) -> frozenset[str]:
    """The outputs that are the same on all of several input sets."""
    first, *others = results
    return frozenset(
        name
        for name, value in first.items()
        if others and all(name in each and _equal(value, each[name]) for each in others)
    )


def _equal(one: Array, other: Array) -> bool:
    same = np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return one.dtype == other.dtype and same
