"""torch's own flight recorder, with two ranks over gloo of which one does not come."""

import unittest

from support import Agent, free_port

SCRIPT = """
import os
from gpufleet import _flight
looked = sys.argv[0] + ".looked"
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
run = gpufleet.init()
for _ in range(3):
    torch.distributed.all_reduce(torch.ones(4))
    run.step()
if rank == 0:
    # This rank enters the next one, and the other comes when it was looked at.
    work = torch.distributed.all_reduce(torch.ones(4), async_op=True)
    time.sleep(1.0)
    print("dumped", _flight.dump() is not None)
    flight = _flight.Flight(run._recorder, rank, stands_after=0.0)
    flight.look(1.0)
    flight.look(1.0)
    print("waits", run.snapshot()["in_flight"])
    open(looked, "w").close()
    work.wait()
else:
    for _ in range(2000):
        if os.path.exists(looked):
            break
        time.sleep(0.05)
    torch.distributed.all_reduce(torch.ones(4))
"""


class Flight(unittest.TestCase):
    def test_the_collective_that_a_rank_waits_in_is_found(self):
        port = str(free_port())
        ranks = [
            (SCRIPT, {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                      "MASTER_PORT": port, "TORCH_FR_BUFFER_SIZE": "2000"})
            for rank in (0, 1)
        ]  # fmt: skip
        with Agent() as agent:
            agent.run(*ranks)
            for code, _, standard_error in agent.endings:
                self.assertEqual(code, 0, standard_error)
        output = agent.endings[0][1]
        self.assertIn("dumped True", output)
        self.assertIn("'AllReduce', 4", output)


if __name__ == "__main__":
    unittest.main()
