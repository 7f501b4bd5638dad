import pytest
import yaml
from hypothesis import given, settings

from epctx.lockfile import yaml_text
from tests.kit.strategies import documents

LOADERS = [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)]


@settings(max_examples=60, deadline=None)
@given(value=documents())
@pytest.mark.parametrize("loader", LOADERS)
def test_every_yaml_reader_reads_what_was_written(
    loader: type[yaml.SafeLoader], value: dict[str, object]
) -> None:
    assert (yaml.load(yaml_text.text(value), Loader=loader) or {}) == value


def test_one_entry_a_line_sorted() -> None:
    value = {"b": [1, {"z": "2.0", "x": [True]}], "a": {"k": None, "e": {}, "l": []}, "c": "text"}
    assert yaml_text.text(value) == (
        'a:\n  e: {}\n  k: null\n  l: []\nb:\n  - 1\n  - x:\n      - true\n    z: "2.0"\nc: text\n'
    )
