"""A profile of the next steps, when the agent asks for one: torch's profiler begins and stops at ends of steps, and its
trace goes into a folder of bounded size. What became of it, and of a GPU why it stood still, stands in the region, where
the agent reads it."""

import atexit
import os
import re
import sys
import threading
import time

from gpufleet import _gaps, _gpu
from gpufleet._safe import FAILURES, failed

#: Longest that steps are recorded, seconds: after it what there is is written.
_LONGEST_SECONDS = 300.0

#: Largest file, and most bytes of all files that are kept.
_MOST_BYTES = 200_000_000

#: Most files that are kept.
_MOST_FILES = 10

#: Largest trace before it is packed, to a twentieth of that about.
_MOST_RAW_BYTES = 2_000_000_000

#: Bytes that must be free where it is to lie: the largest trace before it is packed, and some for others. torch writes
#: without a bound, and checkpoints may go to the same disk.
_LEAST_FREE_BYTES = _MOST_RAW_BYTES + 1_000_000_000

#: Bytes packed at once.
_CHUNK_BYTES = 1 << 20

#: Longest path, bytes: what the region has room for.
_LONGEST_PATH = 512

#: Longest that the end of a script waits for a file that is being packed, seconds.
_FINISH_SECONDS = 10.0

#: Largest trace that is packed at the end of a script, which waits for it: some ten seconds.
_MOST_AT_END_BYTES = 400_000_000

#: A temporary folder of ours that nothing was written to for so long belongs to nobody any more, seconds.
_LEFT_BEHIND_SECONDS = 3600.0

_TEMPORARY = ".gpufleet-profile-"

#: The files that are ours: no other is ever removed.
_OURS = re.compile(r"gpufleet-profile-rank\d+-step\d+-\d{8}T\d{6}Z-[0-9a-f]{14}\.json\.gz")


class CannotBe(Exception):
    """Why there is no profile, in words."""


def is_switched_off():
    """Whether GPUFLEET_PROFILE says that there are to be none."""
    return os.environ.get("GPUFLEET_PROFILE", "").lower() in ("0", "off", "false", "no")


def folder():
    """Where files go: GPUFLEET_PROFILE_DIR, or `gpufleet-profiles` in the working folder."""
    return os.path.abspath(os.environ.get("GPUFLEET_PROFILE_DIR") or "gpufleet-profiles")


class Profiler:
    """Takes the profiles of a run, one at a time. Called at the ends of steps, while one is asked for or begun."""

    def __init__(self, run):
        self._run = run
        self._recorder = run._recorder
        self._recording = None
        self._thread = None
        atexit.register(self._finish)

    def stepped(self):
        """A step ended."""
        # In a forked child there is nobody to ask, and nothing of ours.
        if os.getpid() != self._run._pid or _gpu.is_captured():
            return
        recording = self._recording
        if recording is None:
            self._begin()
        elif recording.thread == threading.get_ident() and recording.stepped(self._recorder.last_step()):
            self._stop()

    def _begin(self):
        asked = self._recorder.profile_begin()
        if asked is None:
            # One is being written, or it was withdrawn.
            return
        recording = _Recording(self._recorder, *asked)
        recording.says("running")
        try:
            recording.path = _place(recording, self._run._identity.get("rank", 0))
            recording.start(self._interrupted, self._run._model)
            self._recording = recording
        except FAILURES as error:
            recording.gives_up(error)

    def _interrupted(self):
        """The script begins a profiler of its own: there can be one only, and it is the script's."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.gives_up(CannotBe("the script began a profiler of its own"))

    def _stop(self, is_ending=False):
        """Enough is recorded. The trace is written here, because torch holds the interpreter meanwhile; it is packed
        beside training, but at the script's end, when Python starts no thread any more."""
        recording, self._recording = self._recording, None
        try:
            trace = recording.write()
        except FAILURES as error:
            recording.fails(error)
            return
        if is_ending:
            recording.pack(trace, _MOST_AT_END_BYTES)
            return
        self._thread = threading.Thread(target=recording.pack, args=(trace,), name="gpufleet-profile", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # The limit of processes is reached; what was recorded is not lost for it.
            self._thread = None
            recording.pack(trace, _MOST_AT_END_BYTES)

    def _finish(self):
        """The script ends."""
        try:
            if os.getpid() != self._run._pid:
                return
            if self._recording is not None and self._recording.steps:
                self._stop(is_ending=True)
            elif self._recording is not None:
                recording, self._recording = self._recording, None
                recording.gives_up(CannotBe("the script ended before a step did"))
            if self._thread is not None:
                self._thread.join(_FINISH_SECONDS)
        except FAILURES as error:
            failed("profile", error)


class _Recording:
    """One profile: from its beginning to its file. One step is recorded before those that are asked for: the profiler
    makes the first one slow, and what it gave the GPU tells when the GPU begins the next."""

    def __init__(self, recorder, number, wanted):
        self._recorder = recorder
        self._number = number
        self._wanted = wanted
        self._first = recorder.last_step() + 1
        self._until = time.monotonic() + _LONGEST_SECONDS
        self._profile = None
        self._guard = None
        self._marker = None
        self._device = None
        self._is_warm = False
        self._gaps, self._untold = None, None
        self.thread = threading.get_ident()
        self.steps = 0
        self.path = ""

    @property
    def name(self):
        return f"step{self._first}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{self._number:014x}.json.gz"

    def says(self, state, text="", size=0):
        text = text.encode("utf-8", "replace").decode()
        self._recorder.profile_is(self._number, state, text, (self._first, self.steps, size), self._gaps, self._untold)

    def fails(self, error):
        """There will be no file."""
        why = str(error) if isinstance(error, CannotBe) else f"{type(error).__name__}: {error}"
        try:
            self.says("failed", why.splitlines()[0])
        finally:
            self._recorder.profile_end()

    def gives_up(self, error):
        """Records no more, and fails."""
        try:
            if self._profile is not None:
                self.stop()
        except FAILURES as another:
            failed("profile", another)
        self.fails(error)

    def start(self, interrupted, model=None):
        torch = sys.modules.get("torch")
        if torch is None:
            raise CannotBe("PyTorch is not loaded in this process")
        if torch.autograd._profiler_enabled():
            raise CannotBe("another profiler records this thread")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._device = _gpu.index(torch, model)
        profile = torch.profiler.profile(activities=activities)
        profile.start()
        self._profile = profile
        self._guard = _Guard(torch.autograd.profiler.profile, self.thread, interrupted)

    def _mark(self, step):
        """The marks that viewers of traces know as steps."""
        self._unmark()
        marker = sys.modules["torch"].profiler.record_function(f"ProfilerStep#{step}")
        marker.__enter__()
        self._marker = marker

    def _unmark(self):
        marker, self._marker = self._marker, None
        if marker is not None:
            marker.__exit__(None, None, None)

    def stepped(self, last_step):
        """A step ended; whether it was the last one."""
        if not self._is_warm:
            self._is_warm, self._first = True, last_step
            self._mark(last_step + 1)
            return False
        self.steps += 1
        if self.steps >= self._wanted or time.monotonic() >= self._until:
            return True
        self._mark(last_step + 1)
        return False

    def stop(self):
        """Records no more. With CUDA torch waits for the GPU here."""
        if self._guard is not None:
            self._guard.remove()
        try:
            self._unmark()
        finally:
            self._profile.stop()

    def write(self):
        """Stops, and writes the trace into a folder of its own beside the file that is to be. Its path."""
        import shutil
        import tempfile

        self.stop()
        profile, self._profile = self._profile, None
        temporary = tempfile.mkdtemp(prefix=_TEMPORARY, dir=os.path.dirname(self.path))
        try:
            trace = os.path.join(temporary, "trace.json")
            profile.export_chrome_trace(trace)
            size = os.path.getsize(trace)
            if size > _MOST_RAW_BYTES:
                raise CannotBe(f"the trace has {size >> 20} MiB: ask for fewer steps")
            if not _is_whole(trace, size):
                raise CannotBe("torch did not write the whole trace: is the disk full?")
            self._gaps, self._untold = _gaps.read(profile, self._device, self.steps, size)
            return trace
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def pack(self, trace, most_bytes=_MOST_RAW_BYTES):
        """Makes the file of the trace, and room for it. In a thread of its own, or while the script waits."""
        import shutil

        try:
            size = os.path.getsize(trace)
            if size > most_bytes:
                raise CannotBe(f"the trace has {size >> 20} MiB, too many to pack while the script waits")
            packed = trace + ".gz"
            _pack(trace, packed)
            os.unlink(trace)
            size = os.path.getsize(packed)
            make_room(os.path.dirname(self.path), size)
            os.replace(packed, self.path)
            self.says("done", self.path, size)
            self._recorder.profile_end()
        except FAILURES as error:
            try:
                self.fails(error)
            except FAILURES as another:
                failed("profile", another)
        finally:
            shutil.rmtree(os.path.dirname(trace), ignore_errors=True)


class _Guard:
    """While it is there, a profiler that the script begins in this thread ends ours first: torch would raise."""

    def __init__(self, kind, thread, interrupted):
        self._kind = kind
        self._replaced = {}
        for name in ("_prepare_trace", "_start_trace"):
            original = kind.__dict__.get(name)
            if original is not None:
                self._replaced[name] = (original, self._instead(original, thread, interrupted))
        for name, (_original, ours) in self._replaced.items():
            setattr(kind, name, ours)

    @staticmethod
    def _instead(original, thread, interrupted):
        def first_ours(*args, **named):
            if threading.get_ident() == thread:
                interrupted()
            return original(*args, **named)

        return first_ours

    def remove(self):
        for name, (original, ours) in self._replaced.items():
            if self._kind.__dict__.get(name) is ours:
                setattr(self._kind, name, original)
        self._replaced = {}


def _place(recording, rank):
    """The path of the file that is to be."""
    import shutil

    where = folder()
    path = os.path.join(where, f"gpufleet-profile-rank{max(rank, 0)}-{recording.name}")
    if len(path.encode()) > _LONGEST_PATH:
        raise CannotBe(f"the path of the folder is too long, set GPUFLEET_PROFILE_DIR: {where[:200]}")
    os.makedirs(where, exist_ok=True)
    _remove_left_behind(where)
    free = shutil.disk_usage(where).free
    if free < _LEAST_FREE_BYTES:
        raise CannotBe(f"{free >> 20} MiB are free in {where}: {_LEAST_FREE_BYTES >> 20} are wanted")
    return path


def _is_whole(trace, size):
    """Whether the JSON has its end: torch does not say when the disk is full."""
    with open(trace, "rb") as file:
        file.seek(max(size - 64, 0))
        return file.read().rstrip().endswith((b"}", b"]"))


def _pack(trace, packed):
    import gzip

    with open(trace, "rb") as whole, open(packed, "xb") as file, gzip.GzipFile("", "wb", 4, file) as small:
        while chunk := whole.read(_CHUNK_BYTES):
            small.write(chunk)
            if file.tell() > _MOST_BYTES:
                raise CannotBe(f"the file has more than {_MOST_BYTES // 1_000_000} MB: ask for fewer steps")


def _own(folder_path, is_ours):
    """What of a folder is this user's and named as ours: (time, size, entry)."""
    with os.scandir(folder_path) as entries:
        for entry in entries:
            if is_ours(entry.name):
                try:
                    known = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Another rank removed it meanwhile.
                    continue
                if known.st_uid == os.geteuid():
                    yield known.st_mtime, known.st_size, entry


def make_room(folder_path, size):
    """Removes the oldest files of ours, so that one more of `size` bytes is within the bounds."""
    files = [it for it in _own(folder_path, _OURS.fullmatch) if it[2].is_file(follow_symlinks=False)]
    files.sort(key=lambda it: it[0])
    in_all = size + sum(it[1] for it in files)
    while files and (len(files) >= _MOST_FILES or in_all > _MOST_BYTES):
        _time, bytes_of_it, oldest = files.pop(0)
        in_all -= bytes_of_it
        try:
            os.unlink(oldest.path)
        except FileNotFoundError:
            # Another rank made room, too.
            pass


def _remove_left_behind(folder_path):
    """Removes what processes that were killed while they wrote left there."""
    import shutil

    for modified, _size, entry in list(_own(folder_path, lambda name: name.startswith(_TEMPORARY))):
        if entry.is_dir(follow_symlinks=False) and time.time() - modified > _LEFT_BEHIND_SECONDS:
            shutil.rmtree(entry.path, ignore_errors=True)
