"""mypy strict reads the package, its tests and its scripts; what is silenced gets less."""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"#\s*(type:\s*ignore|mypy:)")


def looser(settings: dict[str, Any]) -> list[str]:
    """What of mypy's settings lets more pass than strict does, by module."""
    found = [] if settings.get("strict") is True else ["strict is off"]
    found += [f"{name} is not read" for name in ("epctx", "scripts", "tests")
              if name not in settings["packages"]]  # fmt: skip
    ours = re.compile(r"^(epctx|scripts|tests|\*)(\.|$)")
    for override in settings.get("overrides", []):
        modules = override["module"]
        modules = [modules] if isinstance(modules, str) else modules
        found += [f"{module} has exceptions" for module in modules if ours.match(module)]
        if set(override) - {"module", "ignore_missing_imports"}:
            found.append(f"{modules} is read otherwise")
    return found


def silenced(folder: Path) -> int:
    return sum(
        len(_COMMENT.findall(path.read_text(encoding="utf-8"))) for path in folder.rglob("*.py")
    )


def test_nothing_of_ours_is_an_exception() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert looser(settings["tool"]["mypy"]) == []


def test_an_exception_is_found() -> None:
    whole: dict[str, Any] = {"strict": True, "packages": ["epctx", "scripts", "tests"]}
    assert looser(whole) == []
    assert looser({**whole, "strict": False}) == ["strict is off"]
    assert looser({**whole, "packages": ["epctx", "scripts"]}) == ["tests is not read"]
    override = {"module": ["onnxruntime.*", "tests.unit.*"], "ignore_missing_imports": True}
    assert looser({**whole, "overrides": [override]}) == ["tests.unit.* has exceptions"]
    override = {"module": "onnxruntime.*", "ignore_errors": True}
    assert looser({**whole, "overrides": [override]}) == ["['onnxruntime.*'] is read otherwise"]
