"""`epctx bisect`: find the first wrong node and the change that repairs the build."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import onnx_ir as ir
from msgspec.structs import replace

from epctx import codec
from epctx.commands import run as running
from epctx.commands.bisect.causes import Change, Inquiry, known_fault, operator
from epctx.commands.bisect.result import Bisection, Cause, Proposal, Reading
from epctx.commands.bisect.search import CutModel, Search, Spent, Trials, smallest
from epctx.commands.report import page as report_page
from epctx.commands.report import sections
from epctx.engine import plan as planning
from epctx.engine.events import Event, Listener
from epctx.error_codes import Code
from epctx.errors import CompileError, StorageError, TimedOut, UsageError, VerificationError
from epctx.files import atomic
from epctx.manifest import ModelGroup, OptimizeSettings, VerifyInputs
from epctx.providers import registry
from epctx.quantization.ranges import Ranges
from epctx.quantization.report import TensorLoss
from epctx.stages.partition import name_of
from epctx.text import did_you_mean
from epctx.verification.findings import OutputNumbers


def write_result(bisection: Bisection, folder: Path) -> Path:
    """Write the result and its page into the folder, and return the page's path.

    Raises:
        StorageError: the files cannot be written.
    """
    page = folder / f"{bisection.name}.{bisection.group}.{bisection.model}.bisect.html"
    losses = [
        TensorLoss(name=each.value, op_type=each.op_type, sqnr=each.comparison.sqnr)
        for each in bisection.readings
        if each.comparison.sqnr is not None
    ]
    wrong = {each.value for each in bisection.readings if not each.passed}
    text = report_page.document(
        "bisect.html", found=bisection, drawn=sections.drawn_losses(losses, wrong)
    )
    remedy = "give another folder with --out"
    with StorageError.if_refused("cannot be written", file=page.as_posix(), remedy=remedy):
        folder.mkdir(parents=True, exist_ok=True)
        atomic.replace(page.with_suffix(".json"), codec.encode(bisection, indent=1))
        atomic.replace(page, text.encode())
    return page


_SET: Final = re.compile(r"set (\d+)")
_LISTED: Final = 4
"""Number of culprits that a message names."""


def bisect(
    path: Path,
    group: str,
    model: str,
    *,
    cuts: int,
    budget: float | None,
    allow_outside: bool,
    listener: Listener,
) -> Bisection:
    """Search one model of one group, as `api.bisect`."""
    begun = time.monotonic()
    plan = planning.read(path, only=[group], allow_outside=allow_outside)
    planned = {each.name: group for group in plan.groups[:1] for each in group.group.models}
    if model not in planned:
        what, near = f'the group has no model "{model}"', did_you_mean(model, planned)
        raise UsageError(what, where=group, remedy=near, code=Code.NO_SUCH_CHOICE)
    target, chosen = planned[model].target, planned[model].group
    initial = Bisection(name=plan.manifest.name, target=target, group=chosen.name, model=model)
    with tempfile.TemporaryDirectory(prefix="epctx-bisect-", ignore_cleanup_errors=True) as scratch:
        trials = Trials(
            manifest=plan.manifest,
            target=target,
            folder=Path(scratch).resolve(),
            deadline=None if budget is None else begun + budget,
        )
        bisection = _Search(trials, _alone(chosen, model), cuts, initial, listener).run()
        return replace(bisection, builds=trials.count, seconds=time.monotonic() - begun)


def _alone(group: ModelGroup, model: str) -> ModelGroup:
    """Copy the group with this model only, compared with the model's own source."""
    (chosen,) = (replace(each, reference=None) for each in group.models if each.name == model)
    verify = replace(group.verify, numbers="full", require=())
    return replace(group, models=(chosen,), sharing_groups={}, verify=verify)


@dataclass
class _Search:
    """Search in one model; `group` has only this model."""

    trials: Trials
    group: ModelGroup
    cuts: int
    result: Bisection
    listener: Listener
    readings: dict[str, Reading] = field(default_factory=dict)

    def run(self) -> Bisection:
        self._notify("building the unchanged model")
        try:
            numbers = self.trials.build(self.group)
        except CompileError as error:
            return self._crashed(error)
        if not numbers:
            what = "none of its outputs can be checked on this host"
            remedy = "run `epctx verify` to see why, or bisect on a host that can run the model"
            raise VerificationError(what, model=self.result.model, remedy=remedy, code=Code.NUMBERS)
        wrong = next((each for each in numbers if not each.passed), None)
        if wrong is None:
            return self.result
        self.result = replace(
            self.result,
            sessions=wrong.sessions,
            input_set=wrong.input_set,
            inputs=_only(self.group.verify.inputs, wrong.input_set),
            tolerance=wrong.tolerance,
        )
        model = self._model()
        search = Search(model.layers, self.cuts)
        self._record(search, numbers)
        ended = self._narrow(search, model)
        first = search.wrong
        values = () if first is None else first.values
        self.result = replace(
            self.result,
            ended=ended,
            nodes=len(model.nodes),
            readings=tuple(sorted(self.readings.values(), key=lambda each: each.place)),
            first=tuple(self.readings[value] for value in values if value in self.readings),
            suspects=len(search.suspects()),
        )
        if first is None or ended != "found":
            return self.result
        self._notify("running the source model")
        inquiry = dataclasses.replace(
            self._inquiry(first.node),
            ranges=self._ranges(model),
            quantized=self.trials.calibrate(self.group),
            quantizing=self.result.sessions == "quantized",
        )
        cause = inquiry.cause()
        return replace(self.result, cause=cause, tried=self._tried(inquiry.changes(cause)))

    def _crashed(self, error: CompileError) -> Bisection:
        """Find the nodes that keep the model from compiling and running; try known faults first.

        Raises:
            CompileError: the given error, if its cause is not a node, or if keeping a few nodes off
                the EPs does not help.
        """
        nodes = self._model().nodes
        self.result = replace(self.result, ended="crashed", nodes=len(nodes))
        for node in nodes:
            inquiry = self._inquiry(node)
            cause = known_fault(node, inquiry.providers)
            if cause is not None:
                cause = replace(cause, why=f"{cause.why}. Without a change: {error.what}")
                tried = self._tried(inquiry.changes(cause))
                result = replace(self.result, cause=cause, tried=tried)
                if result.repair is not None:
                    return result
                break
        if error.code not in (Code.COMPILE, Code.CRASHED):
            raise error
        culprits, over = self._culprits(nodes)
        if not culprits and not over:
            raise error
        listed = [f"{name_of(each)!r} ({operator(each)})" for each in culprits]
        listed[_LISTED:] = [f"{len(listed) - _LISTED} more"] if listed[_LISTED:] else []
        among = f"narrowed to {len(culprits)} of {len(nodes)} nodes:"
        head = among if over else "the build passes without"
        without = f"{head} {', '.join(listed)}" if listed else ""
        why = "; ".join(filter(None, (error.what, without)))
        cause = Cause(kind="compile failure", why=why)
        if over:
            return replace(self.result, ended="budget", cause=cause, suspects=len(culprits))
        inquiry, kinds = self._inquiry(culprits[0]), {*map(operator, culprits)}
        change = inquiry.without(culprits)
        if 1 < len(culprits) == sum(operator(node) in kinds for node in nodes):
            change = inquiry.exclude([], sorted(kinds))
        return replace(self.result, cause=cause, tried=self._tried([change]))

    def _culprits(self, nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], bool]:
        """Return the fewest nodes to keep off the EPs, and whether the budget ran out.

        If the budget ran out, the nodes are the fewest found so far. The list is empty if keeping a
        few nodes off does not help.
        """
        off = replace(self.group.verify, numbers="off")
        partition = replace(self.group.partition, require_coverage=None, max_partitions=None)
        group = replace(self.group, partition=partition, verify=off)
        best: list[ir.Node] = []

        def passes(out: Sequence[ir.Node]) -> bool:
            nonlocal best
            self._notify(f"{len(out)} of {len(nodes)} nodes kept off")
            inquiry = dataclasses.replace(self._inquiry(out[0]), group=group)
            passed = not self._fails(inquiry.without(out)[1])
            if passed and (not best or len(out) < len(best)):
                best = list(out)
            return passed

        items = list({node.name or operator(node): node for node in nodes}.values())
        try:
            if not self._fails(group):  # the model compiles, so the run fails
                group = replace(group, verify=self.group.verify)
            return smallest(items, passes, operator) if passes(items) else [], False
        except Spent:
            return best, True

    def _fails(self, group: ModelGroup) -> bool:
        """Tell whether a build fails or crashes. Wrong numbers do not count as a failure."""
        failure = self.trials.run(group)[1]
        if not isinstance(failure, CompileError | TimedOut | VerificationError | None):
            raise failure
        fine = (Code.NOTHING_COMPILED, Code.COVERAGE_MISSED)
        return isinstance(failure, CompileError | TimedOut) and failure.code not in fine

    def _model(self) -> CutModel:
        folder = self.trials.folder / "cut"
        folder.mkdir()
        return CutModel(self.trials.optimize(self.group), folder)

    def _inquiry(self, node: ir.Node) -> Inquiry:
        providers = [registry.create(each) for each in self.group.execution_providers]
        return Inquiry(node=node, target=self.result.target, group=self.group, providers=providers)

    def _narrow(self, search: Search, model: CutModel) -> Literal["found", "budget", "vanished"]:
        """Read values until the first wrong node is known."""
        rounds = 0
        while values := search.values():
            rounds, remaining = rounds + 1, search.rounds()
            suspects = f"suspects: {len(search.suspects())}, read: {len(values)}"
            self._notify(f"cut {rounds} of about {rounds + remaining - 1}, {suspects}")
            try:
                numbers = self.trials.build(self._cut(model, values))
            except Spent:
                return "budget"
            except (CompileError, VerificationError):
                if search.at_once == 1:
                    raise
                numbers = ()
            if any(self._counts(each) and not each.passed for each in numbers):
                self._record(search, numbers)
            elif search.at_once == 1:
                return "vanished"
            else:  # this many outputs change how the EP compiles
                search.at_once //= 2
        return "found"

    def _cut(self, model: CutModel, values: Sequence[str]) -> ModelGroup:
        """Copy the group with a model that also outputs these values."""
        (original,) = self.group.models
        path = model.write(values)
        source = replace(original, path=path, external_data_dir=None, dimensions={}, shapes={})
        return replace(
            self.group,
            models=(source,),
            optimize=OptimizeSettings(level="none"),
            partition=replace(self.group.partition, require_coverage=None, max_partitions=None),
            verify=replace(self.group.verify, inputs=self.result.inputs),
        )

    def _record(self, search: Search, numbers: Sequence[OutputNumbers]) -> None:
        by_output = {each.output: each for each in numbers if self._counts(each)}
        for layer in search.layers:
            for value in by_output.keys() & set(layer.values):
                search.passed.setdefault(value, by_output[value].passed)
                reading = Reading(
                    place=layer.place,
                    node=layer.node.name or "",
                    op_type=layer.node.op_type,
                    value=value,
                    passed=by_output[value].passed,
                    comparison=by_output[value].comparison,
                )
                self.readings.setdefault(value, reading)

    def _counts(self, numbers: OutputNumbers) -> bool:
        result = self.result
        return (numbers.sessions, numbers.input_set) == (result.sessions, result.input_set)

    def _tried(self, changes: Iterable[Change]) -> tuple[Proposal, ...]:
        """Try changes, each in a build, until one repairs the model."""
        tried: list[Proposal] = []
        for proposal, group in changes:
            self._notify(f"trying: {proposal.what}")
            try:
                failure = self.trials.run(group)[1]
            except Spent:
                break
            tried.append(replace(proposal, failure=None if failure is None else failure.what))
            if failure is None:
                break
        return tuple(tried)

    def _ranges(self, model: CutModel) -> Ranges:
        """Lowest and highest number of each value of the source model."""
        inputs = self.result.inputs
        report = running.run(
            model.write([value for layer in model.layers for value in layer.values]),
            inputs=inputs.files,
            seed=inputs.seed,
            count=inputs.count,
            ranges=inputs.ranges,
            dimensions={name: sizes[0] for name, sizes in inputs.dimensions.items()},
        )
        outputs = report.cases[-1].outputs
        ends = {each.name: (each.least, each.greatest) for each in outputs}
        return {n: (a, b) for n, (a, b) in ends.items() if a is not None and b is not None}

    def _notify(self, detail: str) -> None:
        label = f"{self.result.group}@{self.result.target}"
        self.listener(Event(group=label, state="notice", detail=detail))


def _only(inputs: VerifyInputs, label: str) -> VerifyInputs:
    """The generated inputs up to the set with this label, or the one file of that set."""
    if inputs.files:
        files = tuple(path for path in inputs.files if label.startswith(path.name))
        return replace(inputs, files=files or inputs.files)
    number = _SET.search(label)
    return inputs if number is None else replace(inputs, count=int(number[1]) + 1)
