"""The ranks of one run, and everything that they exchange.

A World of one rank has the same interface and does nothing, so no caller asks how many there are.
Gradients and sums travel over gloo on a CPU, NCCL on CUDA, and the backend that `device/accelerators.py` names elsewhere. Control
messages (barrier, bytes, the stop vote) travel over their own gloo group, so they never wait for the accelerator's exchanges, or
break them.
"""

# torch documents TCPStore, PrefixStore and Store as public, but does not re-export them in a way checkers accept.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from paceline._utils.errors import RankMismatchError, RecipeError
from paceline.distributed.comm.consistency import Facts, assert_equal_on_ranks
from paceline.distributed.comm.failure import CLEAN_EXITS, PeerWatch
from paceline.distributed.comm.gloo import choose_gloo_interface, explain_unreachable, suppress_gloo_output
from paceline.distributed.comm.launcher import Launch
from paceline.distributed.comm.messages import Messages
from paceline.distributed.comm.rendezvous import Rendezvous, rendezvous
from paceline.distributed.device.accelerators import BACKENDS, NAMES, register_backend, set_device

# Above this, gloo connects two ranks when they first talk; all pairs at the start would be millions of connections.
MAX_RANKS_FULLY_CONNECTED = 64


@dataclass
class DistContext:
    """This process among the others."""

    rank: int  # this process's number among these ranks, 0 to world-1
    world: int  # how many these ranks are
    local_rank: int  # as in Launch, as is
    local_world: int
    device: torch.device  # where this rank computes
    messages: Messages  # signed messages in a store shared by all ranks (in-process for one rank)
    control: dist.ProcessGroup | None = None  # gloo group of all ranks for small CPU messages; None for one rank
    hosts: tuple[str, ...] = ()  # on rank 0: every rank's host name by rank; empty on the others
    watch: PeerWatch | None = None  # ends this process when another rank fails; None for one rank
    # Messages whose end nobody waits for, with the tensors they fill; close() takes them.
    unfinished: list[tuple[Tensor, dist.Work]] = field(default_factory=list)
    group: dist.ProcessGroup | None = None  # group of these ranks for tensors on their devices; None: all ranks
    members: tuple[int, ...] = ()  # their numbers among all ranks; empty: these are all
    timeout: timedelta | None = None  # of one collective; None: torch's own
    _groups: dict[int, dist.ProcessGroup] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one that writes files and prints."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place; returns `tensor`. Any shape, on the CPU or on this rank's device."""
        if self.control is not None:
            group = self.control if tensor.device.type == "cpu" else self.group
            with torch.no_grad():
                dense = tensor.contiguous()
                dist.all_reduce(dense, group=group)
                if dense is not tensor:
                    tensor.copy_(dense)
        return tensor

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank rank 0's values, in place. Shapes must agree; memory formats may be any and are kept."""
        if self.control is None:
            return
        with torch.no_grad():
            moved = [(tensor, tensor.contiguous()) for tensor in tensors]
            groups = [self.control if dense.device.type == "cpu" else self.group for _, dense in moved]
            works = [
                dist.broadcast(dense, group=group, group_src=0, async_op=True) for (_, dense), group in zip(moved, groups)
            ]
            for work, (tensor, dense) in zip(works, moved):
                if work is not None:
                    work.wait()
                if dense is not tensor:
                    tensor.copy_(dense)

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """Every rank's `data` on rank 0, by rank; None on the others. Lengths may differ and may be 0."""
        if self.control is None:
            return [data]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(lengths, torch.tensor([len(data)]), group=self.control)
        if self.rank != 0:
            if data:
                dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), group=self.control, group_dst=0)
            return None
        gathered = [data]
        for rank in range(1, self.world):
            received = torch.empty(int(lengths[rank]), dtype=torch.uint8)
            if received.numel():
                dist.recv(received, group=self.control, group_src=rank)
            gathered.append(received.numpy().tobytes())
        return gathered

    def post(self, key: str, value: str) -> None:
        """Leave `value` for the other ranks under `key`, for good."""
        self.messages.set(f"post/{key}", value)

    def posted(self, key: str) -> str | None:
        """What some rank has posted under `key`; None where none has yet."""
        return self.messages.get(f"post/{key}")

    def wait_for(self, key: str, *, poll_seconds: float = 0.2) -> str:
        """What some rank posts under `key`, however long that takes: no collective, so no collective's timeout.

        A rank that dies meanwhile ends this process through `watch`.
        """
        name = f"post/{key}"
        if self.control is None and self.messages.get(name) is None:
            raise KeyError(key)  # alone, nobody else will ever post it
        return self.messages.wait(name, poll_seconds=poll_seconds)

    def assert_equal(self, facts: Facts, key: str) -> None:
        """Refuse `facts` that differ between ranks (see paceline/distributed/comm/consistency.py); every rank must call it.

        key  names this comparison; never used twice in one run
        raise RankMismatchError   on every rank alike: the first field that differs, with both values and their ranks
        """
        assert_equal_on_ranks(self.messages, self.world, facts, key)

    def new_groups(self, size: int, *, uneven: bool = False) -> dist.ProcessGroup | None:
        """The group of `size` consecutive ranks that holds this one (for group BN); None for size 1.

        uneven  whether the last group may be smaller
        Every rank must call it, with the same sizes in the same order; ranks outside a part too, in their own.
        raise ValueError   `size` does not divide the world
        """
        if size < 1 or (self.world % size and not uneven):
            raise ValueError(f"{self.world} ranks are not divisible into groups of {size}")
        if size == 1:
            return None
        if size not in self._groups:
            first = self.rank // size * size
            # Only the members meet: with thousands of ranks, everybody founding every group would take minutes.
            ranks = list((self.members or range(self.world))[first : first + size])
            with suppress_gloo_output(dist.get_backend()):
                group = dist.new_group(ranks, use_local_synchronization=True, group_desc=f"consecutive-{size}")
            assert isinstance(group, dist.ProcessGroup)
            self._groups[size] = group
        return self._groups[size]

    def part(self, ranks: Sequence[int], name: str) -> DistContext | None:
        """Some of these ranks as a world of their own, numbered from 0 in this order; None on a rank that is none of them.

        All ranks call it, with the same arguments: NCCL founds a group together with those outside it. What all share,
        such as messages, the parts share too. Only the whole is closed.
        """
        group = control = None
        if len(ranks) > 1:
            with suppress_gloo_output(dist.get_backend()):
                group = dist.new_group(list(ranks), timeout=self.timeout, group_desc=name)
            with suppress_gloo_output("gloo"):
                control = dist.new_group(list(ranks), backend="gloo", timeout=self.timeout, group_desc=f"{name}, control")
        if self.rank not in ranks:
            return None
        assert not isinstance(group, int) and not isinstance(control, int)  # torch's sign for a rank that is no member
        return replace(
            self,
            rank=ranks.index(self.rank),
            world=len(ranks),
            control=control,
            hosts=tuple(self.hosts[rank] for rank in ranks) if self.hosts else (),
            group=group,
            members=tuple(ranks),
            _groups={},
        )

    def close(self) -> None:
        """Leave in good order; all ranks call it."""
        if self.control is None:
            return
        for _, work in self.unfinished:
            work.wait()
        self.unfinished.clear()
        self.barrier()
        dist.destroy_process_group()
        self.control = None
        self._groups.clear()
        if self.watch is not None:
            self.watch.finish()


@contextmanager
def open_distributed(
    launch: Launch,
    *,
    device: torch.device,
    facts: Facts | None = None,
    secret_folder: Path | None = None,
    timeout_seconds: float = 60,
    collective_seconds: float = 600,
    stale_seconds: float = 20,
) -> Iterator[DistContext]:
    """Join the other ranks for the length of a `with` block.

    facts               what must be alike on all ranks, compared before anything else is done together
    secret_folder       one that all hosts see, for a file that is there while they meet (see paceline/distributed/comm/messages.py)
    timeout_seconds     for all ranks to arrive
    collective_seconds  for one collective, after which a rank that is alive but stuck ends the run
    stale_seconds       silence after which a rank counts as lost

    With several ranks an exception that leaves the block ends all of them: printed here (a PacelineError without traceback)
    and becomes SystemExit(3), or SystemExit(2) for a PacelineError; the other ranks end within seconds. With one rank it
    passes through unchanged.
    A RankMismatchError is raised by all ranks, which leave in good order: it passes through unchanged too.
    raise RecipeError  several ranks of an accelerator that has no way to talk to another
    raise RankError    ranks that never arrived; the address that was tried; a port that is taken
    raise RankMismatchError   `facts` that differ
    """
    set_device(device)  # before anything else creates a context on device 0
    if launch.world == 1:
        yield DistContext(0, 1, 0, 1, device, Messages(dist.HashStore(), os.urandom(32), 0))
        return
    if not BACKENDS[device.type]:
        raise RecipeError(
            f"{launch.world} ranks on {NAMES[device.type]}: torch has no communication backend for this device. Start one rank, "
            "or set --system cpu."
        )
    meeting = rendezvous(launch, timeout_seconds=timeout_seconds, secret_folder=secret_folder)
    watch = PeerWatch(
        meeting.second_connection(launch.job),
        launch,
        serves=launch.rank == 0 and not launch.agent_store,
        address=meeting.address,
        stale_seconds=stale_seconds,
    )
    watch.start()
    try:
        try:
            assert_equal_on_ranks(meeting.messages, launch.world, {"world": launch.world, **(facts or {})}, "start")
        except RankMismatchError:
            watch.finish()
            raise
        with explain_unreachable(launch):
            world = _connect_groups(launch, meeting, device, watch, collective_seconds)
        try:
            yield world
        except (SystemExit, RankMismatchError) as leaving:
            if isinstance(leaving, SystemExit) and leaving.code not in CLEAN_EXITS:
                raise
            world.close()
            raise
        else:
            world.close()
    except BaseException as error:
        if isinstance(error, RankMismatchError) or (isinstance(error, SystemExit) and error.code in CLEAN_EXITS):
            raise
        raise SystemExit(watch.report(error)) from None


def _connect_groups(
    launch: Launch, meeting: Rendezvous, device: torch.device, watch: PeerWatch, collective_seconds: float
) -> DistContext:
    """The process groups over the store that the roll call was held in."""
    choose_gloo_interface(launch)
    if launch.world > MAX_RANKS_FULLY_CONNECTED:
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    timeout = timedelta(seconds=collective_seconds)
    backend = BACKENDS[device.type]
    register_backend(backend)
    with suppress_gloo_output(backend):
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("groups", meeting.messages.store),
            rank=launch.rank,
            world_size=launch.world,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    with suppress_gloo_output("gloo"):
        control = dist.new_group(backend="gloo", timeout=timeout, group_desc="control")
    assert isinstance(control, dist.ProcessGroup)
    place = (launch.rank, launch.world, launch.local_rank, launch.local_world)
    return DistContext(*place, device, meeting.messages, control, meeting.hosts, watch, timeout=timeout)


# Small agreements between ranks, on top of the control channel.


def all_min(world: DistContext, value: int) -> int:
    """The smallest `value` of all ranks; every rank must call it."""
    if world.control is None:
        return value
    tensor = torch.tensor([value], dtype=torch.int64)
    dist.all_reduce(tensor, dist.ReduceOp.MIN, group=world.control)
    return int(tensor)


def all_min_and_gather(world: DistContext, value: int, own: Sequence[int]) -> tuple[int, list[list[int]]]:
    """The smallest `value` of all ranks, and each rank's `own` numbers, by rank, in one exchange; every rank must call it.

    own  as many on every rank, below 2^63 - 1
    """
    if world.control is None:
        return value, [list(own)]
    none = torch.iinfo(torch.int64).max
    table = torch.full((world.world, len(own)), none, dtype=torch.int64)
    table[world.rank] = torch.tensor(own, dtype=torch.int64)
    # Where all others have the largest number there is, the smallest is a rank's own.
    both = torch.cat((torch.tensor([value], dtype=torch.int64), table.flatten()))
    dist.all_reduce(both, dist.ReduceOp.MIN, group=world.control)
    return int(both[0]), both[1:].view(table.shape).tolist()


def broadcast_from_main(world: DistContext, text: str | None, key: str) -> str:
    """Rank 0's `text` on every rank, however long rank 0 takes to have it: the others wait on the store, in no collective.

    key  names this exchange; never used twice in one run
    """
    if world.world == 1:
        assert text is not None
        return text
    if world.is_main:
        assert text is not None
        world.post(key, text)
        return text
    return world.wait_for(key)
