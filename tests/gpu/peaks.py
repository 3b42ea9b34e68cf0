"""What a large copy and a large matrix product reach on this card, by PyTorch, as JSON; with --seconds
only work for so long."""

import json
import sys
import time

import torch

if not torch.cuda.is_available():
    sys.exit("PyTorch is here and has no CUDA")


def seconds(work, times=10):
    work()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        work()
    ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / 1e3 / times


free = torch.cuda.mem_get_info()[0]
size = 8192 if free > 4 << 30 else 4096
kind = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
if "--seconds" in sys.argv:
    until = time.monotonic() + float(sys.argv[sys.argv.index("--seconds") + 1])
    while time.monotonic() < until:
        for _ in range(20):
            a @ b
        torch.cuda.synchronize()
    sys.exit(0)
count = min(1 << 30, free // 4)
source = torch.zeros(count, dtype=torch.uint8, device="cuda")
target = torch.empty_like(source)
copied = 2 * count / seconds(lambda: target.copy_(source))
product = 2 * size**3 / seconds(lambda: a @ b)
print(json.dumps({"copy": copied, "product": product}))
