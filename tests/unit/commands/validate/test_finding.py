"""What a build would raise, at its place in the manifest."""

from pathlib import Path

from epctx.commands.validate.finding import of_error
from epctx.errors import ManifestError, ModelError
from epctx.parsing.document.tree import Mark, Node

NODE = Node(value="a.onnx", mark=Mark(line=3, column=7), path=("models", "a", "path"))


def test_a_file_is_told_as_the_manifest_names_it() -> None:
    path = Path("/somewhere/a.onnx")
    error = ModelError("is empty", file=str(path), remedy="repeat it")
    found = of_error(error, NODE, shown={path: "a.onnx"})
    assert (found.problem.what, found.exit_code) == ("a.onnx: is empty", 4)
    assert (found.problem.mark, found.problem.path) == (NODE.mark, NODE.path)


def test_a_place_in_the_manifest_is_not_told_twice() -> None:
    error = ManifestError("is wrong", where="models.a", why="it is so", remedy="correct it")
    assert of_error(error, NODE).problem.what == "is wrong: it is so"
