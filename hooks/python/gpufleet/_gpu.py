"""What is asked of CUDA: nothing here waits for a GPU, and nothing begins to use one."""

import sys


def is_captured():
    """Whether a CUDA graph is being captured. CUDA refuses to be asked about events then, and the refusal ends the capture,
    which raises in the script."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
