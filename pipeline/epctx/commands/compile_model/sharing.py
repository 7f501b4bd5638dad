"""Compile sessions that share an EP context, in this process."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from epctx.commands.compile_model.request import Request, model_group, move, staging
from epctx.error_codes import Code
from epctx.errors import CompileError, UsageError
from epctx.manifest import ModelGroup
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider, PartitionedModel, SessionGroupSpec, Workspace
from epctx.stages import compile, load, optimize, partition
from epctx.stages.compile import Chain, CompiledGroup


class Sharing:
    """Sessions of one sharing group, or the one session of a model that shares nothing.

    Args:
        first: request of the first session; later requests must agree with it.

    Attributes:
        closed: True when the group is finished or has failed.
    """

    def __init__(self, first: Request) -> None:
        self._first = first
        self.closed = False
        self._written: list[Path] = []
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            # Weights made by passes are memory-mapped from here until the binary is written.
            scratch = tempfile.TemporaryDirectory(prefix="epctx-", ignore_cleanup_errors=True)
            self._scratch = Path(stack.enter_context(scratch))
            group = model_group([first], self._folder("described"))
            self._providers = [registry.create(spec) for spec in group.execution_providers]
            spec = SessionGroupSpec(
                models=(first.name,),
                embed_mode=group.embed_mode,
                node_name_prefix=group.node_name_prefix,
                session_options=group.session_options,
                folder=self._folder("providers"),
                open_ended=first.config.share,
            )
            self._workspaces = [_open(p, spec, stack) for p in self._providers]
            self._stack = stack.pop_all()

    def session(self, request: Request) -> None:
        """Compile one model and write its files; the last session also writes the binaries.

        Raises:
            UsageError: the request does not agree with the first; the group continues without it.
            EpctxError: the compile failed; the group is closed, and its files are removed.
        """
        request.require_agreement(self._first)
        try:
            self._session(request)
        except BaseException:
            for path in self._written:
                path.unlink(missing_ok=True)
            self.close()
            raise
        if request.is_last:
            self.close()

    def close(self) -> None:
        """Clear the workspace. Idempotent."""
        self.closed = True
        self._stack.close()

    def _session(self, request: Request) -> None:
        number = len(self._written)
        group = model_group([request], self._folder(f"request-{number}"))
        loaded = load.run(group.models[0])
        optimized = optimize.run(loaded, group.optimize, self._folder(f"optimized-{number}"))
        model = partition.run(optimized, self._providers, group.partition)
        if not model.partitions:
            raise _nothing_compiled(model)
        chain = Chain(model=model, providers=self._providers)
        chain.compile(self._workspaces)
        partitioned = chain.finish(self._workspaces)
        workspaces = self._workspaces if request.is_last else ()
        compiled = CompiledGroup(
            models={model.name: partitioned.model},
            partitioned=(partitioned,),
            joint=frozenset((model.name,)) if chain.joint else frozenset(),
            binaries=tuple(b for workspace in workspaces for b in workspace.finish()),
            workspaces=tuple(self._workspaces),
        )
        self._write(request, group, compiled)

    def _write(self, request: Request, group: ModelGroup, compiled: CompiledGroup) -> None:
        folder = request.output.parent
        with staging(folder) as staged:
            output = compile.dump(
                compiled, staged, external_initializers=group.external_initializers
            )
            model = output.models[request.name]
            other_files = [file.name for file in output.files if file.name != model]
            moves = {staged / name: folder / name for name in other_files}
            self._require_own_names(request, moves)
            move({**moves, staged / model: request.output})
        self._written += [*moves.values(), request.output]

    def _require_own_names(self, request: Request, moves: dict[Path, Path]) -> None:
        """Refuse to overwrite the source or files of an earlier session."""
        names = {path.name.casefold() for path in self._written}
        for target in (*moves.values(), request.output):
            if target.name.casefold() in names or target == request.path:
                raise UsageError(
                    f"two outputs of the group, or an output and a source, have the path {target}",
                    remedy="give the models, and their external initializers, names of their own",
                )

    def _folder(self, name: str) -> Path:
        folder = self._scratch / name
        folder.mkdir()
        return folder


def _open(
    provider: ExecutionProvider, spec: SessionGroupSpec, stack: contextlib.ExitStack
) -> Workspace:
    if spec.sharing and not provider.can_share:
        raise UsageError(
            f"{provider.name} cannot share a context",
            remedy="compile each model by itself, without ep.share_ep_contexts",
        )
    workspace = provider.open_workspace(spec)
    stack.callback(workspace.close)
    return workspace


def _nothing_compiled(model: PartitionedModel) -> CompileError:
    return CompileError(
        "nothing compiled: no execution provider takes any node",
        model=model.name,
        why="; ".join(dict.fromkeys(r for d in model.declined for _, r in d.reasons)) or None,
        remedy="change the EPs, their options or `partition`",
        code=Code.NOTHING_COMPILED,
    )
