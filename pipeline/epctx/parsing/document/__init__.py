"""YAML document as a tree with lines and columns."""

from epctx.parsing.document.reader import Document, parse, read

__all__ = ["Document", "parse", "read"]
