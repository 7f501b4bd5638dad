"""What a worker does not import before it is used."""

import subprocess
import sys
from textwrap import dedent


def printed(code: str) -> list[str]:
    """What a new process prints that defers what workers defer, then runs `code`."""
    head = "import sys\nfrom epctx.worker import lazy_modules as lazy\nlazy.defer(lazy.SELDOM)\n"
    command = [sys.executable, "-c", head + dedent(code)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_the_jobs_of_a_worker_are_imported_without_sympy() -> None:
    assert printed(
        """
        from epctx.worker import dispatch
        print("onnx_ir" in sys.modules, "sympy.core" in sys.modules)
        """
    ) == ["True False"]


def test_what_was_deferred_is_there_when_it_is_used() -> None:
    assert printed(
        """
        import onnx_ir as ir
        print((ir.SymbolicDim("n") * 2 + 1).evaluate({"n": 4}))
        import sympy
        print(sympy.Symbol("x") + 1, "sympy.core" in sys.modules)
        """
    ) == ["9", "x + 1 True"]


def test_what_is_missing_is_missing() -> None:
    assert printed(
        """
        lazy.defer(["no_such_module"])
        try:
            import no_such_module
        except ModuleNotFoundError as error:
            print(error)
        """
    ) == ["No module named 'no_such_module'"]


def test_what_is_deferred_twice_is_looked_for_once() -> None:
    deferred = "print(sum(isinstance(finder, lazy._Deferring) for finder in sys.meta_path))"
    assert printed(f"lazy.defer(lazy.SELDOM)\n{deferred}\nlazy.defer(['x'])\n{deferred}") == [
        "1",
        "2",
    ]
