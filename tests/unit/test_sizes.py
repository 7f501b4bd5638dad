import pytest

from epctx.sizes import size_words


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (51_851_264, "51.9 MB"), (3e9, "3.00 GB")],
)
def test_sizes(size: int, words: str) -> None:
    assert size_words(size) == words
