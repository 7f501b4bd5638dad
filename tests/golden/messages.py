"""The messages of the invalid manifests. Run it to write what is expected anew, and read the diff:

python tests/golden/messages.py
"""

from pathlib import Path

from epctx.errors import InvalidManifest
from epctx.parsing import document, load

INVALID = Path(__file__).parent / "invalid"


def messages(path: Path) -> str:
    """Everything that is wrong with a manifest, as the user reads it from its folder."""
    try:
        read = document.parse(path.read_bytes(), file=path.name, path=path)
        violations = load.violations(read)
    except InvalidManifest as error:
        violations = error.violations
    return "".join(f"{violation}\n" for violation in violations)


def main() -> None:
    """Write `<manifest>.txt` beside each manifest."""
    for path in sorted(INVALID.glob("*.yaml")):
        expected = path.with_suffix(".txt")
        expected.write_text(messages(path), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
