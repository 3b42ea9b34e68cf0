"""The callback for the Hugging Face Trainer.

    from gpufleet.huggingface import GpufleetCallback
    trainer = Trainer(..., callbacks=[GpufleetCallback()])

The Trainer fetches its batches before it says that a step begins, so the wait for data is the time
from the end of a step (or of the logging, evaluation, saving after it) to the beginning of the next.
"""

from transformers import TrainerCallback

import gpufleet
from gpufleet import _fingerprint
from gpufleet._safe import FAILURES, failed
from gpufleet._waits import Waits

#: Names in the Trainer's log and what they are here.
_READINGS = {"loss": "loss", "grad_norm": "gradient_norm", "learning_rate": "learning_rate"}


def _open(function):
    """Fail open, with what every event has: arguments, state, control."""

    def event(self, args, state, control, **given):
        try:
            function(self, args, state, given)
        except FAILURES as error:
            failed(function.__name__, error)

    event.__name__ = function.__name__
    return event


class GpufleetCallback(TrainerCallback):
    """Records a Trainer's run; what it is given goes to `gpufleet.init`."""

    def __init__(self, **settings):
        self._settings = settings
        self._run = None
        self._waits = None
        self._is_training = False

    @_open
    def on_train_begin(self, args, state, given):
        settings = {"total_steps": state.max_steps if state.max_steps > 0 else None, **self._settings}
        if args.bf16 or args.fp16:
            settings.setdefault("dtype", "bf16" if args.bf16 else "fp16")
        self._run = gpufleet.init(**settings)
        self._run.watch(given.get("model"), given.get("optimizer"), steps=False)
        loader = given.get("train_dataloader")
        if loader is not None:
            self._run.fingerprint(_fingerprint.of_loader(loader))
        self._run.fingerprint(
            {
                "trainer.per_device_train_batch_size": args.per_device_train_batch_size,
                "trainer.gradient_accumulation_steps": args.gradient_accumulation_steps,
                "trainer.gradient_checkpointing": args.gradient_checkpointing,
                "trainer.precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
                "trainer.torch_compile": args.torch_compile,
                "trainer.dataloader_num_workers": args.dataloader_num_workers,
            }
        )
        # It puts the model into DataParallel later than here, but none in 8 bits.
        if args.n_gpu > 1 and not getattr(given.get("model"), "is_loaded_in_8bit", False):
            self._run.fingerprint(gpus_per_process=args.n_gpu)
        self._run._settle()
        self._run.resume(state.global_step)
        self._recorder = self._run._recorder
        self._recorder.begin()
        self._waits = Waits(self._recorder)
        self._is_training = True
        self._waits.begin()

    @_open
    def on_step_begin(self, args, state, given):
        if self._is_training:
            self._waits.end()

    @_open
    def on_step_end(self, args, state, given):
        if not self._is_training:
            return
        optimizer = given.get("optimizer")
        if getattr(optimizer, "step_was_skipped", False):
            self._run.scaler_skipped()
        self._run.step(number=state.global_step)
        self._waits.begin()

    @_open
    def on_prediction_step(self, args, state, given):
        if self._is_training:
            self._recorder.now_in("evaluation")

    @_open
    def on_log(self, args, state, given):
        logs = given.get("logs") or {}
        if not self._is_training:
            return
        self._run.log(**{ours: logs[theirs] for theirs, ours in _READINGS.items() if theirs in logs})
        # An evaluation logs before it is over.
        if not any(name.startswith("eval_") for name in logs):
            self._waits.begin()

    @_open
    def on_evaluate(self, args, state, given):
        if not self._is_training:
            return
        self._recorder.evaluated(state.global_step, self._waits.end("evaluation"))
        self._run.log(evaluation_loss=(given.get("metrics") or {}).get("eval_loss"))
        self._run._boundary()
        self._waits.begin()

    @_open
    def on_save(self, args, state, given):
        if not self._is_training:
            return
        self._recorder.checkpoint_saved(state.global_step, self._waits.end("checkpoint_save"))
        self._run._boundary()
        self._waits.begin()

    @_open
    def on_train_end(self, args, state, given):
        if self._is_training:
            self._is_training = False
            self._recorder.now_in()
            # It may have stopped early: what was planned is what was made, and a run that made it does not stand still.
            if state.global_step > 0:
                self._run.plan(total_steps=state.global_step)
            self._run._readings.drain()
