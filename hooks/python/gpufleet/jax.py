"""For JAX: a step as a context manager, and what compiling costs.

    run = gpufleet.jax.init(total_steps=10_000)
    for batch in run.data(batches):
        with gpufleet.jax.step(run, tokens=batch.size) as step:
            state, step.loss = train_step(state, batch)

JAX returns before the device is done. Nothing here waits for it: a step lasts from the end of the one
before to its own, and a device that is behind makes itself felt when JAX's own queue is full. A loss is
read when it is there.
"""

import sys

import gpufleet
from gpufleet._safe import FAILURES, failed

#: What JAX calls the time that its compiler takes, in its versions since 0.4.
_COMPILED = ("/jax/core/compile/backend_compile_duration", "/jax/core/compile/backend_compile_time")


def init(**settings):
    """`gpufleet.init`, and the compilations that JAX tells of."""
    jax = sys.modules.get("jax")
    # The process is JAX's whatever else it has loaded.
    named = {} if jax is None else {"framework": f"jax {jax.__version__}"}
    run = gpufleet.init(**{**named, **settings})
    try:
        Compilations(run).listen()
    except FAILURES as error:
        failed("gpufleet.jax.init", error)
    return run


def step(run, tokens=None, samples=None, number=-1, loss=None):
    """`with gpufleet.jax.step(run) as step:` around one step; set `step.loss`, `step.tokens` inside."""
    return Step(run, tokens, samples, number, loss)


class Step:
    """One step. One that raises is none."""

    def __init__(self, run, tokens, samples, number, loss):
        self._run = run
        self._number = number
        self.tokens = tokens
        self.samples = samples
        self.loss = loss

    def __enter__(self):
        try:
            self._run._settle()
            self._run._recorder.begin()
        except FAILURES as error:
            failed("gpufleet.jax.step", error)
        return self

    def __exit__(self, kind, _error, _traceback):
        if kind is None:
            self._run.step(self.tokens, self.samples, number=self._number, loss=self.loss)
        return False


class Compilations:
    """Counts what JAX compiles: a step that is compiled again and again is a shape that changes."""

    def __init__(self, run):
        self._run = run
        self._count = 0

    def listen(self):
        """Asks JAX to be told."""
        import jax.monitoring

        jax.monitoring.register_event_duration_secs_listener(self.compiled)

    def compiled(self, event, seconds, **_more):
        """JAX has done something that took so long."""
        if event not in _COMPILED:
            return
        try:
            self._count += 1
            self._run._recorder.spent("other", int(seconds * 1e9))
            # Doubling: the fingerprint is written seldom, however often something is compiled.
            if self._count & (self._count - 1) == 0:
                self._run.fingerprint({"jax.compilations_at_least": self._count})
        except FAILURES as error:
            failed("compilation", error)

