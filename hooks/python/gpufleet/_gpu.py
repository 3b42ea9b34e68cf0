"""What is asked of CUDA: nothing here waits for a GPU, and nothing begins to use one."""

import sys


def is_captured():
    """Whether a CUDA graph is being captured. CUDA refuses to be asked about events then, and the refusal ends the
    capture, which raises in the script."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def of_model(model):
    """The number of the CUDA device of a model's first parameter; None where that is on none."""
    parameter = next(iter(model.parameters()), None) if model is not None else None
    device = getattr(parameter, "device", None)
    return device.index if getattr(device, "type", "") == "cuda" else None


def index(torch, model):
    """The number of the CUDA device on which this process computes: a model may be on another than CUDA's current one."""
    of_its_model = of_model(model)
    return torch.cuda.current_device() if of_its_model is None else of_its_model


def of_parameters(parameters):
    """The CUDA devices of parameters, as torch names them."""
    devices = {getattr(parameter, "device", None) for parameter in parameters}
    return {device for device in devices if getattr(device, "type", "") == "cuda"}


def count(model):
    """On how many GPUs this process computes with a model, as far as its parameters and DataParallel show it."""
    wrappers = (it for it in model.modules() if type(it).__name__ == "DataParallel")
    replicas = (len(getattr(it, "device_ids", None) or ()) for it in wrappers)
    return max(len(of_parameters(model.parameters())), *replicas, 0)
