"""What `epctx reproduce` tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

from epctx.commands.reproduce.files import FileComparison
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.lockfile.differences import Difference
from epctx.text import Brief, did_you_mean

VariationName = Literal[
    "path", "environment", "exec-path", "home", "locale", "time-zone", "hash-seed", "umask",
    "time", "file-order", "file-times", "cores", "jobs", "user", "host-name",
]  # fmt: skip
VARIATIONS: tuple[VariationName, ...] = get_args(VariationName)
"""Those of reproducible-builds.org's reprotest that a build of epctx can be given, and its own:
hash-seed, file-times, jobs."""

Verdict = Literal["no lock", "the same", "the same outputs", "made on another host", "differs"]


def variations_of(names: Sequence[str] | None) -> tuple[VariationName, ...]:
    """The variations of these names; all of them for None.

    Raises:
        UsageError: there is none of a name.
    """
    if names is None:
        return VARIATIONS
    for name in names:
        if name not in VARIATIONS:
            raise UsageError(
                f'"{name}" is nothing that can be varied',
                remedy=did_you_mean(name, VARIATIONS),
                code=Code.NO_SUCH_CHOICE,
            )
    return tuple(known for known in VARIATIONS if known in names)


class Variation(Struct, frozen=True, kw_only=True):
    """What was varied between the two builds, in the build and in its workers.

    Attributes:
        first: what it was in the first build, for people.
        second: likewise; the same as `first` where it was not varied.
        obstacle: why it was not varied; None: it was.
    """

    name: VariationName
    first: str
    second: str
    obstacle: str | None = None


class Reproduction(Brief, frozen=True, kw_only=True):
    """Two builds, compared.

    Attributes:
        name: the manifest's.
        reproducible: every file and the lock are the same in both builds, and the lock beside the
            manifest does not say otherwise.
        files: every file of the outputs.
        differences: between the locks of both builds.
        causes: what each makes a build differ by itself, where that was looked for; `nothing`: two
            builds under the same circumstances differ.
        known: what the EPs of groups whose payload differs say of themselves.
        lock: what the lock beside the manifest says of the first build. `the same outputs`: of
            another toolchain or sources, which gave the same bytes.
        lock_differences: between that lock and the first build.
        seconds: wall time of each build.
    """

    name: str
    reproducible: bool
    variations: tuple[Variation, ...]
    files: tuple[FileComparison, ...]
    differences: tuple[Difference, ...] = ()
    causes: tuple[VariationName | Literal["nothing"], ...] = ()
    known: tuple[str, ...] = ()
    lock: Verdict = "no lock"
    lock_differences: tuple[Difference, ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)
