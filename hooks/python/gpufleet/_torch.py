"""Hooks into a PyTorch loop that nobody changed: loader, model, optimizer, gradient scaler."""

import types
import weakref

import torch

from gpufleet import _arithmetic, _fingerprint, _flops
from gpufleet._safe import FAILURES, debug, failed
from gpufleet._timing import clock_for

#: Tensors of a model's output that are watched for the beginning of backward: loss and logits.
_MOST_OUTPUTS = 4

#: How deep in a model's output they are looked for.
_DEEPEST = 3

#: Stands for the shape of a model that nobody has asked for yet.
_NOT_ASKED = object()

#: Loaders whose batches are waited for in measured time, with their run.
_loaders = weakref.WeakKeyDictionary()


def _is_compiling():
    # torch.compile folds this into a constant, so that a traced hook leaves nothing behind.
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling()


class Watch:
    """What is watched for one run."""

    def __init__(self, run):
        self._run = run
        self._recorder = run._recorder
        self._clock = None
        self._open = {}
        self._is_backward_queued = False
        self._counts_steps = False
        self._counts_tokens = True
        self._is_step_ended = False
        self._knows_precision = False
        self._arithmetic = None
        self._shapes = weakref.WeakKeyDictionary()
        self._optimizer_steps = 0
        self._seen = weakref.WeakSet()

    def __deepcopy__(self, _memo):
        # A model is copied with its hooks (for an average of its weights): the copy is the same run's.
        return self

    def __reduce__(self):
        # A model is saved with its hooks: who loads it trains nothing for us.
        return _watch_of_nothing, ()

    def add(self, model=None, optimizer=None, loader=None, scaler=None, steps=True, tokens=True):
        """More to watch. What is watched already is not watched twice."""
        self._counts_tokens = tokens
        if model is not None:
            # Parts of it may be frozen since.
            self._shapes.pop(model, None)
        if model is not None and model not in self._seen:
            self._seen.add(model)
            self._watch_model(model)
        optimizers = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        for one in optimizers:
            one = getattr(one, "optimizer", one)  # Accelerate's wrapper
            if one is not None and one not in self._seen:
                self._seen.add(one)
                # With several optimizers (a GAN) a step is the last one's.
                self._watch_optimizer(one, steps and optimizers[-1] is not None and one is _inner(optimizers[-1]))
        if loader is not None:
            self._watch_loader(loader)
        if scaler is not None and scaler not in self._seen:
            self._seen.add(scaler)
            self._watch_scaler(scaler)

    def drain(self):
        """Counts what the GPU is through with."""
        if self._clock is not None:
            self._clock.drain()

    def is_step_said(self, _run):
        """The script says itself that a step ended: true where that step was counted already."""
        was_counted = self._is_step_ended
        if self._counts_steps:
            debug("the script calls run.step(): the optimizer's steps are no longer counted")
        self._counts_steps = False
        self._is_step_ended = False
        return was_counted

    # The loader.

    def _watch_loader(self, loader):
        from torch.utils.data import DataLoader

        if not isinstance(loader, DataLoader):
            debug(f"a {type(loader).__name__} cannot be watched: iterate over run.data(loader)")
            return
        # Accelerate's loader iterates over one inside it.
        iterated = getattr(loader, "base_dataloader", loader)
        _patch_loaders(type(iterated))
        _loaders[iterated] = self._run
        self._run.fingerprint(_fingerprint.of_loader(loader))

    # The model.

    def _watch_model(self, model):
        self.clock_of(model)
        try:
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        except TypeError:  # before torch 2.0 a hook does not see keyword arguments
            model.register_forward_pre_hook(self._before_forward)
        model.register_forward_hook(self._after_forward)
        self._run.fingerprint(_fingerprint.of_model(model))

    def enter(self, phase):
        """A phase begins."""
        # What raised has left its beginning here.
        self._clock.drop(self._open.pop(phase, None))
        self._open[phase] = self._clock.begin(phase)

    def leave(self, phase):
        """It ends."""
        self._clock.end(self._open.pop(phase, None))

    def clock_of(self, model):
        """Phases are timed by the clock of the device that a model is on."""
        self._clock = self._clock or clock_for(model.parameters(), self._recorder, torch)

    def _before_forward(self, module, given, named=None):
        if _is_compiling():
            return
        try:
            if not torch.is_grad_enabled() or self._recorder.is_stalled():
                return
            self._recorder.begin()
            if not self._knows_precision:
                self._knows_precision = True
                self._run._settle()
                self._know_precision(module)
            if self._counts_tokens:
                self.count(module, given, named or {})
            self.enter("forward")
        except FAILURES as error:
            failed("forward", error)

    def _know_precision(self, model):
        self._run.fingerprint(
            {**_fingerprint.of_autocast(), **_fingerprint.of_accelerate(), **_fingerprint.of_megatron()}
        )
        if not self._run._plan.get("dtype"):
            self._arithmetic = _arithmetic.Arithmetic(model, self._computes_in)

    def _computes_in(self, data_type, source):
        self._run.plan(dtype=data_type)
        self._run.fingerprint(dtype_by=source)

    def _after_forward(self, _module, _given, output):
        if _is_compiling():
            return
        try:
            if self._arithmetic is not None:
                self._arithmetic.over()
                self._arithmetic = None
            begun = self._open.pop("forward", None)
            if begun is None and not torch.is_grad_enabled():
                return
            self._clock.end(begun)
            for tensor in _tensors(output):
                tensor.register_hook(self._before_backward)
        except FAILURES as error:
            failed("forward", error)

    def count(self, module, given, named):
        """Tokens and samples of a batch by the shape of what the model is given."""
        ids = named.get("input_ids")
        if ids is None:
            ids = next((it for it in (*given, *named.values()) if isinstance(it, torch.Tensor)), None)
        if ids is None or ids.dim() == 0:
            return
        inferred = self._run._inferred
        samples = ids.shape[0]
        inferred[1] += samples
        if ids.dim() == 2 and not ids.is_floating_point():
            length = ids.shape[1]
            inferred[0] += samples * length
            if not self._run._says_flops:
                shape = self._shape_of(module, length)
                if shape is not None:
                    inferred[2] += samples * length * shape.per_token(length)

    def _shape_of(self, model, sequence_length):
        """By what FLOPs follow from what this model is given; None where that is not known. Asked once."""
        found = self._shapes.get(model, _NOT_ASKED)
        if found is not _NOT_ASKED:
            return found
        self._shapes[model] = None
        config = getattr(_unwrapped(model), "config", None)
        if getattr(model, "_is_replica", False):
            # DataParallel makes them anew at every step, one a GPU.
            self._run.fingerprint(flops_refused=_flops.SEVERAL_GPUS)
        elif config is not None:
            # With its wrappers: what FSDP has cut only they know.
            self._shapes[model] = self._run._infer_flops(model, sequence_length, config)
        return self._shapes[model]

    # Backward.

    def _before_backward(self, _gradient):
        try:
            if self._is_backward_queued:
                return
            self._is_backward_queued = True
            self.enter("backward")
            # Queued again when it is called, so that it runs after what DDP and FSDP queued: the
            # waits for their last collectives.
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._after_backward))
        except FAILURES as error:
            self._is_backward_queued = False
            failed("backward", error)

    def _after_backward(self):
        try:
            self._is_backward_queued = False
            self.leave("backward")
        except FAILURES as error:
            failed("backward", error)

    # The optimizer.

    def _watch_optimizer(self, optimizer, counts_steps):
        self._counts_steps = counts_steps
        self._clock = self._clock or clock_for(_parameters_of(optimizer), self._recorder, torch)

        def before(*_arguments):
            self._before_step()

        def after(*_arguments):
            self._after_step(counts_steps)

        if hasattr(optimizer, "register_step_pre_hook"):
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)
        else:
            _wrap_step(optimizer, before, after)
        self._run.fingerprint(_fingerprint.of_optimizer(optimizer))

    def _before_step(self):
        try:
            self._recorder.begin()
            # Backward that raised left this behind.
            self._is_backward_queued = False
            self.enter("optimizer")
        except FAILURES as error:
            failed("optimizer", error)

    def _after_step(self, counts_steps):
        try:
            self._optimizer_steps += 1
            self.leave("optimizer")
            if self._counts_steps and counts_steps:
                self._run._end_step()
                self._is_step_ended = True
        except FAILURES as error:
            failed("optimizer", error)

    def _watch_scaler(self, scaler):
        step = scaler.step

        def counted(scaler_self, optimizer, *arguments, **named):
            before = self._optimizer_steps
            result = step(optimizer, *arguments, **named)
            try:
                # Its own check has waited for the GPU already; a fused optimizer checks on the GPU,
                # is always called, and its skips cannot be seen from here.
                if _inner(optimizer) in self._seen and self._optimizer_steps == before:
                    self._recorder.scaler_skipped(1)
            except FAILURES as error:
                failed("scaler", error)
            return result

        scaler.step = types.MethodType(counted, scaler)


def _watch_of_nothing():
    from gpufleet._run import Run

    watch = Watch(Run.of_nothing())
    watch._clock = clock_for([], watch._recorder, torch)
    return watch


def _inner(optimizer):
    return getattr(optimizer, "optimizer", optimizer)


def _wrap_step(optimizer, before, after):
    """For torch before 2.0. A bound method, because learning rate schedulers look for one."""
    step = optimizer.step

    def watched(_optimizer, *arguments, **named):
        before()
        result = step(*arguments, **named)
        after()
        return result

    optimizer.step = types.MethodType(watched, optimizer)


def _patch_loaders(loader_class):
    """Batches of the loaders in `_loaders` are waited for in measured time; others are as ever.

    Of the loader's own class: torchdata's and timm's loaders are `DataLoader`s that iterate in their own way. One that
    calls DataLoader's for it may be measured there too, and inside a wait another counts nothing."""
    original = loader_class.__iter__
    if getattr(original, "_is_gpufleets", False):
        return

    def __iter__(self):
        iterator = original(self)
        try:
            run = _loaders.get(self)
        except TypeError:  # what can be no key is none of them
            run = None
        if run is None:
            return iterator
        run._settle()
        return run._recorder.batches(iterator)

    __iter__._is_gpufleets = True
    loader_class.__iter__ = __iter__


def _tensors(output):
    """The first tensors of a model's output that have a gradient."""
    found = []

    def look(value, depth):
        if len(found) >= _MOST_OUTPUTS or depth > _DEEPEST:
            return
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                found.append(value)
        elif isinstance(value, dict):
            for one in value.values():
                look(one, depth + 1)
        elif isinstance(value, (list, tuple)):
            for one in value:
                look(one, depth + 1)

    look(output, 0)
    return found


def _unwrapped(model):
    """The model inside torch.compile and DDP."""
    for _ in range(8):
        inner = getattr(model, "_orig_mod", None)
        inner = inner if inner is not None else getattr(model, "module", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    return model


def _parameters_of(optimizer):
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
