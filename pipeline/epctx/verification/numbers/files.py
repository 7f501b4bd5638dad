"""Load the files of models and run them on input sets; the outputs are kept for verify to judge.

Models that share a context are loaded together, in the order of the sharing group, and destroyed in
reverse order (spec/ep-context-design.md, "Session Cleanup Best Practices"). Models that are not run
are loaded, too: a build must not publish a model that no session takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import onnx
from msgspec.structs import replace

from epctx.errors import EpctxError, ProviderUnavailable
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.graph import soundness
from epctx.inference.feeds import Feeds
from epctx.inference.session import Session
from epctx.manifest import ModelSource
from epctx.providers.base import ExecutionProvider
from epctx.verification.findings import REBUILD, Finding
from epctx.verification.folder import ContextModel, GroupFolder, sharing_sets, summarize
from epctx.verification.numbers import recordings, sessions
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.pieces import CHAIN, Pieces, Values
from epctx.verification.numbers.tasks import broken, finding, obstacle, unchecked, words
from epctx.verification.request import Kept

AGAIN: Final = "again"
"""Name of the folder beside a model's outputs for the second run on its first input set."""
LOADS: Final = "loads"
"""Name of the record beside a model's outputs for the findings of loading it."""
SHORT: Final = 1.0
"""Seconds: a first run that takes less is repeated."""
Started = Callable[[str, int, int], None]
"""Called before the EPs load or run a model, since native code may crash. Its arguments are the
model, the number of the input set and the number of input sets."""

_LIBRARY: Final = "give the manifest with --manifest, whose `custom_ops` names the library"
_WHOLE: Final = "verify it where the whole model can be loaded"
_UNOPTIMIZED: Final = (
    "build it with `optimize: {level: none}`; if it loads then, report it: a pass of epctx has "
    "made a model that ONNX Runtime refuses"
)


class Feeding:
    """Input sets for models, and findings about failures.

    This base class has no input sets: models are only loaded.

    Attributes:
        count: number of input sets.
        of_source: the sources have run on them; sources of models in pieces, piece by piece.
    """

    count = 0
    of_source = False

    def cases(self, model: ContextModel, index: int | None) -> Iterator[Case]:
        """Yield the cases of one input set, or of all (None), that have right outputs."""
        return iter(())

    def between(self, model: ContextModel) -> Case | None:
        """Return a case to run before the first one is repeated; None if there is no other."""
        return None

    def providers(self, folder: GroupFolder, model: ContextModel) -> Sequence[ExecutionProvider]:
        """Return a model's EPs, in the order for the runtime."""
        return folder.providers.of(model.sources)

    def loaded(
        self, folder: GroupFolder, model: ContextModel, session: Session
    ) -> Iterator[Finding]:
        """Yield the findings about a model that could be loaded."""
        apart = session.get_reason_apart()
        how = "" if apart is None else f", each EP in a session of its own: {apart}"
        yield finding(model, "loads", "pass", f"loads on this host{how}")

    def refused(self, model: ContextModel, error: Exception) -> Finding:
        """Return the finding about a model that could not be loaded."""
        if isinstance(error, ProviderUnavailable):
            return unchecked(model, f"not on this host: {words(error)}", error.remedy)
        if isinstance(error, EpctxError):
            return finding(model, "loads", "fail", words(error), error.remedy)
        return finding(model, "loads", "fail", f"cannot be loaded: {words(error)}", _UNOPTIMIZED)

    def failed(self, model: ContextModel, case: Case, error: Exception) -> Finding:
        """Return the finding about a model that was loaded and does not run on a case."""
        if isinstance(error, EpctxError):
            return finding(model, "runs", "fail", f"{case.label}: {words(error)}", error.remedy)
        message = f"{case.label}: fails where its source runs: {words(error)}"
        return finding(model, "runs", "fail", message, REBUILD)


class Files:
    """The models of a folder, loaded by sharing sets, one of which is open at a time.

    Args:
        folder: folder of the models.
        kept: folders for the outputs.
        earlier: earlier findings; no file that failed is loaded.
        started: called before each load and run.
        passed: files that passed before. A sharing set is left out if all of its files did.
        only_pieces: reason why models in pieces are not loaded as a whole; None if they are.
    """

    def __init__(
        self,
        folder: GroupFolder,
        kept: Kept,
        earlier: Sequence[Finding],
        started: Started,
        passed: Collection[str] = (),
        only_pieces: str | None = None,
    ) -> None:
        self._only_pieces = only_pieces
        self._folder = folder
        self._kept = kept
        self._earlier = earlier
        self._started = started
        self._passed = set(passed)
        self._open: dict[str, Session] = {}
        self._loaded: set[str] = set()
        self._seconds: dict[str, float] = {}

    def run(self, feeding: Feeding, only: str | None = None, index: int | None = None) -> bool:
        """Load and run models, and keep their outputs.

        Args:
            feeding: the input sets.
            only: the file of one model; None for all models, sharing set by sharing set.
            index: index of the input set; None for all.

        Returns:
            True if all runs succeeded; False if there were none, or one failed.
        """
        ran = False
        for models in sharing_sets(self._folder):
            files = {model.file for model in models}
            if files <= self._passed or only not in {None, *files}:
                continue
            chosen = [model for model in models if only in (None, model.file)]
            # Pieces run before the whole model is loaded: a piece takes less memory.
            alone = [self._run_pieces(model, feeding, index, len(models) > 1) for model in chosen]
            if not self._loaded >= files:
                self._load(models, feeding)
            for model, done in zip(chosen, alone, strict=True):
                if not (model.cuts and self._only_pieces):
                    done = self._run(model, feeding, index) and done
                ran = done or ran
        return ran

    def close(self) -> None:
        """Destroy the sessions, in reverse order."""
        sessions.close([*self._open.values()])
        self._open, self._loaded = {}, set()

    def _load(self, models: Sequence[ContextModel], feeding: Feeding) -> None:
        self.close()
        sharing = len(models) > 1
        for model in models:
            self._loaded.add(model.file)
            if broken(model, self._earlier) is None:
                findings = list(self._opened(model, feeding, sharing=sharing))
                recordings.keep(self._kept.files, name_of(model), LOADS, findings)

    def _opened(self, model: ContextModel, feeding: Feeding, *, sharing: bool) -> Iterator[Finding]:
        blocked = obstacle(self._folder, model, sharing=sharing)
        if blocked is not None:
            yield unchecked(model, f"not on this host: {blocked[0]}", blocked[1])
            return
        if model.cuts and self._only_pieces:
            message = f"not checked end to end: {self._only_pieces}"
            yield finding(model, "end_to_end", "not checkable", message, _WHOLE)
            return
        self._started(name_of(model), 0, 0)
        try:
            session = sessions.open_files(
                self._folder.path / model.file,
                feeding.providers(self._folder, model),
                sharing=sharing,
                data=self._folder.data_folder(model),
            )
        except Exception as error:  # onnxruntime's errors have no common class
            refused = feeding.refused(model, error)
            path, data = self._folder.path / model.file, self._folder.data_folder(model)
            refusal = soundness.refusal_of_file(path, data) if refused.outcome == "fail" else None
            if refusal is not None:  # for any EP
                message = f"ONNX Runtime does not load it: {soundness.words(refusal)}"
                refused = finding(model, "well_formed", "fail", message, REBUILD)
                if soundness.is_custom_op(refusal):
                    refused = unchecked(model, message, _LIBRARY)
            yield refused
            return
        self._open[model.file] = session
        yield from feeding.loaded(self._folder, model, session)

    def _run_pieces(
        self, model: ContextModel, feeding: Feeding, index: int | None, sharing: bool
    ) -> bool:
        """Run each piece of a model by itself on the source's values, and on those of the piece
        before. Return whether all runs succeeded, or the model is not in pieces.
        """
        if not model.cuts or not (feeding.of_source or self._only_pieces):
            return True
        blocked = obstacle(self._folder, model, sharing=sharing)
        if blocked is not None or broken(model, self._earlier) is not None:
            return False
        cases = list(feeding.cases(model, index)) if feeding.of_source else []
        source = ModelSource(
            name=name_of(model),
            path=self._folder.path / model.file,
            external_data_dir=self._folder.data_folder(model),
        )
        pieces = Pieces(source, model.cuts)
        numbers = range(1, len(pieces.steps) + 1)
        ran = [self._run_piece(model, feeding, pieces, number, cases) for number in numbers]
        # The last index has no case if the other sets exercise every node of the source.
        last = index == feeding.count
        return all(ran) and bool(cases or (last and any(feeding.cases(model, 0))))

    def _run_piece(
        self,
        model: ContextModel,
        feeding: Feeding,
        pieces: Pieces,
        number: int,
        cases: Sequence[Case],
    ) -> bool:
        """Run a piece on all cases without outputs, in one session; load it at least once."""
        name, step, files = name_of(model), pieces.steps[number - 1], self._kept.files
        alone, chain = Values(files, name), Values(files, name, CHAIN)
        which, place = words_of(number, of=len(pieces.steps)), alone.place(number)
        missing = [
            (values, to.place(number), replace(case, label=f"{case.label}, {which}{after}"))
            for values, to, after in (
                (Values(self._kept.source, name), alone, ""),
                (chain, chain, " after the others"),
            )
            for case in cases
            if not recordings.has(files, to.place(number), case.feeds)
        ]
        loaded = recordings.kept(files, place, LOADS, Finding) is not None
        if not step.outputs or (loaded and not missing):
            return True
        self._started(f"{name} ({which})", 0, 0)
        session = self._open_piece(model, feeding, pieces.model(step), which, place)
        if session is None:
            return False
        done: list[bool] = []
        with session:
            for values, to, case in missing:
                inputs = pieces.inputs_of(step, case.feeds, values)
                if (
                    inputs is not None
                ):  # else the source lacks a value, or a piece before has failed
                    done.append(self._compute(session, model, to, case, feeding, inputs))
        return all(done)

    def _open_piece(
        self, model: ContextModel, feeding: Feeding, piece: onnx.ModelProto, which: str, place: str
    ) -> Session | None:
        """Open a piece, and keep the finding about its load. Return None if its EPs refuse it."""
        load = finding(model, "loads", "pass", "loads on this host")
        session: Session | None = None
        try:
            session = sessions.open_files(
                self._folder.path / model.file,
                feeding.providers(self._folder, summarize(model.file, piece)),
                sharing=False,
                data=self._folder.data_folder(model),
                changed=piece.SerializeToString(),
            )
        except Exception as error:  # onnxruntime's errors have no common class
            load = feeding.refused(model, error)
        load = replace(load, message=f"{which}: {load.message}")
        recordings.keep(self._kept.files, place, LOADS, load)
        return session

    def _run(self, model: ContextModel, feeding: Feeding, index: int | None) -> bool:
        session, name = self._open.get(model.file), name_of(model)
        if session is None:
            return False
        ran: list[bool] = []
        for case in feeding.cases(model, index):
            if recordings.has(self._kept.files, name, case.feeds):
                ran.append(True)
                continue
            self._started(name, min((index or 0) + 1, feeding.count), feeding.count)
            ran.append(self._compute(session, model, name, case, feeding))
        if index in (None, feeding.count):
            ran.append(self._repeat(session, model, feeding))
        return all(ran) if ran else False

    def _repeat(self, session: Session, model: ContextModel, feeding: Feeding) -> bool:
        """Repeat a short first case after another case, since an EP may keep old values. Return
        whether the first run and the repetition succeeded.
        """
        name = name_of(model)
        first = next(feeding.cases(model, 0 if feeding.count else None), None)
        if first is None or not recordings.has(self._kept.files, name, first.feeds):
            return False
        if self._seconds.get(name, SHORT) < SHORT:
            other = feeding.between(model)
            place = f"{name}/{AGAIN}"
            cases = (first,) if other is None else (other, first)
            return all(self._compute(session, model, place, c, feeding) for c in cases)
        return True

    def _compute(
        self,
        session: Session,
        model: ContextModel,
        place: str,
        case: Case,
        feeding: Feeding,
        inputs: Feeds | None = None,
    ) -> bool:
        """Run a model on a case; or a piece of it on its `inputs`."""
        begun = time.monotonic()
        try:
            outputs = sessions.run_files(session, case.feeds if inputs is None else inputs)
        except Exception as error:  # onnxruntime's errors have no common class
            recordings.fail(self._kept.files, place, case.feeds, feeding.failed(model, case, error))
            return False
        if inputs is None:
            self._seconds.setdefault(name_of(model), time.monotonic() - begun)
        recordings.write(self._kept.files, place, case.feeds, outputs)
        return True


def words_of(*pieces: int, of: int) -> str:
    """Return the name of pieces in messages: `piece 2 of 4`, `pieces 2, 3, 4 of 6`."""
    return f"{'pieces' if pieces[1:] else 'piece'} {', '.join(map(str, pieces))} of {of}"


def name_of(model: ContextModel) -> str:
    """Return the manifest's name of a model."""
    return model.file.removesuffix(CONTEXT_SUFFIX)
