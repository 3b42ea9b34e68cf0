"""Real training on the CPU: a small language model, data parallel over gloo, told by gpufleet's hooks.

Started by scripts/demo_training.sh and by a test, one process for each rank, with torch's usual
variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). One rank may wait longer for its data, one may be killed.
"""

import argparse
import os
import signal
import time

import gpufleet
import torch
import torch.distributed
from torch.utils.data import DataLoader, TensorDataset, default_collate

VOCABULARY = 128
LENGTH = 32


class Model(torch.nn.Module):
    """An embedding, one layer of attention, and back to words."""

    def __init__(self, width=32):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        return self.head(self.layer(self.embedding(ids)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="steps to train")
    parser.add_argument("--step-seconds", type=float, default=0.2, help="least time of a rank's own work in a step")
    parser.add_argument("--checkpoint-every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--slow-rank", type=int, default=-1, help="this rank waits longer for each batch")
    parser.add_argument("--slow-by", type=float, default=0.5, help="so much longer, as a share of a step")
    parser.add_argument("--slow-while", default="", help="only while this file is there")
    parser.add_argument("--slow-after", type=int, default=0, help="from this step on")
    parser.add_argument("--kill-rank", type=int, default=-1, help="this rank kills itself (SIGKILL)")
    parser.add_argument("--kill-at-step", type=int, default=200, help="after this step")
    parser.add_argument("--folder", default=".", help="where checkpoints are written")
    return parser.parse_args()


def batches(rank, late):
    """Batches without end; each rank has its own. What makes one takes so many seconds longer as `late` says."""

    def collate(samples):
        time.sleep(late())
        return default_collate(samples)

    generator = torch.Generator().manual_seed(rank)
    ids = torch.randint(0, VOCABULARY, (512, LENGTH), generator=generator)
    return DataLoader(TensorDataset(ids), batch_size=8, shuffle=True, generator=generator, collate_fn=collate)


def peak_flops():
    """FLOPs a second of one core at its best, to the GFLOP: no table of peaks has this machine's."""
    size, best = 512, float("inf")
    matrix = torch.rand(size, size)
    for _ in range(10):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        best = min(best, time.perf_counter() - began)
    return round(2 * size**3 / best, -9)


def average_gradients(run, model, world):
    """What DistributedDataParallel does, in the open: its wait is then a wait for other ranks."""
    with run.phase("communication"):
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= world


def lateness(options, rank, step):
    """How much longer a rank waits for the batch of a step, seconds: one whose input is slow does."""
    is_slow = rank == options.slow_rank and step > options.slow_after
    if options.slow_while:
        is_slow = is_slow and os.path.exists(options.slow_while)
    return options.slow_by * options.step_seconds if is_slow else 0.0


def work(until):
    """A GPU would be at it for so long."""
    time.sleep(max(0.0, until - time.monotonic()))


def train(options):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # One stage: that a rank may be slow of itself is then known.
    mesh = {"dp": (rank, world), "pp": (0, 1), "tp": (0, 1)}
    run = gpufleet.init(
        total_steps=options.steps, mesh=mesh, tags={"demo": "training"}, dtype="fp32", peak_flops=peak_flops()
    )
    run.flops(per_token=6 * sum(parameter.numel() for parameter in model.parameters()))
    step = 0
    loader = run.data(batches(rank, lambda: lateness(options, rank, step + 1)))
    while step < options.steps:
        for (ids,) in loader:
            began = time.monotonic()
            with run.phase("forward"):
                words = model(ids[:, :-1])
                loss = torch.nn.functional.cross_entropy(words.flatten(0, 1), ids[:, 1:].flatten())
            with run.phase("backward"):
                loss.backward()
                work(began + options.step_seconds)
            average_gradients(run, model, world)
            with run.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            run.step(tokens=ids.numel(), samples=len(ids), loss=loss.detach())
            if rank == options.kill_rank and step == options.kill_at_step:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % options.checkpoint_every == 0 and rank == 0:
                with run.checkpoint(step=step):
                    torch.save(model.state_dict(), os.path.join(options.folder, "checkpoint.pt"))
            if step == options.steps:
                break


def main():
    options = arguments()
    # Two cores have to do for all ranks.
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    train(options)


if __name__ == "__main__":
    main()
