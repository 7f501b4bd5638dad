"""Pages of docs/ as a reader follows them: the files that they show, the commands, the Python.

A fence after `<!-- file: NAME -->` is that file. One of `console` has commands, after `$ `, and
what they print; one that prints `error[…]` there is to fail with that error. One of `python` is a
program. They are carried out in the page's order, in one folder, by one shell. What follows
`<!-- not run: REASON -->` is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kit import command_line

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?:<!-- (?P<said>file|not run): (?P<what>.+?) -->\n+)?"
    r"```(?P<kind>\w*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n?)*)", re.MULTILINE)
_ERROR = re.compile(r"^error\[(E\d{4})\]", re.MULTILINE)
_INSTALL = re.compile(r"\bpip install\b")


def fences(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Each fence: `file`, `not run` or nothing, of which file or why, its language, its code."""
    for found in _FENCE.finditer(text):
        yield found["said"] or "", found["what"] or "", found["kind"], found["code"]


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console, and what is shown of what it prints."""
    for found in _COMMAND.finditer(block):
        yield found[1], found[2]


def installed(text: str) -> set[str]:
    """The extras that commands of a page install."""
    consoles = (code for *_, kind, code in fences(text) if kind == "console")
    lines = (line for code in consoles for line, _ in commands(code) if _INSTALL.search(line))
    named = (re.findall(r"(?:epctx|\.)\[([\w,]+)\]", line) for line in lines)
    return {extra for each in named for extras in each for extra in extras.split(",")}


def lines(text: str) -> list[str]:
    """Each command of the consoles of a page, without the comment behind it."""
    consoles = (code for *_, kind, code in fences(text) if kind == "console")
    each = (line for code in consoles for line, _ in commands(code))
    return [line.partition("    #")[0].strip() for line in each]


def install(line: str, folder: Path) -> None:
    """Have pip find what a command installs from the checkout, and change nothing."""
    *_, wanted = shlex.split(line)
    extra = wanted.partition("[")[2]
    target = f"{ROOT}[{extra}" if extra else str(ROOT)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
    offline = ["--no-index", "--no-build-isolation", target]
    subprocess.run([*command, *offline], cwd=folder, check=True, timeout=300)


def script(text: str) -> str:
    """What a shell does for a page; nothing: there is nothing to run.

    What installs is left out: it is there, or no test would run.
    """
    steps = []
    for said, what, kind, code in fences(text):
        if said == "file":
            steps.append(_given(f"mkdir -p $(dirname {what}) && cat > {what}", code))
        elif said != "not run" and kind == "console":
            steps += [_step(*each) for each in commands(code) if not _INSTALL.search(each[0])]
        elif said != "not run" and kind == "python":
            steps.append(_given(f"{shlex.quote(sys.executable)} -", code))
    runs = any("<<" not in each or sys.executable in each for each in steps)
    return "\n".join(["set -euo pipefail", *steps, ""]) if runs else ""


def _given(command: str, content: str) -> str:
    return f"{command} << 'END OF CODE'\n{content}END OF CODE"


def _step(command: str, shown: str) -> str:
    told = f"echo {shlex.quote('$ ' + command)} >&2\n"
    error = _ERROR.search(shown)
    if error is None:
        return told + command
    return (
        f"{told}if {{ {command}\n}} 2> .stderr; then echo 'it did not fail' >&2; exit 1; fi\n"
        f"cat .stderr >&2; grep -qF 'error[{error[1]}]' .stderr; rm .stderr"
    )


def follow(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Do in a folder what a page says."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-c", script(text)],
        cwd=folder,
        env=command_line.environment(PATH=path, **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
