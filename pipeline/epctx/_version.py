"""The version of epctx: the single source, read by the build."""

__version__ = "0.2.0"
