"""The zoo's table: what a stock session does with each model, what epctx does, who is right."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]

LIMITATIONS: Mapping[str, tuple[int, str]] = {
    "of which no EP of its group takes a node": (6, "nothing compiled|compiled nothing"),
    "whose shape follows from the values of an input": (
        7,
        "has another type or shape than the model declares: its shape",
    ),
    "On EPs that compile static shapes only": (4, "compiles static shapes only"),
    "Having zero graph inputs is not supported on this backend": (6, "zero graph inputs"),
    "of which QNN 2.7.0 makes a context that it cannot load or run itself": (
        7,
        "Failed to setup QNN input tensors|QNN graph execute error|only without its optimizations",
    ),
    "a graph that QNN 2.7.0 cannot finish": (6, "QNN_COMMON_ERROR_MEM_ALLOC"),
    "declares an output with another number of dimensions than it gives": (4, "declares its out"),
}
"""Words of an entry in docs/limitations.md: the exit code, and what the message says."""

COLUMNS = (
    "model",
    "written by",
    "stock",
    "reference EP",
    "error",
    "s",
    "QNN",
    "coverage",
    "EPContext, other nodes",
    "error",
    "s",
    "script on QNN",
    "tokens",
)
OWN_CONTEXT = "of which QNN 2.7.0 makes a context that it cannot load or run itself"
"""The limit of QNN that may be told as E0704."""
STRANGERS = ("E0404", "E0704")
"""Errors that no stranger may get: no sizes in the manifest, other numbers than the source's."""
STRANGER_COLUMNS = ("model", "from", "sizes that `epctx init` wrote", "build", "coverage", "s")
TOLERANCE = {"reference": 1e-4, "qnn": 0.2}
"""Largest difference of the zoo's own comparison, relative to an output's largest magnitude."""


@dataclass(frozen=True)
class Line:
    """What is known of one model.

    Attributes:
        name: Of the model.
        source: What wrote it.
        make: How it was made.
        stock: What a stock session does.
        reference: What epctx does for the reference EP.
        qnn: What epctx does for QNN.
        bare: What a script does for QNN.
        tokens: What onnxruntime-genai generates, of a folder of its builder.
        stranger: Build of a trained model with what `epctx init` writes.
    """

    name: str
    source: str
    make: Result | None
    stock: Result | None
    reference: Result | None
    qnn: Result | None
    bare: Result | None
    tokens: Result | None = None
    stranger: Result | None = None

    @property
    def runs(self) -> bool:
        """Whether a stock session loads and runs it."""
        return self.stock is not None and bool(self.stock["runs"])

    @property
    def is_wrong(self) -> bool:
        """Whether the reference EP's build, or a stranger's, is what must not be."""
        ours = self.runs and verdict(self.reference, "reference").startswith("NO")
        return ours or stranger_verdict(self.stranger).startswith("NO")


def verdict(result: Result | None, provider: str) -> str:
    """A build in a word or two; "NO" before what must not be."""
    if result is None:
        return ""
    if result["code"] is None:
        return "NO: hangs"
    if result["code"] != 0:
        return _refused(result)
    if "difference" in result and result["difference"] is None:
        return "NO: does not agree"
    if result.get("difference", 0) > TOLERANCE[provider]:
        return f"NO: wrong by {result['difference']:.1e}"
    if not result.get("compared"):
        return "built, not compared"
    return "built"


def stranger_verdict(result: Result | None) -> str:
    """Describe a stranger's build; "NO" before a failure that is nobody's listed limit."""
    word = verdict(result, "qnn")
    if result is None or "error" not in result:
        return word
    never = result["error"] in STRANGERS and OWN_CONTEXT not in word
    if never or word.startswith("NO"):
        message = textwrap.shorten(result["message"], 160, placeholder=" …")
        return f"NO: {result['error']}: {message}"
    return word


def _refused(result: Result) -> str:
    for heading, (code, words) in LIMITATIONS.items():
        if result["code"] == code and re.search(words, _flat(result["output"])):
            return f"listed: {heading}"
    return f"NO: exit {result['code']}"


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def write(lines: Sequence[Line]) -> str:
    """The counts and the table, in Markdown."""
    return "\n".join(
        [*_counts(lines), "", *_head(COLUMNS), *map(_row, lines), *_strangers(lines), ""]
    )


def _strangers(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table of the trained models, if there are any."""
    built = [line for line in lines if line.stranger is not None]
    if not built:
        return
    wrong = sum(stranger_verdict(line.stranger).startswith("NO") for line in built)
    yield from ("", "## Trained models, as a stranger builds them", "")
    yield "`epctx init MODEL --provider QNNExecutionProvider --option soc_model=60 --yes`, then"
    yield f"`epctx build`: {len(built)} models, {wrong} fail for no listed limit."
    yield from ("", *_head(STRANGER_COLUMNS))
    for line in built:
        result = line.stranger or {}
        cells = [
            line.name,
            line.source.removeprefix("wheel: "),
            _sizes(result.get("model", {})),
            stranger_verdict(result).replace("|", "\\|"),
            f"{result['coverage']:.1%}" if "coverage" in result else "",
            _number(result.get("seconds")),
        ]
        yield f"| {' | '.join(cells)} |"


def _sizes(model: Result) -> str:
    """Return the sizes that a manifest gives a model, and the names of those that are guessed."""
    sizes = {**model.get("dimensions", {}), **model.get("shapes", {})}
    words = [f"{name}: {size}" for name, size in sizes.items()]
    guessed = model.get("guessed", [])
    return ", ".join(words) + (f"; guessed: {', '.join(map(str, guessed))}" if guessed else "")


def _counts(lines: Sequence[Line]) -> Iterator[str]:
    running = [line for line in lines if line.runs]
    yield f"{len(lines)} recipes, {sum(line.stock is not None for line in lines)} models made, "
    yield f"{len(running)} run in a stock session."
    for provider in ("reference", "qnn"):
        found = Counter(
            verdict(getattr(line, provider), provider).split(" by ")[0] for line in running
        )
        yield f"- {provider}: " + ", ".join(
            f"{count} {word or 'not tried'}" for word, count in found.most_common()
        )
    compiled = Counter(
        (_by_epctx(line), _by_script(line)) for line in running if line.qnn and line.bare
    )
    for (ours, theirs), count in sorted(compiled.items(), reverse=True):
        yield f"- QNN: epctx {'yes' if ours else 'no'}, script {'yes' if theirs else 'no'}: {count}"


def _by_epctx(line: Line) -> bool:
    return line.qnn is not None and verdict(line.qnn, "qnn").startswith("built")


def _by_script(line: Line) -> bool:
    bare = line.bare
    right = bare is not None and bare.get("runs") and bare.get("compiles")
    return (
        bool(right)
        and (bare or {}).get("difference") is not None
        and (bare or {})["difference"] <= TOLERANCE["qnn"]
    )


def _head(columns: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)


def _row(line: Line) -> str:
    ours, qnn = line.reference or {}, line.qnn or {}
    cells = [
        line.name,
        line.source,
        _stock(line),
        verdict(line.reference, "reference"),
        _number(ours.get("difference")),
        _number(ours.get("seconds")),
        verdict(line.qnn, "qnn"),
        f"{qnn['coverage']:.1%}" if "coverage" in qnn else "",
        f"{qnn['contexts']}, {qnn['others']}" if "contexts" in qnn else "",
        _number(qnn.get("difference")),
        _number(qnn.get("seconds")),
        _script(line.bare),
        _tokens(line.tokens),
    ]
    return f"| {' | '.join(cells)} |"


def _stock(line: Line) -> str:
    if line.stock is None:
        return "not made"
    return "runs" if line.runs else "loads only" if line.stock["loads"] else "refused"


def _script(bare: Result | None) -> str:
    if bare is None:
        return ""
    if not bare.get("compiles"):
        return "compiles nothing" if bare["code"] == 0 else f"ends with {bare['code']}"
    if not bare.get("runs"):
        return f"{bare['contexts']}, {bare['others']}; does not run"
    error = _number(bare.get("difference")) or "does not agree"
    return f"{bare['contexts']}, {bare['others']}; {error}"


def _tokens(found: Result | None) -> str:
    """Whether onnxruntime-genai generates the same with what epctx makes."""
    if found is None:
        return ""
    if found["code"] != 0:
        return f"`epctx {found['command']}` refuses" if "command" in found else "ends in an error"
    return "the same" if found["same"] else "NO: others"


def _number(value: float | None) -> str:
    return (
        ""
        if value is None
        else "0"
        if value == 0
        else f"{value:.1e}"
        if value < 0.01
        else f"{value:.2f}"
    )
