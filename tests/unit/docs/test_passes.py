"""docs/passes.md has every pass and every rule, and says what the levels run."""

from __future__ import annotations

import re
from pathlib import Path

from epctx.graph.passes import ep_forms, registry, rules
from epctx.graph.passes.registry import Loop

PAGE = (Path(__file__).parents[3] / "docs" / "passes.md").read_text(encoding="utf-8")


def named(title: str) -> list[str]:
    """The names at the beginning of a section's rows."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_pass_is_described() -> None:
    assert named("The passes") == list(registry._BUILT_IN) and len(registry._BUILT_IN) == 13


def test_every_rule_is_described() -> None:
    assert named("The rules of `simplify`") == list(dict.fromkeys(r.name for r in rules.RULES))
    assert all(f"`{rule.name}`" in PAGE for rule in ep_forms._RULES)


def test_the_levels_run_what_the_page_says() -> None:
    assert named("The levels") == list(registry.LEVELS)
    (row,) = re.findall(r"^\| `basic` \|(.*)$", PAGE, re.MULTILINE)
    steps: list[str] = [registry.FIRST]
    for step in registry.LEVELS["basic"]:
        steps += [*step.passes, step.follow] if isinstance(step, Loop) else [step]
    assert re.findall(r"`([^`]+)`", row) == steps
