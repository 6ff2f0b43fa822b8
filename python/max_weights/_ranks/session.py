"""`Session`: ranks that run one collective operation, each of which soon learns that another one cannot continue.

Ranks communicate through a connection that only the session uses. After a failure it is given up, and the user's group
stays intact. Signs of life, and the reason of a failure, go through the store of torch.distributed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from max_weights._group_options import require_timeout
from max_weights._ranks.connection import Connection
from max_weights._ranks.failure import Failure
from max_weights._ranks.topology import host_name, is_running, machine
from max_weights._typing import known
from max_weights.errors import ArgumentError, RankError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Members", "Session"]

_BEAT = 0.25
"""Seconds between two heartbeats."""
_SILENT = 1.2
"""The seconds without a heartbeat after which a rank is gone, once a connection broke."""
_sessions: dict[str, int] = {}


@dataclass(frozen=True)
class Members:
    """Ranks of a group that does not exist in this process, for one session."""

    ranks: Sequence[int]
    """The global ranks, by their rank in the group."""
    name: str
    """A name that no other session has."""

    @staticmethod
    def own_rank() -> int:
        """Return the global rank of this process."""
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class Session:
    """The ranks of a process group, for one load or save.

    Args:
        group: The process group, or its members; `None` for all ranks.
        timeout: For how many seconds ranks wait for each other.
        what: The operation, for messages.
        whole: The session that these ranks belong to, and their numbers there.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | Members | None,
        timeout: float,
        what: str,
        whole: tuple[Session, Sequence[int]] | None = None,
    ) -> None:
        is_alone = isinstance(group, Members) and len(group.ranks) == 1
        if not is_alone and (not dist.is_available() or not dist.is_initialized()):
            raise ArgumentError(f"{what}: group= needs torch.distributed.init_process_group()", rule="argument.group")
        require_timeout(timeout)
        self.what = what
        self.timeout = timeout
        self.host = host_name()
        self._whole: Session | None = None if whole is None else whole[0]
        if whole is None:
            members, self.backend = _members_of(group, what)
            self.ranks: Sequence[int] = members.ranks
            """The global ranks, by their rank in the group."""
            self.rank = self.ranks.index(Members.own_rank())
            self._numbers: Sequence[int] = range(len(self.ranks))
            self.note: str = ""
            """A note for errors: the state that tensors or files are left in."""
            self.device = torch.device("cpu")
            """The device of the memory that is sent."""
            if "nccl" in self.backend and "gloo" not in self.backend:
                self.device = torch.device("cuda", torch.cuda.current_device())
            self._name = f"max_weights/{members.name}"
        else:
            outer, self._numbers = whole
            self.rank = self._numbers.index(outer.rank)
            self.ranks = [outer.ranks[number] for number in self._numbers]
            self.note, self.backend, self.device = outer.note, outer.backend, outer.device
            self._name = f"{outer._name}/{self._numbers[0]}"
        self.size = len(self.ranks)
        self.number = self._numbers[self.rank]
        """The rank of this process in messages."""
        self._connection: Connection | None = None
        self._peers: list[tuple[str, str, int]] = []
        self._steps = 0
        self._stop = threading.Event()
        self._watching = False
        self._failure: Failure | None = None
        self._has_left = False
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._beat_at = time.monotonic()
        self._thread: threading.Thread | None = None
        if self.size > 1:
            self._store = PrefixStore(self._name, _default_store())

    @property
    def connection(self) -> Connection:
        """The connection between the ranks of this session."""
        return known(self._connection)

    def __enter__(self) -> Self:
        if self.size == 1:
            return self
        self._store.set(f"beat/{self.rank}", "0")
        self._store.set(f"here/{self.rank}", json.dumps([self.host, machine(), os.getpid()]))
        self._thread = threading.Thread(target=self._beat, name="max_weights-ranks", daemon=True)
        self._thread.start()
        try:
            self._meet()
            store = PrefixStore("connection", self._store)
            self._connection = Connection(store, self.rank, self.size, self.timeout + 10, self.device)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.size == 1:
            return
        if error is not None and not isinstance(error, RankError) and not getattr(error, "_agreed", False):
            self._say(Failure.of(error, self.number, self.host))
        failed = error is not None or self._has_left
        if failed:
            if self._whole is not None and isinstance(error, RankError) and isinstance(error._failure, Failure):
                self._whole._say(error._failure)
            self._acknowledge()
        self._stop.set()
        if self._connection is not None:
            self._connection.close(failed=failed)
        self._connection = None

    # Messages between ranks

    def gather(self, data: bytes) -> list[bytes]:
        """Return the messages of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [data]
        length = torch.tensor([len(data)], dtype=torch.int64, device=self.device)
        lengths = [torch.empty_like(length) for _ in range(self.size)]
        self.wait(self.connection.all_gather(lengths, length))
        sizes = [int(one) for one in lengths]
        own = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
        own = own.to(self.device)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self.wait(self.connection.all_gather(parts, own))
        return [bytes(part[:size].cpu().numpy()) for part, size in zip(parts, sizes, strict=True)]

    def agree(self, record: Mapping[str, Any], error: BaseException | None = None) -> list[dict[str, Any]]:
        """Return the records of all ranks, or raise the error of one of them.

        An error that all ranks have, such as names that do not fit, is raised unchanged on each.
        """
        failure = None if error is None else Failure.of(error, self.number, self.host)
        declared = self.gather(json.dumps([None if failure is None else failure.encoded().decode(), record]).encode())
        records: list[dict[str, Any]] = []
        failures: list[Failure] = []
        for text in declared:
            failed, one = json.loads(text)
            records.append(one)
            if failed is not None:
                failures.append(Failure.decoded(failed.encode()))
        if error is not None and len(failures) == self.size and len({one.text for one in failures}) == 1:
            error._agreed = True  # type: ignore[attr-defined]
            raise error
        if failures:
            raise failures[0].error(self.note) from error
        return records

    def agreed(self, do: Callable[[], Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Do something on each rank, and return the results of all; errors are collective."""
        error: Exception | None = None
        declared: Mapping[str, Any] = {}
        try:
            declared = do()
        except RankError:
            raise
        except Exception as failed:
            error = failed
        return self.agree(declared, error)

    def wait(self, work: dist.Work) -> None:
        """Wait for a communication.

        Raises:
            RankError: another rank has failed, is gone, or does not answer.
        """
        self._steps += 1
        began, pause = time.monotonic(), 5e-5
        watched = began
        while not work.is_completed():
            now = time.monotonic()
            self.check()
            if now - watched > _BEAT:
                watched = now
                self._watching = True
                self._require_processes()
            if now - began > self.timeout:
                self._late()
            time.sleep(pause)
            pause = min(pause * 1.5, 2e-3)
        self._watching = False
        try:
            work.wait()
        except RuntimeError as error:
            self._gone(error)

    def check(self) -> None:
        """Raise the error of another rank, if one has failed."""
        if self._failure is not None and self._steps > self._failure.after:
            raise self._failure.error(self.note)
        if self._whole is not None:
            self._whole.check()

    def leave(self, why: str) -> None:
        """Announce that this rank stops: others may complete the steps that it took, but the next one is an error."""
        if self.size > 1:
            self._has_left = True
            self._say(Failure(self.number, self.host, why, after=self._steps))

    def of_this_machine(self) -> tuple[Session, list[int]]:
        """Return a session of the ranks of this machine, and their ranks in this session."""
        machines = self.machines
        ranks = [rank for rank, place in enumerate(machines) if place == machines[self.rank]]
        return Session(None, self.timeout, self.what, (self, ranks)), ranks

    # Presence of ranks

    def _meet(self) -> None:
        """Wait until all ranks have arrived."""
        deadline = time.monotonic() + self.timeout
        keys = [f"here/{rank}" for rank in range(self.size)]
        pause = 1e-3
        while not self._store.check(keys if self.rank == 0 else ["all"]):
            self.check()
            if time.monotonic() > deadline + (0 if self.rank == 0 else 1):
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])] or [0]
                self._raise(
                    Failure(
                        self._numbers[missing[0]], "unknown", f"has not called {self.what} within {self.timeout:g} s"
                    )
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        if self.rank == 0:
            self._store.set("all", json.dumps([json.loads(text) for text in self._store.multi_get(keys)]))
        self._peers = [tuple(one) for one in json.loads(self._store.get("all"))]

    @property
    def machines(self) -> list[int]:
        """The number of the machine of each rank."""
        numbers: dict[str, int] = {}
        places = [place for _, place, _ in self._peers] or [machine()]
        return [numbers.setdefault(place, len(numbers)) for place in places]

    def host_of(self, rank: int) -> str:
        """Return the name of the machine of a rank."""
        return self._peers[rank][0] if self._peers else self.host

    def _require_processes(self) -> None:
        """Raise an error if a process of this machine is gone."""
        if self._failure is not None:
            return  # a rank that has left has reported why
        for rank, (host, place, process) in enumerate(self._peers):
            if rank != self.rank and place == machine() and not is_running(process):
                time.sleep(_BEAT * 1.5)  # it may have reported why
                self.check()
                why = "the process is gone; see the end of its output"
                self._raise(Failure(self._numbers[rank], host, why))

    def _gone(self, error: RuntimeError) -> None:
        """Find out which rank broke a connection, and raise an error that names it."""
        self._watching = True
        began = time.monotonic()
        while time.monotonic() - began < _SILENT + 2 * _BEAT:
            self.check()
            self._require_processes()
            time.sleep(0.02)
        self.check()
        silent = self._silent(_SILENT)
        why = f"the connection to it broke: {str(error).splitlines()[0][:300]}"
        if silent:
            self._raise(Failure(self._numbers[silent[0]], self.host_of(silent[0]), f"is gone ({why})"))
        self._raise(Failure(self.number, self.host, f"a connection to another rank broke: {str(error)[:300]}"))

    def _late(self) -> None:
        """Raise the error for a rank that did not answer in time."""
        silent = self._silent(2 * _BEAT + 1)
        if silent:
            rank, why = silent[0], "gives no sign of life: it is stopped, or its machine is not reached"
        else:
            behind = [rank for rank, (beat, _) in self._beats.items() if int(beat.split(b":")[-1]) < self._steps]
            rank, why = (behind or [0])[0], "is alive, and slower than the others"
        why = f"has sent nothing for {self.timeout:g} s ({why})"
        self._raise(Failure(self._numbers[rank], self.host_of(rank), why))

    def _silent(self, seconds: float) -> list[int]:
        now = time.monotonic()
        if now - self._beat_at > seconds:
            return [self.ranks.index(0)] if 0 in self.ranks else []  # the store does not answer, which rank 0 has
        return [rank for rank, (_, at) in self._beats.items() if rank != self.rank and now - at > seconds]

    def _beat(self) -> None:
        """Send heartbeats, and check those of others and their errors, until the session ends."""
        store = self._store.clone()
        keys = [f"beat/{rank}" for rank in range(self.size)]
        count = 0
        while not self._stop.wait(_BEAT):
            count += 1
            try:
                store.set(f"beat/{self.rank}", f"{count}:{self._steps}")
                if self._failure is None and store.check(["failure"]):
                    self._failure = Failure.decoded(store.get("failure"))
                if self._watching and self._peers:
                    now = time.monotonic()
                    for rank, beat in enumerate(store.multi_get(keys)):
                        if self._beats.get(rank, (b"",))[0] != beat:
                            self._beats[rank] = (beat, now)
            except Exception:
                return  # the store is gone, together with the rank that hosts it
            self._beat_at = time.monotonic()

    # Failures

    def _raise(self, failure: Failure) -> None:
        """Report a failure to all ranks, and raise the error for the first that was reported."""
        raise self._say(failure).error(self.note)

    def _say(self, failure: Failure) -> Failure:
        declared = [failure]

        def say() -> None:
            with contextlib.suppress(Exception):
                declared.append(Failure.decoded(self._store.compare_set("failure", "", failure.encoded().decode())))

        _briefly(say)
        return declared[-1]

    def _acknowledge(self) -> None:
        """Keep the process that hosts the store alive until the others have read the failure."""

        def acknowledge() -> None:
            with contextlib.suppress(Exception):
                self._store.add("over", 1)
                if self.ranks[self.rank] == 0:
                    deadline = time.monotonic() + 1
                    alive = [is_running(process) for _, place, process in self._peers if place == machine()]
                    while self._store.add("over", 0) < min(self.size, sum(alive)) and time.monotonic() < deadline:
                        time.sleep(0.01)

        _briefly(acknowledge)


def _members_of(group: dist.ProcessGroup | Members | None, what: str) -> tuple[Members, str]:
    """Return the members of a group, and its backends."""
    if isinstance(group, Members):
        return group, "" if len(group.ranks) == 1 else dist.get_backend_config()
    user: Any = dist.group.WORLD if group is None else group
    if user is None or dist.get_rank(user) < 0:
        raise ArgumentError(f"{what}: this process is not in the group", rule="argument.group")
    number = _sessions[user.group_name] = _sessions.get(user.group_name, 0) + 1
    members = Members(dist.get_process_group_ranks(user), f"{user.group_name}/{number}")
    return members, dist.get_backend_config(user)


def _briefly(do: Callable[[], None]) -> None:
    """Run something that may block forever, and wait for it briefly."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(1.2)


def _default_store() -> Store:
    from torch.distributed.distributed_c10d import _get_default_store

    store: Store = _get_default_store()
    return store
