"""The hooks in a real PyTorch step on the GPU: what they cost, the MFU they tell beside FLOPs that are
counted here, and a step that is captured into a CUDA graph. Prints rows as JSON; 3: it cannot run here."""

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
STEPS = 200
WIDTH, BATCH, LAYERS = 2048, 1024, 8

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
flops = 6 * BATCH * WIDTH * WIDTH * LAYERS
rate = flops * STEPS / pairs[-1][1]
rows.append(("step: FLOPs counted here", "ok", f"{rate / 1e12:.1f} TFLOPS, {flops / 1e9:.0f} GFLOP a step"))

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
