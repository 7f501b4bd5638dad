"""Which execution providers a starter manifest can be for on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epctx.commands.doctor.command import asking
from epctx.commands.doctor.diagnosis import ProviderDiagnosis
from epctx.parsing.schema import providers
from epctx.parsing.schema.providers import Advised
from epctx.providers import registry

REFERENCE = "ReferenceExecutionProvider"
"""The provider that needs no vendor SDK: a manifest for it builds anywhere."""


def installed() -> tuple[ProviderDiagnosis, ...]:
    """The EPs that compile contexts and are installed here, the most useful first.

    That is a vendor's that compiles on this host, then the reference EP, then those that have no
    device here. Each is asked as by `epctx doctor`.
    """
    with asking(registry.names()) as answers:
        found = [each for each in answers if each.state != "not installed"]
    return tuple(sorted(found, key=_rank))


def proposed(found: Sequence[ProviderDiagnosis], options: Mapping[str, str]) -> str:
    """Return the EP that is taken where nobody chooses: the first that has the options given."""
    return next((each.name for each in found if _knows(each.name, options)), REFERENCE)


def left_out(provider: str, options: Mapping[str, str]) -> tuple[Advised, ...]:
    """What a build for an EP can do without, rarely should, and is not given."""
    schema = providers.find(provider)
    known = schema.knowledge.advised if schema is not None else ()
    return tuple(each for each in known if not any(name in options for name in each.options))


def names_of(provider: str, option: str) -> Mapping[str, str]:
    """The names that an option's values are known by, each with the value."""
    schema = providers.find(provider)
    return schema.choices(option) if schema is not None else {}


def _knows(provider: str, options: Mapping[str, str]) -> bool:
    schema = providers.find(provider)
    return schema is None or set(options) <= set(schema.properties)


def _rank(found: ProviderDiagnosis) -> int:
    if found.name == REFERENCE:
        return 1
    return 0 if found.state == "ready" and found.builds is not False else 2
