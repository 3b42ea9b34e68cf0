"""A run: what a training script says while it trains."""

import datetime
import os
import sys
import time

from gpufleet import _fingerprint, _flops, _gpu, _identity, _mesh, _profile, _whole
from gpufleet._ending import Ending
from gpufleet._readings import Readings
from gpufleet._safe import FAILURES, Nothing, debug, fail_open, failed, why_off

#: Seconds between looks at settings that may change while a run goes on.
_LOOK_EVERY = 60

#: Phases that a script may name itself; any other name counts as `other`.
PHASES = (
    "data_wait", "forward", "backward", "optimizer", "communication", "checkpoint_save", "checkpoint_restore",
    "evaluation", "other",
)  # fmt: skip

#: What is known of a rank together.
_OF_RANK = ("rank", "world", "local_rank", "local_world", "launcher")

_READINGS = ("loss", "gradient_norm", "learning_rate", "evaluation_loss")


class Run:
    """What `gpufleet.init` returns. Every method does nothing where it cannot do what it says."""

    def __init__(self, socket=None):
        recorder = Nothing()
        why = why_off()
        if why:
            debug(f"off: {why}")
        else:
            from gpufleet import _native

            recorder = _native.Recorder(socket, _identity.process_age_ns())
        self._set_up(recorder)

    def _set_up(self, recorder):
        self._recorder = recorder
        self._readings = Readings(recorder)
        self._pid = os.getpid()
        self._identity = {}
        self._given = {}
        self._given_mesh = None
        self._model = None
        self._plan = {}
        self._pairs = {}
        self._tags = {}
        self._looked_at = 0.0
        self._is_settled = False
        self._has_stepped = False
        self._ending = None
        self._memory_limit = None
        self._watch = None
        self._flight = None
        self._probe = None
        self._profiler = None
        # Of the running step: tokens, samples and FLOPs by what the watched models were given.
        self._inferred = [0, 0, 0.0]
        self._says_flops = False

    @classmethod
    def of_nothing(cls):
        """A run that does nothing."""
        run = cls.__new__(cls)
        run._set_up(Nothing())
        return run

    def __deepcopy__(self, _memo):
        # Whatever is copied with it belongs to the same run.
        return self

    def __reduce__(self):
        # In another process, or later, it is no run.
        return Run.of_nothing, ()

    # What is said at every step.

    def step(self, tokens=None, samples=None, *, number=-1, flops=0.0, **readings):
        """A step ended: to be called after `optimizer.step()`.

        tokens, samples: of this rank, in this step. number: where the script counts itself; else the
        one after the last. loss, gradient_norm, learning_rate: numbers or tensors; one on the GPU is
        read a few steps later, without waiting for it.
        """
        try:
            if self._watch is not None and self._watch.is_step_said(self):
                self.add(tokens or 0, samples or 0)
                self.log(**readings)
                return
            self._end_step(tokens, samples, number, flops)
            if readings:
                self.log(**readings)
        except FAILURES as error:
            failed("Run.step", error)

    def _end_step(self, tokens=None, samples=None, number=-1, flops=0.0):
        inferred, self._inferred = self._inferred, [0, 0, 0.0]
        if type(tokens) is not int:
            tokens = inferred[0] if tokens is None else self._count("tokens", tokens)
        if type(samples) is not int:
            samples = inferred[1] if samples is None else self._count("samples", samples)
        due = self._recorder.step(number, tokens, samples, flops or inferred[2])
        if due:
            self._do(due)
        elif not self._has_stepped:
            # Whatever tells ranks apart is there by now, and the GPU.
            self._has_stepped = self._is_settled = True
            self._identify()
            if "rank" not in self._identity:
                debug("which of several processes this is is not known: gpufleet.init(rank=…, world=…) says it")
        if self._probe is not None:
            self._probe.stepped()

    def add(self, tokens=0, samples=0, flops=0.0):
        """More tokens and samples of the running step: one micro-batch of several."""
        try:
            if flops:
                self._says_its_flops()
            self._recorder.add(self._count("tokens", tokens), self._count("samples", samples), flops)
        except FAILURES as error:
            failed("Run.add", error)

    def _count(self, name, value):
        """A count; one that is on the GPU is added when it has arrived."""
        if getattr(value, "is_cuda", False):
            self._readings.take(name, value, 0)
            return 0
        return int(value)

    def log(self, **readings):
        """loss, gradient_norm, learning_rate or evaluation_loss of the last step."""
        try:
            step = self._recorder.last_step()
            for name, value in readings.items():
                if value is None:
                    continue
                if name not in _READINGS:
                    debug(f"there is no value {name}: {', '.join(_READINGS)} are kept")
                    continue
                self._readings.take(name, value, step)
        except FAILURES as error:
            failed("Run.log", error)

    def scaler_skipped(self, steps=1):
        """The gradient scaler skipped this step because a gradient was not finite."""
        try:
            self._recorder.scaler_skipped(steps)
        except FAILURES as error:
            failed("Run.scaler_skipped", error)

    # Where the time goes.

    def data(self, loader, tokens=None):
        """The loader, with the wait for each batch measured: `for batch in run.data(loader)`.

        tokens: a function of a batch, where counting is easier here than at the step.
        """
        try:
            return Data(self, loader, tokens)
        except FAILURES as error:
            failed("Run.data", error)
            return loader

    def phase(self, name):
        """`with run.phase("other"):`, one of gpufleet.PHASES."""
        try:
            return self._recorder.span(name if name in PHASES else "other")
        except FAILURES as error:
            failed("Run.phase", error)
            return Nothing()

    def checkpoint(self, step=None):
        """`with run.checkpoint():` around the part of saving in which training stands still."""
        return _Occasion(self, "checkpoint_save", step)

    def restoring(self):
        """`with run.restoring() as restored:`; set `restored.step` to the step that was gone back to."""
        return _Occasion(self, "checkpoint_restore", None)

    def evaluation(self):
        """`with run.evaluation() as evaluation:`; set `evaluation.loss` where there is one."""
        return _Occasion(self, "evaluation", None)

    @fail_open
    def checkpoint_saved(self, step=None, seconds=0.0):
        """A checkpoint was saved while training went on (an asynchronous one)."""
        step = self._recorder.last_step() if step is None else step
        self._recorder.checkpoint_saved(step, int(seconds * 1e9))
        self._boundary()

    @fail_open
    def resume(self, step):
        """The run goes on after this step."""
        self._recorder.go_on_after(step)

    # What the run is and intends.

    @fail_open
    def plan(self, *, deadline=None, **said):
        """total_steps, total_tokens (of the whole job), deadline (a datetime, ISO text or Unix
        seconds), parameters, dtype (`bf16`: the type of the matrix products)."""
        if deadline is not None:
            said["deadline_at"] = _unix_ns(deadline)
        self._plan.update({key: value for key, value in said.items() if value is not None})
        self._recorder.plan(**self._plan)

    @fail_open
    def flops(self, per_step=None, per_token=None, *, hardware_per_step=None, source="explicit"):
        """Model FLOPs of a step or a token of this rank. hardware_per_step: recomputation included. What is not given
        stays what it was."""
        if per_step or per_token:
            self._recorder.flops(per_step or 0.0, per_token or 0.0)
            self._says_its_flops()
            # One of the two is enough, and the other may be of before.
            self._plan.pop("flops_per_step", None)
            self._plan.pop("flops_per_token", None)
        elif "flops_source" in self._plan:
            source = None
        self.plan(
            flops_per_step=per_step,
            flops_per_token=per_token,
            hardware_flops_per_step=hardware_per_step,
            flops_source=source,
        )

    def _says_its_flops(self):
        """The script says its FLOPs, which goes before what is inferred."""
        self._says_flops = True
        self._inferred[2] = 0.0

    @fail_open
    def flops_of_shape(self, model, sequence_length, config=None):
        """FLOPs by the model's shape, see docs/hooks.md. Where they cannot be known the run says why."""
        try:
            place = _mesh.find(self._given_mesh, model)
            per_token, parameters = _flops.of_shape(model, sequence_length, config, place)
        except _whole.Unknown as why:
            self.fingerprint(flops_refused=why)
            raise
        self.flops(per_token=per_token, source="model_shape")
        self.plan(parameters=parameters)

    @fail_open
    def _infer_flops(self, model, sequence_length, config):
        """The shape of a watched model, by which FLOPs follow from what it is given; None where that is not known."""
        try:
            shape = _flops.shape_of(model, config, _mesh.find(self._given_mesh, model))
        except _whole.Unknown as why:
            # What is there is of a model that was trained before.
            if self._plan.pop("flops_per_token", None) is not None:
                self.plan()
            self.fingerprint(flops_refused=why)
            raise
        self.plan(
            flops_per_token=shape.per_token(sequence_length), flops_source="model_shape", parameters=shape.parameters
        )
        return shape

    def measure_flops(self):
        """`with run.measure_flops():` around one warm-up step: counted once, kept for the rest."""

        def done(total):
            recomputes = self._pairs.get("gradient_checkpointing") == "True"
            model_flops = None if recomputes else total
            self.flops(per_step=model_flops, hardware_per_step=total, source="measured")

        return _flops.Counted(done)

    @fail_open
    def tags(self, **tags):
        """What people call this run: `run.tags(experiment="rope-2", stage="after")`."""
        self._tags.update({key: str(value) for key, value in tags.items()})
        self._recorder.tags(self._tags)

    @fail_open
    def fingerprint(self, pairs=None, **more):
        """More of what the run is made of. Written when something changed."""
        pairs = {**(pairs or {}), **more}
        new = {key: str(value) for key, value in pairs.items()}
        if any(self._pairs.get(key) != value for key, value in new.items()):
            self._pairs.update(new)
            self._recorder.fingerprint(self._pairs)

    @fail_open
    def identify(self, *, mesh=None, **given):
        """Who this rank is, where the launcher does not say: rank, world, local_rank, local_world,
        job_name, job_namespace, job_uid, attempt, cluster; mesh: a DeviceMesh or
        `{"dp": (coordinate, size)}`. What is given here goes before what is found."""
        given = {key: value for key, value in given.items() if value is not None}
        if "rank" in given:
            given.setdefault("launcher", "given")
        self._given.update(given)
        self._given_mesh = mesh if mesh is not None else self._given_mesh
        self._identify()

    def watch(self, model=None, optimizer=None, loader=None, **settings):
        """See gpufleet.watch."""
        try:
            from gpufleet._torch import Watch

            if not isinstance(self._recorder, Nothing):
                self._watch = self._watch or Watch(self)
                self._watch.add(model, optimizer, loader, **settings)
                self._model = model if model is not None else self._model
        except FAILURES as error:
            failed("Run.watch", error)
        return self

    def probe(self, every=None, **settings):
        """See gpufleet.probe. A second call says other times."""
        from gpufleet import _probe

        try:
            if self._probe is None:
                self._probe = _probe.Probe(self, every, **settings)
            else:
                self._probe.every(every, settings.get("least_seconds"))
            return self._probe
        except FAILURES as error:
            failed("Run.probe", error)
            return _probe.of_nothing(f"{type(error).__name__}: {error}")

    def _boundary(self):
        """A checkpoint or an evaluation is over: the GPU has a moment."""
        if self._probe is not None:
            self._probe.boundary()

    @fail_open
    def finish(self):
        """The run did what it was to do. Said by itself when the script ends."""
        self._readings.drain()
        if self._ending is not None:
            self._ending.say("finished", 0)

    @property
    def state(self):
        """Whether an agent reads this: away, connected, refused or off."""
        return self._recorder.state()

    def snapshot(self):
        """What an agent would read now, as a dict; empty where there is nothing to read."""
        try:
            return self._recorder.snapshot()
        except FAILURES as error:
            failed("Run.snapshot", error)
            return {}

    # What is done now and then.

    @fail_open
    def _begin(self):
        self._ending = Ending(self._recorder, lambda: self._identity.get("rank", -1), self._settle_at_end)
        if not isinstance(self._recorder, Nothing):
            # Before the ending's own: what is registered first is called last.
            self._send()
            self._ending.install()
            if not _profile.is_switched_off():
                self._recorder.takes_profile()
            self.fingerprint({**_fingerprint.of_process(), **_fingerprint.of_torch()})

    @fail_open
    def _send(self):
        if os.environ.get("GPUFLEET_OTLP_ENDPOINT"):
            from gpufleet import _otlp

            _otlp.Sender(self._recorder, **_otlp.settings()).start()

    @fail_open
    def _settle(self):
        """Training begins: torch.distributed is there by now. Who has no rank then is alone, unless something says that
        there are others, or JAX may still find some."""
        if not self._is_settled and not _identity.may_learn_more():
            self._is_settled = True
            self._identify()

    @fail_open
    def _settle_at_end(self):
        """A process that ends before it trained is alone, where nobody started it beside others: nothing more is learnt."""
        if "rank" not in self._identity and not _identity.is_child():
            self._is_settled = True
            self._identify()

    @fail_open
    def _identify(self):
        found = {
            **_identity.from_environment(),
            **_identity.from_frameworks(self._model),
            **self._given,
            **_mesh.find(self._given_mesh, self._model),
        }
        if "rank" not in found and "rank" in self._identity:
            # Of a process group that is no more: it was this rank, and still is.
            found.update({key: self._identity[key] for key in _OF_RANK if key in self._identity})
        elif self._is_settled and "rank" not in found and not _identity.is_one_of_several():
            found.update(rank=0, world=1, local_rank=0, local_world=1, launcher="single")
        if found != self._identity:
            self._identity = found
            self._recorder.identity(**found)

    @fail_open
    def _do(self, due):
        """What the end of a step is the time for: see `Recorder.step`."""
        if due & 1:
            self._now_and_then()
        if due & 2:
            if self._profiler is None:
                self._profiler = _profile.Profiler(self)
            self._profiler.stepped()

    @fail_open
    def _now_and_then(self):
        """About once a second, at the end of a step."""
        if _gpu.is_captured():
            return
        self._readings.drain()
        if self._watch is not None:
            self._watch.drain()
        if self._probe is not None:
            self._probe.drain()
        self._read_memory()
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY:
            self._looked_at = now
            self._identify()
            self._follow_flight()
            self.fingerprint(_fingerprint.of_torch(trains=True))

    @fail_open
    def _follow_flight(self):
        """Once torch.distributed is there. Our plugin knows better where NCCL has loaded it."""
        from gpufleet import _flight

        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        if not _flight.is_wanted():
            return
        if self._flight is None:
            self._flight = _flight.Flight(self._recorder, distributed.get_rank())
            self._flight.start()
        self._flight.meet_device()

    @fail_open
    def _read_memory(self):
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        device = _gpu.index(torch, self._model)
        if self._memory_limit is None:
            self._memory_limit = torch.cuda.get_device_properties(device).total_memory
        counts = torch.cuda.memory_stats_as_nested_dict(device)
        allocated, reserved = counts["allocated_bytes"]["all"], counts["reserved_bytes"]["all"]
        self._recorder.memory(
            allocated_bytes=allocated["current"],
            reserved_bytes=reserved["current"],
            peak_allocated_bytes=allocated["peak"],
            peak_reserved_bytes=reserved["peak"],
            limit_bytes=self._memory_limit,
            retries=counts["num_alloc_retries"],
            out_of_memory=counts["num_ooms"],
        )


class Data:
    """A loader whose batches are waited for in measured time; everything else is the loader's."""

    def __init__(self, run, loader, tokens=None):
        self._gpufleet = (run, loader, tokens)
        run.fingerprint(_fingerprint.of_loader(loader))

    def __iter__(self):
        run, loader, tokens = self._gpufleet
        run._settle()
        on_batch = None if tokens is None else lambda batch: run.add(tokens=tokens(batch))
        return run._recorder.batches(iter(loader), on_batch)

    def __len__(self):
        return len(self._gpufleet[1])

    def __getattr__(self, name):
        if name == "_gpufleet":
            raise AttributeError(name)
        return getattr(self._gpufleet[1], name)


class _Occasion:
    """A checkpoint, a way back to one, or an evaluation."""

    def __init__(self, run, kind, step):
        self._run = run
        self._kind = kind
        self._span = Nothing()
        self.step = step
        self.loss = None

    def __enter__(self):
        try:
            self._span = self._run._recorder.span(self._kind)
            self._span.__enter__()
        except FAILURES as error:
            failed(self._kind, error)
        return self

    def __exit__(self, kind, _error, _traceback):
        try:
            duration_ns = self._span.end()
            self._ended(kind is not None, duration_ns)
        except FAILURES as error:
            failed(self._kind, error)
        return False

    def _ended(self, is_failed, duration_ns):
        recorder = self._run._recorder
        step = recorder.last_step() if self.step is None else self.step
        if self._kind == "checkpoint_save":
            if is_failed:
                recorder.checkpoint_failed()
            else:
                recorder.checkpoint_saved(step, duration_ns)
            self._run._boundary()
        elif is_failed:
            return
        elif self._kind == "checkpoint_restore":
            if self.step is not None:
                recorder.go_on_after(self.step)
            recorder.checkpoint_restored(step, duration_ns)
        else:
            recorder.evaluated(step, duration_ns)
            self._run.log(evaluation_loss=self.loss)
            self._run._boundary()


def _unix_ns(moment):
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment.replace("Z", "+00:00"))
    if isinstance(moment, datetime.datetime):
        return int(moment.timestamp() * 1e9)
    return int(float(moment) * 1e9)
