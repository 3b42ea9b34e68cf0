"""What the Python package costs: a step record, the hooks of a watched step, a loop with and without.

`make bench-hooks` runs it. Exits with 1 above the limits below.
"""

import itertools
import statistics
import sys
import time

import torch

import gpufleet
from gpufleet import _torch
from gpufleet._run import Run

#: Most microseconds of a step record from Python: the project's promise.
STEP_US = 2.0

#: Most of a step of 100 ms that the hooks' own CPU may take.
SHARE = 0.004
OF_STEP_US = 100_000.0

BATCH = 1000
BATCHES = 200

#: Pairs of blocks with and without hooks, and steps of each.
PAIRS = 30
STEPS = 20


def measure(name, call):
    """Median and 99th percentile of batches, microseconds a call."""
    batches = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        batches.append((time.perf_counter_ns() - begin) / BATCH / 1000)
    batches.sort()
    median = batches[BATCHES // 2]
    print(f"{name:<44} {median:>8.2f} {batches[BATCHES * 99 // 100]:>8.2f}")
    return median


def calls():
    """The hot calls, one by one."""
    run = Run("/nowhere/hooks.sock")
    print(f"{'call, microseconds':<44} {'median':>8} {'p99':>8}")
    of_step = measure("run.step(tokens=…, samples=…)", lambda: run.step(tokens=8192, samples=4))
    measure("run.step(tokens=…, loss=a number)", lambda: run.step(tokens=8192, loss=1.5))
    loss = torch.tensor(1.5)
    measure("run.step(tokens=…, loss=a tensor on the CPU)", lambda: run.step(tokens=8192, loss=loss))
    batches = iter(run.data(itertools.repeat(0)))
    measure("a batch of run.data, nothing to wait for", lambda: next(batches))

    def phase():
        with run.phase("other"):
            pass

    measure("with run.phase", phase)
    phases = run.snapshot()["phases"]
    assert phases["data_wait"][1] == phases["other"][1] == BATCH * BATCHES, phases
    return of_step


def model_and_optimizer(width):
    """A model of three layers whose step takes some milliseconds."""
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def learn(model, optimizer, batch):
    """One step."""
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def inside():
    """Time inside the hooks of a watched step: median and spread, microseconds."""
    spent = [0]

    def timed(function):
        def wrapper(*arguments, **named):
            begin = time.perf_counter_ns()
            try:
                return function(*arguments, **named)
            finally:
                spent[0] += time.perf_counter_ns() - begin

        return wrapper

    class Timed(_torch.Watch):
        """Every way from torch into the package, with a clock around it."""

        _before_forward = timed(_torch.Watch._before_forward)
        _after_forward = timed(_torch.Watch._after_forward)
        _before_backward = timed(_torch.Watch._before_backward)
        _after_backward = timed(_torch.Watch._after_backward)
        _before_step = timed(_torch.Watch._before_step)
        _after_step = timed(_torch.Watch._after_step)

    run = Run("/nowhere/hooks.sock")
    run._watch = Timed(run)
    model, optimizer = model_and_optimizer(64)
    run.watch(model, optimizer)
    log = timed(run.log)
    wait = timed(iter(run.data(itertools.repeat(torch.ones(8, 64)))).__next__)
    steps = []
    for _ in range(2000):
        spent[0] = 0
        log(loss=learn(model, optimizer, wait()))
        steps.append(spent[0] / 1000)
    steps.sort()
    median = statistics.median(steps)
    count = run.snapshot()["steps_total"]
    assert count == len(steps), f"{count} steps were recorded"
    share = median / OF_STEP_US
    print(f"\nhooks of a watched step, inside: median {median:.1f} us, p99 {steps[1980]:.1f} us, 2000 steps")
    print(f"of a step of 100 ms: {share:.4%} (must be at most {SHARE:.1%})")
    return share


def with_and_without():
    """Blocks of steps with and without hooks, in turns."""
    torch.set_num_threads(1)
    bare, watched = model_and_optimizer(512), model_and_optimizer(512)
    run = Run("/nowhere/hooks.sock").watch(*watched)
    batches = [torch.randn(64, 512) for _ in range(STEPS)]

    def block(pair, is_watched):
        begin = time.thread_time_ns()
        for batch in run.data(batches) if is_watched else batches:
            loss = learn(*pair, batch)
            if is_watched:
                run.log(loss=loss)
        return (time.thread_time_ns() - begin) / STEPS / 1000

    for pair, is_watched in ((bare, False), (watched, True)):
        block(pair, is_watched)
    ratios, without = [], []
    for turn in range(PAIRS):
        pairs = [(bare, False), (watched, True)]
        times = {is_watched: block(pair, is_watched) for pair, is_watched in pairs[:: 1 if turn % 2 else -1]}
        ratios.append(times[True] / times[False] - 1)
        without.append(times[False])
    ratios.sort()
    print(f"\nloop without hooks: {statistics.median(without) / 1000:.2f} ms of CPU a step (main thread)")
    print(
        f"with hooks, {PAIRS} pairs of {STEPS} steps in turns: median {statistics.median(ratios):+.2%}, "
        f"quartiles {ratios[PAIRS // 4]:+.2%} to {ratios[PAIRS * 3 // 4]:+.2%}, "
        f"all {ratios[0]:+.2%} to {ratios[-1]:+.2%}"
    )


def main():
    """All three; 1 above a limit."""
    print(f"gpufleet {gpufleet.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    of_step = calls()
    share = inside()
    with_and_without()
    if of_step > STEP_US or share > SHARE:
        print(f"over {STEP_US} us a step record or {SHARE:.1%} of a step")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
