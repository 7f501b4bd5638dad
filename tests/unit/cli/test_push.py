"""What `epctx push` prints."""

import json
from pathlib import Path

from tests.kit import pushed, registries, small_registry
from tests.kit.command_line import inside


def test_it_says_what_was_sent(tmp_path: Path) -> None:
    pushed.group(tmp_path, a_bin=b"one")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        first = inside("push", "dist/m", name, "--insecure", cwd=tmp_path)
        again = inside("push", "dist/m", name, "--insecure", "--format", "json", cwd=tmp_path)
    assert first.returncode == 0 and f"{name}  pushed: 2 files, 75 B" in first.stdout
    told = json.loads(again.stdout)
    assert told["state"] == "up to date" and told["digest"] in first.stdout
