"""Tells the gpufleet agent of this node what a training process does. It never slows or stops it.

    import gpufleet
    run = gpufleet.init(total_steps=10_000)

    for batch in run.data(loader):
        ...
        run.step(tokens=batch["input_ids"].numel(), loss=loss)

or, with steps, phases, tokens and FLOPs seen by themselves, one line before the loop:

    gpufleet.watch(model, optimizer, loader)

Where no agent runs everything works the same and nobody reads. docs/hooks.md has every option.
"""

from gpufleet._run import PHASES, Run
from gpufleet._safe import FAILURES, failed

__all__ = ["PHASES", "Run", "current", "init", "probe", "watch"]
__version__ = "0.1.0"

_current = None


def init(
    *,
    total_steps=None,
    total_tokens=None,
    deadline=None,
    flops_per_step=None,
    flops_per_token=None,
    peak_flops=None,
    dtype=None,
    tags=None,
    mesh=None,
    socket=None,
    **identity,
):
    """Begins to record this process, once: a second call says more of the same run.

    total_steps, total_tokens, deadline, dtype: see Run.plan. flops_per_step, flops_per_token: see
    Run.flops. peak_flops: dense FLOPs a second of what this rank computes on, where that is no GPU that the agent
    reads, or one of which no peak is known. tags: a dict. mesh and all other names: see Run.identify.
    """
    global _current
    try:
        import os

        # A forked child is another process: it has no region and gets a run that does nothing.
        if _current is None or _current._pid != os.getpid():
            _current = Run(socket)
            _current._begin()
        run = _current
        run.identify(mesh=mesh, **identity)
        run.plan(total_steps=total_steps, total_tokens=total_tokens, deadline=deadline, dtype=dtype)
        if flops_per_step or flops_per_token:
            run.flops(flops_per_step, flops_per_token)
        if peak_flops:
            run.fingerprint(peak_flops_per_second=float(peak_flops))
        if tags:
            run.tags(**tags)
        return run
    except FAILURES as error:
        failed("init", error)
        return Run.of_nothing()


def watch(model=None, optimizer=None, loader=None, **settings):
    """Records without a change in the loop: a step is an optimizer's step, the wait for `loader` is
    data wait, forward, backward and optimizer are timed (on a GPU by its own clock), tokens and FLOPs
    come from what `model` is given and from its shape.

    scaler: a GradScaler whose skipped steps are counted. steps=False: the script calls run.step()
    itself. tokens=False: do not count what the model is given. Everything else goes to `init`.
    """
    of_watch = {key: settings.pop(key) for key in ("scaler", "steps", "tokens") if key in settings}
    return init(**settings).watch(model, optimizer, loader, **of_watch)


def current():
    """The run of this process; one that does nothing before `init`."""
    return _current if _current is not None else Run.of_nothing()


def probe(every=None, **settings):
    """Checks between steps whether the GPU still computes right: at the ends of checkpoints and evaluations,
    and every so many steps. Returns a Probe with `verdict` and `reason`, which come some steps later.

    least_seconds: between two of them, 30. spoil: a work whose expectation is spoilt, to see it fail; told to
    nobody else. GPUFLEET_PROBE=0 switches it off; see docs/probe.md.
    """
    return init().probe(every, **settings)
