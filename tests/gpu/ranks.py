"""Several NCCL ranks on one GPU under our plugin: correct sums, one rank slowed, one that stops, and what the agent
tells of them by the plugin. 3: it cannot run here. For correctness and order; times on one GPU say nothing of a
fleet."""

import os
import re
import subprocess
import sys
import time
import urllib.request

#: All ranks on one card over loopback, as NCCL allows it.
ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=lo",
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
    "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571",
}
ROUNDS = 50
#: How the agent says that what it knows of a rank's collectives is of our plugin.
OF_OUR_PLUGIN = 1
#: Until the agent has told of all ranks, seconds: it reads once a second.
PATIENCE = 60


def argument(name):
    return sys.argv[sys.argv.index(name) + 1]


def rank():
    import torch
    import torch.distributed as distributed

    import gpufleet

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpufleet.init(rank=number, world=world, job_name=os.environ["SUITE_JOB"])
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


def told(text, job, metric):
    """By rank of this job the greatest value that the agent tells."""
    found = {}
    for labels, value in re.findall(rf"^gpufleet_training_{metric}{{([^\n]*)}} (\S+)", text, re.M):
        its = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if its.get("job") == job and "rank" in its:
            number = int(its["rank"])
            found[number] = max(float(value), found.get(number, 0.0))
    return found


def missing(text, job, world):
    """What the agent does not tell yet of ranks of which the last one has stopped; empty where it is all there."""
    ranks = set(range(world))
    by_plugin = {rank for rank, code in told(text, job, "collectives_from_code").items() if code == OF_OUR_PLUGIN}
    done = {rank for rank, calls in told(text, job, "collective_calls_total").items() if calls >= ROUNDS}
    waits = {rank for rank, count in told(text, job, "collectives_in_flight").items() if count >= 1}
    not_told = [
        ("are not told by our plugin", ranks - by_plugin),
        (f"have not {ROUNDS} collectives", ranks - done),
        ("are not told to wait", ranks - {world - 1} - waits),
        ("are told to wait and do not", {world - 1} & waits),
    ]
    return "; ".join(f"ranks {sorted(which)} {what}" for what, which in not_told if which)


def main():
    try:
        import torch
        import torch.distributed as distributed

        import gpufleet
    except ImportError as error:
        print(f"PyTorch or the hooks are not here: {error}")
        sys.exit(3)
    if not torch.cuda.is_available() or not distributed.is_nccl_available():
        print("PyTorch is here without CUDA or NCCL")
        sys.exit(3)
    world = int(argument("--ranks"))
    job = f"suite-{world}-ranks"
    started = []
    for number in range(world):
        environment = dict(os.environ, **ENVIRONMENT, RANK=str(number), WORLD_SIZE=str(world), NCCL_HOSTID=f"rank{number}", SUITE_JOB=job,
                           NCCL_PROFILER_PLUGIN=argument("--plugin"), GPUFLEET_HOOKS_SOCKET=argument("--socket"))
        command = [sys.executable, __file__, "--rank"]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = started[-1].stdout.readline().strip()
        until, why = time.monotonic() + PATIENCE, "the ranks ended"
        while why and said == "stops" and time.monotonic() < until:
            time.sleep(1)
            with urllib.request.urlopen(argument("--metrics"), timeout=10) as answer:
                why = missing(answer.read().decode(), job, world)
        waits = [it.poll() is None for it in started]
    finally:
        for process in started:
            process.kill()
    if said != "stops" or not all(waits):
        print(f"the last rank said {said!r}; still there: {waits}")
        sys.exit(1)
    if why:
        print(f"{ROUNDS} sums right; of the agent's word: {why}")
        sys.exit(1)
    print(f"{ROUNDS} sums right under the plugin; the agent tells of it, and that {world - 1} ranks wait for the one that stopped")


if __name__ == "__main__":
    rank() if "--rank" in sys.argv else main()
