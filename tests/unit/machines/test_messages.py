import pytest

from epctx.errors import CompileError
from epctx.machines.messages import Answer, Request, decoded, encoded


@pytest.mark.parametrize("text", [b"{}", None, "", "{}", '{"nonce": 1}', "[" * 100_000])
def test_what_is_no_message_is_refused(text: object) -> None:
    with pytest.raises(CompileError, match="between two machines is invalid"):
        decoded(text, Request)


def test_a_message_that_is_too_large_is_neither_sent_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_MACHINE_JOB", "100")
    with pytest.raises(CompileError, match="more than 100 bytes"):
        encoded(Answer(address="", log_file="ü" * 50))
    with pytest.raises(CompileError, match="more than 100 bytes"):
        decoded(" " * 101, Answer)
