"""Every file that a lock stands for, SHA256SUMS too, as it is on the disk."""

from __future__ import annotations

from epctx.files import digest
from epctx.lockfile import released
from epctx.lockfile.types import Lock


def test_groups_and_compositions_with_their_sums(lock: Lock) -> None:
    files = released.files(lock, ())
    assert files.keys() == {
        *(f"default/llm/{n}" for n in ("prefill_ctx.onnx", "decode_ctx.onnx", "prefill_qnn.bin")),
        *("default/llm/SHA256SUMS", "default/whole/whole_ctx.onnx", "default/whole/SHA256SUMS"),
    }
    text = f"{'4' * 64}  whole_ctx.onnx\n".encode()
    sums = files["default/whole/SHA256SUMS"]
    assert (sums.sha256, sums.size) == (digest.of_bytes(text, "sha256").hex, len(text))


def test_golden_files_of_the_folders_that_have_them(lock: Lock) -> None:
    more = released.files(lock, ["default/llm"]).keys() - released.files(lock, ()).keys()
    assert more == {"default/llm/golden/golden.json", "default/llm/golden/SHA256SUMS"}
