"""Several NCCL ranks on one GPU under our plugin: correct sums, one rank slowed, one that stops. 3: it
cannot run here. For correctness and order; times on one GPU say nothing of a fleet."""

import os
import subprocess
import sys
import time

#: All ranks on one card over loopback, as NCCL allows it.
ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
    "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571",
}
ROUNDS = 50


def argument(name):
    return sys.argv[sys.argv.index(name) + 1]


def rank():
    import torch
    import torch.distributed as distributed

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    distributed.init_process_group("nccl")
    values = torch.empty(1 << 20, device="cuda")
    for step in range(ROUNDS):
        if number == 1:
            time.sleep(0.01)
        values.fill_(number + step)
        distributed.all_reduce(values)
        expected = sum(range(world)) + step * world
        if step % 10 == 0 and values[0].item() != expected:
            sys.exit(f"rank {number}: {values[0].item()} where {expected} is right")
    # The last one stops: the others wait for it until they are ended.
    if number == world - 1:
        print("stops", flush=True)
        time.sleep(600)
    distributed.all_reduce(values)
    torch.cuda.synchronize()


def main():
    try:
        import torch
        import torch.distributed as distributed
    except ImportError as error:
        print(f"PyTorch is not here: {error}")
        sys.exit(3)
    if not torch.cuda.is_available() or not distributed.is_nccl_available():
        print("PyTorch is here without CUDA or NCCL")
        sys.exit(3)
    world = int(argument("--ranks"))
    started = []
    for number in range(world):
        environment = dict(os.environ, **ENVIRONMENT, RANK=str(number), WORLD_SIZE=str(world), NCCL_HOSTID=f"rank{number}",
                           NCCL_PROFILER_PLUGIN=argument("--plugin"), GPUFLEET_HOOKS_SOCKET=argument("--socket"))
        command = [sys.executable, __file__, "--rank"]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = started[-1].stdout.readline().strip()
        time.sleep(3)
        waits = [it.poll() is None for it in started]
    finally:
        for process in started:
            process.kill()
    if said != "stops" or not all(waits):
        print(f"the last rank said {said!r}; still there: {waits}")
        sys.exit(1)
    print(f"{ROUNDS} sums right under the plugin; {world - 1} ranks wait for the one that stopped")


rank() if "--rank" in sys.argv else main()
