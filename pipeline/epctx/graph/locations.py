"""Locations of external data: paths with `/`, relative to the model's folder, inside it."""

from __future__ import annotations

import posixpath
import re

_DRIVE = re.compile(r"[A-Za-z]:")


def fault(location: str) -> str | None:
    """Why a text is no location, on Linux or on Windows; None: it is one."""
    if not location:
        return "it is empty"
    if "\0" in location:
        return "it holds a NUL"
    if "\\" in location:
        return "it holds a backslash; ONNX separates folders by `/`"
    if location.startswith("/") or _DRIVE.match(location):
        return "it is absolute"
    if ".." in location.split("/"):
        return "it leads out of the folder by `..`"
    if posixpath.normpath(location) == ".":
        return "it is the folder itself"
    return None


def normalize(location: str) -> str:
    """One spelling for one location that has no fault."""
    return posixpath.normpath(location)
