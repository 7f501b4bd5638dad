"""What `epctx pull` prints."""

from pathlib import Path

from tests.kit import pushed, registries, small_registry
from tests.kit.command_line import inside


def test_it_says_what_came(tmp_path: Path) -> None:
    pushed.group(tmp_path, a_bin=b"one")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        pushed_ = inside("push", "dist/m", name, "--insecure", cwd=tmp_path)
        lines = inside("pull", name, "got", "--insecure", "--format", "jsonl", cwd=tmp_path)
        again = inside("pull", name, "got", "--insecure", cwd=tmp_path)
    assert '"stage":"pull"' in lines.stdout
    assert again.returncode == 0 and "got/  up to date: 2 files" in again.stdout
    assert again.stdout.splitlines()[1] == pushed_.stdout.splitlines()[1]
