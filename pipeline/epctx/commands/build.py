"""`epctx build`: read the plan, open the cache, carry it out: the one door to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from epctx.cache import Cache
from epctx.cache.opening import Shared
from epctx.engine import build, noop, plan
from epctx.engine.build import Options
from epctx.engine.events import Listener
from epctx.engine.plan import Plan
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError
from epctx.parsing.schema import files


class Done(Struct, frozen=True, kw_only=True):
    """What came of a build.

    Attributes:
        failure: the first in manifest order; None: everything was built, or was up to date.
        cache: what it used; None: none.
        watched: all that it looked at, for `remember`; None: it can never be a no-op.
    """

    plan: Plan
    report: BuildReport
    failure: EpctxError | None
    cache: Cache | None
    watched: noop.Watched | None

    def remember(self, says: Sequence[str], *, report: bool = False) -> None:
        """Let the next build of this kind say the same at once, if there is nothing to do then.

        Args:
            says: the lines that it prints.
            report: they are a build report, of which times are made anew.
        """
        if self.watched is not None and self.cache is not None:
            self.watched.remember(self.cache.records, says, report=report)


def run(
    manifest: Path,
    options: Options,
    *,
    listener: Listener,
    only: Sequence[str] = (),
    cached: bool = True,
    shared: Shared | None = None,
    allow_outside: bool = False,
    refuse: Callable[[Plan], None] = lambda planned: None,
    watch: bool = False,
) -> Done:
    """Build what `manifest` declares. What is not told here is as in `api.build`.

    Args:
        cached: use what was built before, and remember what is built now.
        shared: what is said of the shared cache behind it; None: as the environment says.
        refuse: is called with the plan before anything is done, and may raise.
        watch: note all that is looked at, so that `Done.remember` can make the next one a no-op.

    Raises:
        EpctxError: as `engine.plan.read` and `engine.build.run` raise, and `refuse`.
    """
    watched = None
    if watch and cached and not options.locked and not options.release.asked:
        watched = noop.Watched()
        watched.read(manifest)
        watched.code(Path(__file__).parents[1], Path(str(files.root())))
    planned = plan.read(manifest, only=only, allow_outside=allow_outside)
    refuse(planned)
    cache = build.open_cache(listener, shared or Shared(), options) if cached else None
    report, failure = build.run(planned, options, listener=listener, cache=cache, watched=watched)
    return Done(plan=planned, report=report, failure=failure, cache=cache, watched=watched)
