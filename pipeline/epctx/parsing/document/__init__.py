"""A YAML document as a tree that knows its lines and columns."""

from epctx.parsing.document.reader import Document, parse, read

__all__ = ["Document", "parse", "read"]
