"""Paths in models and lists: relative, inside the folder, and without links.

Execution providers check no path: some accept `sub/../x`, all follow symbolic links, and OpenVINO
waits forever on a FIFO (real-eps.md section 5). This module opens no file.
"""

from __future__ import annotations

import posixpath
import re
import stat
from pathlib import Path

from epctx.files import listing

_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def fault(location: str) -> str | None:
    """Return why a text is not a valid location on Linux and Windows; None if it is valid."""
    if not location:
        return "it is empty"
    if "\0" in location:
        return "it contains a NUL"
    if "\\" in location:
        return "it contains a backslash; ONNX separates folders by `/`"
    if _is_absolute(location):
        return "it is absolute"
    if ".." in location.split("/"):
        return "it leads out of the folder by `..`"
    if posixpath.normpath(location) == ".":
        return "it is the folder itself"
    return None


def normalize(location: str) -> str:
    """Return the one normal spelling of a valid location."""
    return posixpath.normpath(location)


def objection(text: str) -> str | None:
    """Return why a path is not valid as it is written; None if it is relative, with `/`, and stays
    inside.
    """
    if not text:
        return "it is empty"
    if _CONTROL.search(text):
        return "it has a control character"
    if "\\" in text:
        return "it has a backslash: `/` separates folders"
    if _is_absolute(text):
        return "it is absolute"
    if ".." in text.split("/"):
        return "it has `..`"
    if text.endswith("/") or set(text.split("/")) <= {"."}:
        return "it names a folder"
    return None


def _is_absolute(text: str) -> bool:
    """Return whether a path is absolute on Linux or on Windows, where `C:x` leads to another
    folder, too.
    """
    return text.startswith("/") or _DRIVE.match(text) is not None


def is_bare(text: str) -> bool:
    """Return whether a text is the name of a file in the folder itself."""
    return objection(text) is None and "/" not in text


def is_plain(text: str) -> bool:
    """Return whether a text is the normal spelling of a path below a folder, on any system."""
    # On Windows, a colon names a stream of a file.
    return objection(text) is None and not {"", "."} & set(text.split("/")) and ":" not in text


def data_roots(model: Path, real: Path, folder: Path | None) -> tuple[Path, ...]:
    """Return the folders that hold a model's data files, links followed, by ONNX Runtime's rule:
    data beside a model may be links into the folder of the real model, as in Hugging Face's cache.

    Args:
        model: the model's path.
        real: the same path, links followed.
        folder: `external_data_dir`; None for the model's folder.
    """
    beside = folder in (None, model.parent)
    return ((folder or model.parent).resolve(), *((real.parent,) if beside else ()))


def missing(folder: Path, text: str) -> str | None:
    """Return why `text` names no regular file below `folder`, its `objection` first; None if it
    does.

    Names must match in case, too: a file that Windows finds would be missing on other systems. The
    file is not opened.
    """
    if reason := objection(text):
        return reason
    place = folder
    parts = [part for part in text.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts, start=1):
        try:
            names = {entry.name for entry in place.iterdir()}
            status = (place / part).lstat()
        except OSError as error:
            return f"it does not exist ({error.strerror})" if number > 1 else "it does not exist"
        except ValueError:
            return "it is not a valid file name"
        if part not in names:
            return f"the file's name differs in case from '{part}'"
        if listing.is_link(status):
            return f"'{part}' is a link"
        place = place / part
        if number < len(parts) and not stat.S_ISDIR(status.st_mode):
            return f"'{part}' is not a folder"
        if number == len(parts) and not stat.S_ISREG(status.st_mode):
            return "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
    return None


def entries(folder: Path) -> list[str]:
    """Return the relative paths of all files and links below `folder`, sorted, with `/`.

    Links are not followed. An empty folder is an entry, too, and ends with `/`.
    """
    listed = list(listing.below(folder))
    filled = {path.parent for path in listed}
    names = []
    for path in listed:
        name = path.relative_to(folder).as_posix()
        if not listing.is_folder(path):
            names.append(name)
        elif path not in filled:
            names.append(f"{name}/")
    return sorted(names)
