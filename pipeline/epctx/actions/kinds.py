"""List of all actions that a worker, here or on another machine, can carry out.

A new action is a module beside this one, as `actions.action` says, and a name in `KINDS`. The list
is not in `action`, since all of these modules import that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from epctx.actions.action import Action, Code
from epctx.actions.compile import Compile
from epctx.actions.compose import Compose
from epctx.actions.find_sizes import FindSizes
from epctx.actions.golden import Golden
from epctx.actions.optimize import Optimize
from epctx.actions.partition import Partition
from epctx.actions.pieces import Assemble, Cut
from epctx.actions.quantize import Quantize
from epctx.actions.record import Record
from epctx.actions.run_models import RunFiles, RunParts, RunSource
from epctx.actions.trial import Trial
from epctx.actions.verify import Check, Verify

KINDS: Final[Mapping[str, type[Action[Any]]]] = {
    kind.__name__: kind
    for kind in (
        *(Optimize, Quantize, Partition, Cut, Compile, Assemble, Compose),
        *(Record, RunSource, RunFiles, RunParts, Check, Verify),
        *(Golden, Trial, FindSizes),
    )
}
"""Actions by name; a worker refuses other names."""
CODE: Final[Mapping[str, Code]] = {kind.kind: kind.code for kind in KINDS.values() if kind.kind}
"""Code of the actions that have keys, by their names in the cache."""
