"""A worker's side: the lanes of builds, carried out by this machine's processes.

`carry_out`, `describe` and `cancelled` are what coordinators ask; each takes a text and the key of
the call, and gives a text. `attend` is a task of dask's, and lasts as long as the build does: as
soon as nobody waits for it any more, since the build has ended, was interrupted, or its machine is
gone, all that is of the build ends.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from epctx import codec
from epctx.actions.action import Action, StageStarted
from epctx.actions.kinds import KINDS
from epctx.cache.digests import FreshDigests
from epctx.errors import CompileError, EpctxError, StorageError
from epctx.files import outputs
from epctx.keys.toolchain import Toolchain
from epctx.machines import portable
from epctx.machines.blobs import Blobs
from epctx.machines.messages import TOPIC, Answer, Began, Ep, Request, decoded, encoded
from epctx.manifest import ProviderSpec
from epctx.worker import protocol
from epctx.worker.pool import Lane, Pool

Publish = Callable[[str, str], None]
"""Sends an event: its topic, and what it says."""
_ATTENDED: Final = 30.0
"""Seconds after which somebody must attend a build of which there is a job."""
_TELLS: Final = 0.25
"""Seconds between two events of a job."""
_ENDED: Final = EpctxError("the build has ended", remedy="run the command again")


class _Stages:
    """Those that a request comes to. Used by two threads."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._begun: list[tuple[float, StageStarted]] = []
        self._told = 0

    def note(self, stage: StageStarted) -> None:
        """It has come to one."""
        self._begun.append((time.monotonic(), stage))

    def all(self, first: int = 0) -> tuple[StageStarted, ...]:
        """From one of them on."""
        now = time.monotonic()
        return tuple(replace(stage, ago=now - then) for then, stage in self._begun[first:])

    def tell(self, publish: Publish) -> None:
        """Send what was not sent."""
        new = self.all(self._told)
        if new:
            self._told += len(new)
            began = Began(build=self._request.build, number=self._request.number, stages=new)
            publish(TOPIC, encoded(began))


class _Lane:
    """A lane of a build, and the folder of its files."""

    def __init__(self, pool: Pool, request: Request, folder: Path) -> None:
        self.lane = Lane(pool, request.label, request.kind)
        self.folder = folder

    def end(self) -> None:
        """End it at once."""
        self.lane.cancel(_ENDED)
        self.lane.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Build:
    """A build that this machine works for. Used by many threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.over = threading.Event()
        self.pool = Pool(work=folder / "work", logs=folder / "logs")
        self._lock = threading.Lock()
        self._lanes: dict[int, _Lane] = {}

    def lane(self, request: Request) -> _Lane:
        """A lane, opened with its first job."""
        number = request.lane
        with self._lock:
            if self.over.is_set():
                raise _ENDED
            if number not in self._lanes:
                self._lanes[number] = _Lane(self.pool, request, self.folder / f"l{number}")
            return self._lanes[number]

    def forget(self, number: int) -> None:
        """A lane has ended."""
        with self._lock:
            known = self._lanes.pop(number, None)
        if known is not None:
            known.end()

    def cancel(self, number: int) -> None:
        """Nobody waits for a lane's job."""
        with self._lock:
            known = self._lanes.get(number)
        if known is not None:
            known.lane.cancel(_ENDED)

    def end(self) -> None:
        """End all of it at once."""
        with self._lock:
            self.over.set()
            lanes, self._lanes = self._lanes, {}
        self.pool.cancel(_ENDED)
        for lane in lanes.values():
            lane.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _answered(answer: Callable[[], Answer]) -> Answer:
    """An answer; one that says what failed, if something did."""
    try:
        with outputs.refusals():
            return answer()
    except EpctxError as error:
        own = error is _ENDED or isinstance(error, StorageError)
        return Answer(failure=error.failure, own=own)


class Site:
    """What this process has for builds. Used by many threads.

    Args:
        folder: its scratch: its own, and empty.
        blobs: that it shares with coordinators.
        publish: sends events.
        eps: what `epctx doctor` finds, by name; None: nobody asked.
    """

    def __init__(
        self,
        folder: Path,
        blobs: Blobs,
        publish: Publish,
        eps: Mapping[str, Ep] | None = None,
    ) -> None:
        self._folder = folder
        self._blobs = blobs
        self._publish = publish
        self._eps = eps or {}
        self._lock = threading.Condition()
        self._builds: dict[str, _Build] = {}
        self._busy: dict[str, tuple[str, int | None]] = {}
        self._toolchain = Toolchain(FreshDigests())
        self._ended: set[str] = set()
        self._telling: dict[str, _Stages] = {}
        self._over = threading.Event()
        threading.Thread(target=self._tell, name="epctx-stages", daemon=True).start()

    def attend(self, name: str, key: str) -> str:
        """Stay until the build has ended, then end what is left of it."""
        with self._lock:
            build = self._builds[name] = _Build(self._folder / name)
            self._busy[key] = (name, None)
            self._lock.notify_all()
        build.over.wait()
        return ""

    def carry_out(self, text: str, key: str) -> str:
        """Carry out a request; what fails is in the answer."""
        request = decoded(text, Request)
        with self._lock:
            self._busy[key] = (request.build, request.lane)
            stages = self._telling[key] = _Stages(request)
        try:
            answer = _answered(lambda: self._worked(request, stages))
            return encoded(replace(answer, stages=stages.all()))
        finally:
            with self._lock:
                self._busy.pop(key, None)
                del self._telling[key]

    def describe(self, text: str, key: str) -> str:
        """An EP of this machine, or why it cannot be used."""
        packed = decoded(text, portable.Portable)
        folder = self._folder / f"d{threading.get_ident()}"
        try:
            return encoded(_answered(lambda: self._described(packed, folder)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def cancelled(self, text: str, key: str) -> str:
        """As `cancel`, asked by a coordinator."""
        self.cancel(key)
        return ""

    def cancel(self, key: str) -> None:
        """Nobody waits for what has this key; if it runs, what it does is to end."""
        with self._lock:
            name, lane = self._busy.pop(key, ("", None))
            build = self._builds.get(name)
            if build is not None and lane is None:
                del self._builds[name]
                self._ended.add(name)
        if build is not None and lane is None:
            build.end()
        elif build is not None and lane is not None:
            build.cancel(lane)

    def close(self) -> None:
        """End everything."""
        self._over.set()
        with self._lock:
            builds, self._builds = self._builds, {}
            self._ended.update(builds)
        for build in builds.values():
            build.end()

    def _build(self, name: str) -> _Build:
        """A build that is attended, or will be at once."""
        with self._lock:
            self._lock.wait_for(lambda: name in self._builds or name in self._ended, _ATTENDED)
            if name not in self._builds:
                raise _ENDED
            return self._builds[name]

    def _tell(self) -> None:
        """Jobs that last have their stages told; of short ones the answer tells."""
        while not self._over.wait(_TELLS):
            with self._lock:
                telling = list(self._telling.values())
            for stages in telling:
                stages.tell(self._publish)

    def _described(self, packed: portable.Portable, folder: Path) -> Answer:
        kinds = {ProviderSpec.__name__: ProviderSpec}
        (spec,), _ = portable.placed(packed, kinds, self._blobs, folder, folder / "new")
        found = self._eps.get(spec.provider)
        if found is not None and found.failure is not None:
            raise protocol.restore(found.failure, log=folder)
        return Answer(results=(msgspec.Raw(codec.encode(self._toolchain.describe(spec))),))

    def _worked(self, request: Request, stages: _Stages) -> Answer:
        build = self._build(request.build)
        for lane in request.over:
            build.forget(lane)
        own = build.lane(request)
        if request.job is None:
            try:
                own.lane.close()
            finally:
                build.forget(request.lane)
            return Answer()
        new = own.folder / f"n{request.number}"
        job, roots = portable.placed(request.job, KINDS, self._blobs, own.folder, new)
        told = tuple(path.as_posix() for path in roots)
        try:
            results = self._results(own, job, request, stages)
        except EpctxError as error:
            made = portable.collected(request.job, roots, self._blobs, failed=True)
            return replace(self._failed(error), made=made, roots=told)
        made = portable.collected(request.job, roots, self._blobs, failed=False)
        shutil.rmtree(new, ignore_errors=True)
        if request.last:
            build.forget(request.lane)
        peak = own.lane.peak_memory
        return Answer(results=results, peak_memory=peak, made=made, roots=told)

    def _results(
        self, own: _Lane, job: Sequence[Action[Any]], request: Request, stages: _Stages
    ) -> tuple[msgspec.Raw, ...]:
        results = own.lane.run(
            job, started=stages.note, timeout=request.timeout, budget=request.budget
        )
        if request.last:
            own.lane.close()
        return tuple(msgspec.Raw(codec.encode(each)) for each in results)

    def _failed(self, error: EpctxError) -> Answer:
        log, tail = None, error.log
        if tail is not None:
            with contextlib.suppress(OSError, StorageError):
                log = self._blobs.put(Path(tail.file)) if Path(tail.file).stat().st_size else None
        crashed = error if isinstance(error, CompileError) else None
        return Answer(
            failure=error.failure,
            own=isinstance(error, StorageError),
            starved=crashed is not None and crashed.starved,
            native=None if crashed is None else crashed.native,
            log_file="" if tail is None else tail.file,
            log=log,
            lines=() if tail is None else tail.lines,
        )
