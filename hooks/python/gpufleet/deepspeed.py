"""For DeepSpeed: what an engine does, without a change in the loop.

    engine, _, loader, _ = deepspeed.initialize(...)
    run = gpufleet.deepspeed.watch(engine, loader)

A step is an engine's step that reached the boundary of gradient accumulation.
"""

import functools

import gpufleet
from gpufleet import _fingerprint
from gpufleet._safe import FAILURES, failed


def watch(engine, loader=None, **settings):
    """Records the engine's steps, phases, skipped steps, gradient norm and checkpoints. What else is given
    goes to `gpufleet.init`."""
    run = gpufleet.init(**settings)
    try:
        run.watch(engine, loader=loader, steps=False)
        if run._watch is not None:
            Engine(run, engine).install()
        run.fingerprint({**_fingerprint.of_model(engine), **_of_engine(engine)})
        run._settle()
        run._identify()
    except FAILURES as error:
        failed("gpufleet.deepspeed.watch", error)
    return run


def _of_engine(engine):
    """How the engine is set up; what this version of DeepSpeed does not say is left out."""
    questions = {
        "deepspeed.zero_stage": "zero_optimization_stage",
        "deepspeed.micro_batch": "train_micro_batch_size_per_gpu",
        "deepspeed.gradient_accumulation_steps": "gradient_accumulation_steps",
        "deepspeed.bf16": "bfloat16_enabled",
        "deepspeed.fp16": "fp16_enabled",
        "deepspeed.optimizer": "optimizer_name",
        "deepspeed.offload": "zero_offload_optimizer",
        "deepspeed.gradient_clipping": "gradient_clipping",
    }
    found = {key: _asked(engine, name) for key, name in questions.items()}
    return {key: value for key, value in found.items() if value is not None}


def _asked(engine, name):
    try:
        return getattr(engine, name)()
    except Exception:  # a version without it
        return None


class Engine:
    """The methods of one engine that are timed."""

    def __init__(self, run, engine):
        self._run = run
        self._recorder = run._recorder
        self._engine = engine
        self._loss = None

    def install(self):
        """Puts itself around the engine's own methods, of this engine alone."""
        self._around("backward", self._backward)
        self._around("step", self._step)
        self._around("save_checkpoint", self._save)
        self._around("load_checkpoint", self._load)

    def _around(self, name, around):
        method = getattr(self._engine, name, None)
        if method is None:
            return

        @functools.wraps(method)
        def timed(*arguments, **named):
            return around(functools.partial(method, *arguments, **named), *arguments, **named)

        setattr(self._engine, name, timed)

    def _backward(self, call, *arguments, **named):
        # Its time is known by the hooks on the model's output.
        self._loss = arguments[0] if arguments else named.get("loss")
        return call()

    def _step(self, call, *_arguments, **_named):
        ends = self._ask("is_gradient_accumulation_boundary", True)
        self._time("enter")
        result = call()
        self._time("leave")
        try:
            if ends:
                self._ended()
        except FAILURES as error:
            failed("engine.step", error)
        return result

    def _time(self, what):
        try:
            getattr(self._run._watch, what)("optimizer")
        except FAILURES as error:
            failed("engine.step", error)

    def _ended(self):
        if self._ask("was_step_applied", True) is False:
            self._run.scaler_skipped()
        loss, self._loss = self._loss, None
        number = getattr(self._engine, "global_steps", -1)
        self._run.step(number=number, loss=None if loss is None else loss.detach())
        self._run.log(gradient_norm=self._ask("get_global_grad_norm", None))

    def _ask(self, name, otherwise):
        found = _asked(self._engine, name)
        return otherwise if found is None else found

    def _save(self, call, *_arguments, **_named):
        with self._run.checkpoint(step=getattr(self._engine, "global_steps", None)):
            return call()

    def _load(self, call, *_arguments, **_named):
        with self._run.restoring() as restored:
            result = call()
            # Nothing was loaded where there is no path.
            if isinstance(result, tuple) and result[0] is not None:
                restored.step = getattr(self._engine, "global_steps", None)
        return result
