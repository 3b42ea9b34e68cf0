"""What torch's flight recorder says once training stands still: the collective that each group waits in.

The recorder is on by default and costs nothing until it is asked. It is asked only when no step has ended
for a minute, from a thread that sleeps otherwise. What it says goes into the memory that the agent reads,
which tells of a collective that is stuck, with the ranks that are in it and those that are not.

torch answers with the interpreter's lock in hand and asks the device whether it is past its collectives. On a
device that hangs that may take for ever, and then nothing of Python would run in this process any more. So the
device is asked the same thing first, by a thread that holds nothing; where that does not come back torch is
not asked. And it is asked as seldom as it helps: never before the first step has ended (until then programs
are compiled), and then with pauses that double. CUDA graphs that other threads capture are left alone.
GPUFLEET_FLIGHT=0 leaves all of it alone.
"""

import hashlib
import json
import os
import sys
import threading

from gpufleet._safe import FAILURES, _native, debug, failed

#: Seconds between looks at whether steps still end.
_LOOK_EVERY = 15.0

#: Seconds without a step after which the recorder is asked: a collective is stuck after as many.
_STANDS_AFTER = 60.0

#: Longest pause between two questions while no step ends, seconds; the first is as long as it was waited.
_LONGEST_PAUSE = 480.0

#: Seconds in which a device that is well says whether it is past an event: it does in microseconds.
_ANSWERS_WITHIN = 10.0

#: Most bytes of a dump: the active entries of some groups are a few kilobytes.
_MOST_BYTES = 1 << 20

#: torch's names of what NCCL and gloo do, and ours.
_FUNCTIONS = {
    "all_reduce": "AllReduce", "allreduce": "AllReduce", "all_reduce_coalesced": "AllReduce",
    "all_gather": "AllGather", "_all_gather_base": "AllGather", "allgather": "AllGather",
    "all_gather_into_tensor_coalesced": "AllGather", "reduce_scatter": "ReduceScatter",
    "_reduce_scatter_base": "ReduceScatter", "reduce_scatter_tensor_coalesced": "ReduceScatter",
    "broadcast": "Broadcast", "_broadcast_oop": "Broadcast", "reduce": "Reduce", "_reduce_oop": "Reduce",
    "all_to_all": "AlltoAll", "alltoall": "AlltoAll", "alltoall_base": "AlltoAll",
    "send": "SendRecv", "recv": "SendRecv",
}  # fmt: skip


def is_wanted(environ=None):
    """Whether GPUFLEET_FLIGHT lets it be asked, and our plugin for NCCL does not know better."""
    environ = os.environ if environ is None else environ
    return environ.get("GPUFLEET_FLIGHT", "") != "0" and "gpufleet" not in environ.get("NCCL_PROFILER_PLUGIN", "")


def _uses_cuda():
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def dump():
    """The recorder's word on process groups and active collectives; None where this torch has none."""
    torch = sys.modules.get("torch")
    native = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    # The first knows of NCCL's groups, the second of all others.
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        function = getattr(native, name, None)
        if function is None:
            continue
        text = function(True, True)
        if len(text) > _MOST_BYTES:
            debug(f"torch's flight recorder is not read: {len(text)} bytes")
            continue
        found = json.loads(text)
        if found.get("pg_config"):
            return found
    return None


def groups_of(dumped, rank):
    """The process groups that a global rank is in, as Recorder.in_flight takes them."""
    waits, names = {}, set()
    for entry in dumped.get("entries", ()):
        name = (entry.get("process_group") or [""])[0]
        names.add(name)
        # What is retired has ended, whatever its state says: gloo's stays `scheduled`.
        if entry.get("state") == "completed" or entry.get("retired") or entry.get("is_p2p"):
            continue
        before = waits.get(name)
        if before is None or entry["collective_seq_id"] < before["collective_seq_id"]:
            waits[name] = entry
    groups = []
    for config in dumped["pg_config"].values():
        name, description = config.get("name", ""), config.get("desc", "")
        if not name and len(names) == 1:
            # gloo's have no name here; where there is one only, it is that of the entries.
            (name,) = names
        ranks = _ranks(config.get("ranks", ""))
        if rank not in ranks:
            continue
        # Equal on all ranks of the group, and on no other group of the job.
        digest = hashlib.blake2b(f"{name} {description} {ranks}".encode(), digest_size=8)
        groups.append({
            "hash": int.from_bytes(digest.digest(), "big") or 1,
            "name": description or name,
            "ranks": len(ranks),
            "rank": ranks.index(rank),
            "collective": _collective(waits.get(name)),
        })  # fmt: skip
    return groups


def _collective(entry):
    if entry is None:
        return None
    function = entry.get("profiling_name", "").split(":")[-1].split(" ")[0]
    return _FUNCTIONS.get(function, "Other"), int(entry["collective_seq_id"]), int(entry["time_created_ns"])


def _ranks(text):
    """`"[0, 1]"`, or a list."""
    return json.loads(text) if isinstance(text, str) and text else list(text)


class Flight:
    """Looks whether steps still end, and asks the recorder where they do not."""

    def __init__(self, recorder, rank, stands_after=_STANDS_AFTER, look_every=_LOOK_EVERY):
        self._recorder = recorder
        self._rank = rank
        self._stands_after = stands_after
        self._look_every = look_every
        self._last = None
        self._device = None
        self._rest()

    def _rest(self):
        """A step has ended: nothing stands."""
        self._stood, self._asks_at = 0.0, self._stands_after
        self._is_told = False

    def meet_device(self):
        """By a thread that trains: the device of its collectives, once CUDA is in use."""
        if self._device is None and _uses_cuda():
            self._device = _native.Device()

    def _may_ask(self):
        """Whether torch may be asked: by the thread that will."""
        if not _uses_cuda():
            return True
        if self._device is None or not self._device.answers(_ANSWERS_WITHIN):
            debug("torch's flight recorder is not asked: the device does not answer")
            return False
        self._device.leave_captures_alone()
        return True

    def start(self):
        """Begins, for as long as the process lives."""
        threading.Thread(target=self._run, name="gpufleet-flight", daemon=True).start()

    def _run(self):
        pause = threading.Event()
        while not pause.wait(self._look_every):
            self.look(self._look_every)

    def look(self, since):
        """`since`: seconds since the last look."""
        try:
            last = self._recorder.last_step()
            if last != self._last:
                was_told, self._last = self._is_told, last
                self._rest()
                if was_told:
                    self._recorder.in_flight([])
                return
            self._stood += since
            if not last or self._stood < self._asks_at:
                return
            self._asks_at = self._stood + min(max(self._asks_at, since), _LONGEST_PAUSE)
            dumped = dump() if self._may_ask() else None
            if dumped is not None:
                self._is_told = True
                self._recorder.in_flight(groups_of(dumped, self._rank))
        except FAILURES as error:
            failed("flight recorder", error)
