import pytest

from epctx.errors import ManifestError, ProviderUnavailable, UsageError
from epctx.runtime.named_providers import bind, pairs

REFERENCE = "ReferenceExecutionProvider"


def test_no_list_is_not_an_empty_list() -> None:
    assert bind(None, None) is None
    assert bind([], None) == []


def test_the_default_ep_is_left_out() -> None:
    bound = bind([(REFERENCE, {"source": "one"}), "CPUExecutionProvider"], None)
    assert bound is not None
    assert [each.sources for each in bound] == [{"one"}]


def test_an_ep_that_is_not_installed() -> None:
    with pytest.raises(ProviderUnavailable, match="AcmeExecutionProvider"):
        bind(["AcmeExecutionProvider"], None)


def test_an_option_that_the_schema_does_not_have() -> None:
    with pytest.raises(ManifestError, match="sauce"):
        bind([REFERENCE], [{"sauce": "one"}])


def test_options_are_given_once() -> None:
    assert pairs([REFERENCE], [{"source": "one"}]) == [(REFERENCE, {"source": "one"})]
    with pytest.raises(UsageError, match="without providers"):
        pairs(None, [{}])
    with pytest.raises(UsageError, match="1 providers and 2 provider_options"):
        pairs([REFERENCE], [{}, {}])
    with pytest.raises(UsageError, match="1 providers and 1 provider_options"):
        pairs([(REFERENCE, {"source": "one"})], [{"source": "two"}])
