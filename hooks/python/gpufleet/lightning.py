"""The callback for Lightning.

    from gpufleet.lightning import GpufleetCallback
    trainer = Trainer(..., callbacks=[GpufleetCallback()])

Lightning runs forward and backward inside the optimizer's step and fetches a batch before it says
that it begins, so everything is measured between what it says.
"""

import time

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package's older name
    from pytorch_lightning.callbacks import Callback

import gpufleet
from gpufleet import _fingerprint
from gpufleet._safe import FAILURES, failed
from gpufleet._torch import Watch
from gpufleet._waits import Waits


def _open(function):
    """Fail open; nothing is said of a sanity check."""

    def event(self, trainer, *given):
        try:
            if not trainer.sanity_checking:
                function(self, trainer, *given)
        except FAILURES as error:
            failed(function.__name__, error)

    event.__name__ = function.__name__
    return event


def _dtype(trainer):
    """The type of the matrix products, where the trainer's precision says it: `bf16-mixed`, `16-true`."""
    return {"bf16": "bf16", "16": "fp16"}.get(str(trainer.precision).split("-")[0])


class GpufleetCallback(Callback):
    """Records a Trainer's run; what it is given goes to `gpufleet.init`."""

    def __init__(self, **settings):
        self._settings = settings
        self._run = None
        self._phase = None
        self._step = 0

    @_open
    def on_train_start(self, trainer, module):
        planned = trainer.estimated_stepping_batches
        # Infinite where nobody said an end.
        settings = {"total_steps": int(planned) if 0 < planned < 2**62 else None, "dtype": _dtype(trainer)}
        settings.update(self._settings)
        self._run = gpufleet.init(**settings)
        self._recorder = self._run._recorder
        self._watch = Watch(self._run)
        self._watch.clock_of(module)
        self._waits = Waits(self._recorder)
        found = {
            "trainer.precision": trainer.precision,
            "trainer.strategy": type(trainer.strategy).__name__,
            "trainer.accumulate_grad_batches": trainer.accumulate_grad_batches,
        }
        self._run.fingerprint({**_fingerprint.of_model(module), **found})
        for optimizer in trainer.optimizers:
            self._run.fingerprint(_fingerprint.of_optimizer(optimizer))
        self._step = trainer.global_step
        self._run._settle()
        self._run.resume(self._step)
        self._time_checkpoints(trainer)
        self._recorder.begin()
        self._waits.begin()

    def _time_checkpoints(self, trainer):
        """Lightning says that it saves and not that it has saved."""
        save = trainer.save_checkpoint

        def timed(*arguments, **named):
            began = time.monotonic_ns()
            result = save(*arguments, **named)
            try:
                duration_ns = time.monotonic_ns() - began
                self._recorder.stood_still("checkpoint_save", duration_ns)
                self._recorder.checkpoint_saved(trainer.global_step, duration_ns)
                self._run._boundary()
                self._waits.begin()
            except FAILURES as error:
                failed("checkpoint", error)
            return result

        trainer.save_checkpoint = timed

    def _go_to(self, phase):
        """One phase ends where the next begins."""
        if self._phase is not None:
            self._watch.leave(self._phase)
        self._phase = phase
        if phase is not None:
            self._watch.enter(phase)

    @_open
    def on_train_batch_start(self, trainer, module, batch, _index):
        self._waits.end()
        named = batch if isinstance(batch, dict) else {}
        given = batch if isinstance(batch, (list, tuple)) else [batch]
        self._watch.count(module, given, named)
        self._go_to("forward")

    @_open
    def on_before_backward(self, trainer, module, _loss):
        self._go_to("backward")

    @_open
    def on_after_backward(self, trainer, module):
        self._go_to(None)

    @_open
    def on_before_optimizer_step(self, trainer, module, _optimizer):
        self._go_to("optimizer")

    @_open
    def on_train_batch_end(self, trainer, module, outputs, batch, _index):
        self._go_to(None)
        # Batches whose gradients are only added up end no step.
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._run.step(number=self._step, loss=loss)
            self._watch.drain()
        self._waits.begin()

    @_open
    def on_validation_start(self, trainer, module):
        if self._run is not None:
            self._waits.begin()
            self._recorder.now_in("evaluation")

    @_open
    def on_validation_end(self, trainer, module):
        if self._run is not None:
            self._recorder.evaluated(trainer.global_step, self._waits.end("evaluation"))
            self._run._boundary()
            self._waits.begin()

    @_open
    def on_train_end(self, trainer, module):
        self._recorder.now_in()
        # It may have stopped early: what was planned is what was made, and a run that made it does not stand still.
        if self._step > 0:
            self._run.plan(total_steps=self._step)
        self._run._readings.drain()
