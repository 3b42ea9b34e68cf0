"""The hooks in a real PyTorch step on the GPU: what they cost, the MFU they tell beside FLOPs that are
counted here, the probe inside the process and that it can fail, and a step that is captured into a CUDA graph.
Prints rows as JSON; 3: it cannot run here."""

import json
import os
import sys
import time


def cannot(why):
    print(why, file=sys.stderr)
    sys.exit(3)


try:
    import torch
except ImportError as error:
    cannot(f"PyTorch is not here: {error}")
try:
    import gpufleet
except ImportError as error:
    cannot(f"the hooks are not here: {error}")
if not torch.cuda.is_available():
    cannot("PyTorch is here and has no CUDA")

#: Most that the hooks may add to a step.
MOST_OVERHEAD = 0.01
IS_SMALL = "--small" in sys.argv
STEPS = 2 if IS_SMALL else 200
#: Most that a probe every 30 s may add to training, and how long one may take to come to something, seconds.
MOST_SLOWDOWN, EVERY, PATIENCE = 0.005, 30.0, 60.0
#: Most that the hooks' count of FLOPs may be off.
MOST_OFF = 0.01
WORKS = ("arithmetic", "memory", "fp16", "int8", "bf16", "tf32", "fp8")
WIDTH, BATCH, LAYERS = (8, 4, 1) if IS_SMALL else (2048, 1024, 8)

os.environ["GPUFLEET_HOOKS_SOCKET"] = sys.argv[sys.argv.index("--socket") + 1]


def model():
    torch.manual_seed(1)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).cuda()


def steps(net, optimizer, batch, count):
    """Seconds of so many steps."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad(set_to_none=True)
        net(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def probed(run, spoil=None):
    """A probe inside this process, between steps, to its end."""
    run._probe = None
    probe = run.probe(every=1, least_seconds=0, spoil=spoil)
    until = time.monotonic() + PATIENCE
    while probe.runs == 0 and time.monotonic() < until:
        steps(watched, watched_optimizer, batch, 1)
        probe.drain()
    probe.every(None, 0)
    return probe


def inside(run):
    """The rows of the probe inside the process."""
    probe = probed(run)
    name = "probe inside the process"
    rows.append((name, "ok" if probe.verdict == "pass" else "FAILED", f"{probe.verdict}: {probe.reason}"))
    if probe.verdict != "pass":
        return
    while not probe.drain():
        steps(watched, watched_optimizer, batch, 1)
    few, slower = 50, []
    for _ in range(7):
        without = steps(watched, watched_optimizer, batch, few)
        # One is due at the end of the first of these, as after a checkpoint.
        probe._is_due = True
        slower.append(steps(watched, watched_optimizer, batch, few) - without)
        while not probe.drain():
            steps(watched, watched_optimizer, batch, 1)
    part = max(sorted(slower[1:])[3], 0.0) / EVERY
    says = f"{part:.3%} at one every {EVERY:.0f} s; {probe.gpu_seconds * 1e3:.1f} ms from first to last kernel"
    rows.append(("probe inside: what training slows", "ok" if part <= MOST_SLOWDOWN else "FAILED", says))
    for work in WORKS:
        if work not in probe.reason.split(" right")[0]:
            rows.append((f"probe inside fails when {work} is spoilt", "NOT RUN", "this card or driver cannot do it"))
            continue
        spoilt = probed(run, work)
        is_right = spoilt.verdict == "fail" and work in spoilt.reason
        rows.append((f"probe inside fails when {work} is spoilt", "ok" if is_right else "FAILED", f"{spoilt.verdict}: {spoilt.reason}"))
    run._probe = None


rows = []
batch = torch.randn(BATCH, WIDTH, device="cuda")
plain = model()
plain_optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
watched = model()
watched_optimizer = torch.optim.SGD(watched.parameters(), lr=1e-3)
gpufleet.watch(watched, watched_optimizer)
pairs = []
for _ in range(6):
    pairs.append((steps(plain, plain_optimizer, batch, STEPS), steps(watched, watched_optimizer, batch, STEPS)))
# The first warms up; by turns, so that a clock that drifts is in both.
overhead = sorted(with_hooks / without - 1 for without, with_hooks in pairs[1:])[2]
verdict = "ok" if overhead <= MOST_OVERHEAD else "FAILED"
rows.append(("hooks: what a step costs more", verdict, f"{overhead:+.2%} of {pairs[-1][0] / STEPS * 1e3:.2f} ms"))
# A product forward and two backward in each layer, but that nobody asks for the gradient of the batch.
flops = 2 * BATCH * WIDTH * WIDTH * (3 * LAYERS - 1)
rate = flops * STEPS / pairs[-1][1]


def counted(run):
    """The row of what the hooks tell that a step computes, which is what MFU is made of."""
    name = "hooks: FLOPs of a step"
    with run.measure_flops():
        steps(watched, watched_optimizer, batch, 1)
    before = run._recorder.snapshot()
    if not (before["plan"] or {}).get("flops_per_step"):
        return (name, "NOT RUN", "this PyTorch does not count FLOPs")
    told = before["plan"]["flops_per_step"]
    is_right = abs(told / flops - 1) <= MOST_OFF
    says = f"{told / 1e9:.3g} GFLOP, {flops / 1e9:.3g} counted here; {rate / 1e12:.1f} TFLOPS"
    return (name, "ok" if is_right else "FAILED", says)


rows.append(counted(gpufleet.current()))

inside(gpufleet.current())
try:
    graph, static = torch.cuda.CUDAGraph(), batch.clone()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            watched(static).square().mean().backward()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        watched(static).square().mean().backward()
    graph.replay()
    torch.cuda.synchronize()
    rows.append(("hooks: a step in a CUDA graph", "ok", "captured and replayed"))
except RuntimeError as error:
    rows.append(("hooks: a step in a CUDA graph", "FAILED", str(error).splitlines()[0][:120]))
print(json.dumps(rows))
