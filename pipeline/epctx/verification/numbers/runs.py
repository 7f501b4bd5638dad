"""The files of models: opened, run on inputs, judged; models that share a context all together.

Sources, parts of a composition and golden outputs differ in what is right and in what they tell the
user; what they do is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from epctx.errors import EpctxError, ProviderUnavailable
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.graph.inputs import Array
from epctx.verification.findings import REBUILD, Finding, OutputNumbers
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.numbers import compare, sessions
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.tasks import finding, obstacle, unchecked, words

if TYPE_CHECKING:
    from epctx.providers.base import ExecutionProvider
    from epctx.runtime.session import Session

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


class Budget:
    """The time that numbers may take. Its clock starts with it; None: as long as they need."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds

    @property
    def used_up(self) -> bool:
        """Whether nothing more is to be run."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def finding(self, model: ContextModel, case: Case) -> Finding:
        """That an input set was left out."""
        message = f"{case.label}: not checked: budget ({self._seconds:g} s are used up)"
        return unchecked(model, message, "raise `verify.budget`")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model whose files are loaded and run.

    Attributes:
        name: what the manifest calls it.
        cases: the input sets, each with the outputs that are right; taken once.
        judge: compares; None: it is loaded and not run.
    """

    model: ContextModel
    name: str
    cases: Iterable[tuple[Case, Outputs]] = ()
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
    """Runs files of a folder; what they tell is of sources, unless a subclass says otherwise."""

    folder: GroupFolder
    started: Started
    budget: Budget

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
                del session
            for number in range(len(opened)):
                yield from self.judge(*opened[number])
        finally:
            sessions.close([session for _, session in opened])

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
        for case, right in run.cases:
            if self.budget.used_up:
                yield self.budget.finding(run.model, case)
                continue
            try:
                actual = sessions.run_files(session, case.feeds)
            except Exception as error:  # onnxruntime's errors have no common class
                yield self.failed(run.model, case, error)
                continue
            yield from run.judge.judge(case.label, self.expected(right, actual), actual)
        yield from run.judge.summary()

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
        if others
        and all(name in each and compare.compare(value, each[name]).equal for each in others)
    )
