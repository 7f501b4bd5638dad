"""The lock file: `<manifest stem>.lock.yaml`, the inputs and outputs of a build."""

from epctx.lockfile.file import (
    HEAD,
    READERS,
    action_names,
    built,
    find,
    parse,
    place,
    published_files,
    read,
    relative,
    sums_file,
    text,
)

__all__ = [
    "HEAD",
    "READERS",
    "action_names",
    "built",
    "find",
    "parse",
    "place",
    "published_files",
    "read",
    "relative",
    "sums_file",
    "text",
]
