"""The type that a model's matrix products are computed in, where the script does not say it.

It chooses the peak that MFU is held against, and a wrong peak is worse than none: what is not sure is left open.
Nothing here looks at a value: types are known without the GPU.
"""

import torch

from gpufleet import _fingerprint
from gpufleet._safe import FAILURES, failed

#: torch's names and those of the peaks.
_NAMES = {"bfloat16": "bf16", "float16": "fp16"}

#: What torch calls how 32-bit floats are multiplied; true: in TF32.
_IS_TF32 = {"highest": False, "ieee": False, "high": True, "medium": True, "tf32": True}

#: In the names of classes (torchao, bitsandbytes) that compute in less than their parameters are kept in.
_SMALLER = ("Float8", "8bit", "4bit", "NVFP4", "MXFP")

#: Share of a model's parameters that has to be of one type: adapters and norms may be of another.
_MOST = 0.95


class Arithmetic:
    """Finds out in the first forward pass of a model, and hands over the type and what says so, once at most."""

    def __init__(self, model, found):
        self._found = found
        self._hook = None
        modules = list(model.modules())
        if not any(_is_smaller(type(it)) for it in modules):
            said = _said(model)
            if said is not None:
                found(*said)
            else:
                self._look_at(modules)

    def _look_at(self, modules):
        """What comes out of a linear layer is of the type that it computed in, whoever switched that on where."""
        layer = _typical(modules)
        # What torch.compile makes has no hooks in it. And whoever uses convolutions has a switch more, which torch
        # leaves on.
        if layer is not None and not any(_is_compiled(it) or _is_convolution(it) for it in modules):
            self._hook = layer.register_forward_hook(self._computed)

    def _computed(self, _layer, _given, output):
        # A constant for torch.compile, where a model is compiled from outside.
        if _is_compiling() or self._hook is None:
            return
        try:
            self.over()
            said = _named(getattr(output, "dtype", None))
            if said is not None:
                self._found(said, "output")
        except FAILURES as error:
            failed("the type of its arithmetic", error)

    def over(self):
        """The forward pass is over."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def __deepcopy__(self, _memo):
        # A forward pass that raised leaves its hook behind, and the model may be copied or saved with it.
        return self

    def __reduce__(self):
        return _of_nothing, ()


def _of_nothing():
    nothing = Arithmetic.__new__(Arithmetic)
    nothing._hook = None
    return nothing


def _is_compiling():
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling()


def _is_compiled(module):
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _is_convolution(module):
    return isinstance(module, (torch.nn.Conv2d, torch.nn.Conv3d))


def _is_smaller(kind):
    # NVIDIA's layers compute in 8 bits where the script has switched that on.
    return kind.__module__.startswith("transformer_engine") or any(part in kind.__name__ for part in _SMALLER)


def _said(model):
    """What is sure before the model has computed: autocast, Accelerate's precision, parameters of 16 bits."""
    counts, device = {}, "cpu"
    for parameter in model.parameters():
        device = parameter.device.type
        # DeepSpeed's ZeRO 3 leaves an empty tensor and its size beside it.
        count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        counts[parameter.dtype] = counts.get(parameter.dtype, 0) + count
    autocast = _fingerprint.autocast_on(torch, device)
    if autocast is not None:
        return _with(_named(autocast), "autocast")
    precision = _fingerprint.of_accelerate().get("accelerate.precision")
    if precision in _NAMES.values():
        return precision, "accelerate"
    for data_type, count in counts.items():
        if data_type != torch.float32 and count >= _MOST * sum(counts.values()):
            return _with(_named(data_type), "parameters")
    return None


def _with(name, source):
    return None if name is None else (name, source)


def _named(data_type):
    """The name of a peak; None where it has none or is not sure."""
    if data_type == torch.float32:
        is_tf32 = _IS_TF32.get(_precision())
        return None if is_tf32 is None else ("tf32" if is_tf32 else "fp32")
    return _NAMES.get(str(data_type).replace("torch.", ""))


def _precision():
    try:
        return torch.get_float32_matmul_precision()
    except Exception:  # torch before 1.12; or the script uses the names of 2.9, with which this one must not be mixed
        return getattr(torch.backends.cuda.matmul, "fp32_precision", "")


def _typical(modules):
    """The first of those linear layers that, all of one size together, have most of the weights."""
    sizes = {}
    for module in modules:
        if isinstance(module, torch.nn.Linear):
            sizes.setdefault((module.in_features, module.out_features), []).append(module)
    most = max(sizes, key=lambda it: it[0] * it[1] * len(sizes[it]), default=None)
    return None if most is None else sizes[most][0]
