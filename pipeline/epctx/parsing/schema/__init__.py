"""The JSON Schemas: found, printed, applied, explained."""

from epctx.parsing.schema.apply import (
    manifest,
    names,
    problems_of,
    session_options,
    text,
    validate,
    validator,
)

__all__ = [
    "manifest",
    "names",
    "problems_of",
    "session_options",
    "text",
    "validate",
    "validator",
]
