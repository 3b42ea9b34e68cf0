"""What a step costs in FLOPs: by the model's shape, or counted once."""

from collections import namedtuple

from gpufleet import _gpu, _whole

#: Names of a configuration's fields, as models of the Hugging Face hub and Megatron have them.
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")


#: The same for a mixture's experts: how many there are, and how many a token goes through.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts", "moe_num_experts")
#: `top_k` last: older configs of the hub have one that is of sampling.
_ACTIVE = ("num_experts_per_tok", "moe_topk", "moe_router_topk", "moe_top_k", "top_k")


#: Why there are none where MFU would hold the work of several GPUs against one.
SEVERAL_GPUS = "not known: this process computes on several GPUs, and it tells of one"


class Shape(namedtuple("Shape", "parameters products attention")):
    """parameters: of the whole model. products, attention: this rank's model FLOPs of a token, and what comes to them for
    each token of its sequence."""

    __slots__ = ()

    def per_token(self, sequence_length):
        """FLOPs of a token of a sequence of this length."""
        return self.products + self.attention * sequence_length


def of_shape(model, sequence_length, config=None, mesh=None):
    """This rank's model FLOPs of one token of a training step, and the number of parameters of the whole model: see
    `shape_of`."""
    if sequence_length <= 0:
        raise _whole.Unknown("not known: a sequence has no token")
    shape = shape_of(model, config, mesh)
    return shape.per_token(sequence_length), shape.parameters


def shape_of(model, config=None, mesh=None):
    """What of a model its FLOPs follow from, as this rank's Shape.

    PaLM's convention: 6N + 12·L·H·Q·T, where N are the parameters that a token is multiplied with
    (the head, not the look-up of the embedding; of experts those it goes through), and attention
    counts in full. Weights that are frozen cost 4 instead of 6. Ranks that are given the same batch have
    an equal part of it. `mesh`: what `_mesh.find` knows of this rank's place. Raises `_whole.Unknown`,
    which is the reason.
    """
    config = config if config is not None else getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise _whole.Unknown("not known: an encoder and a decoder are given tokens of their own; only one's are seen")
    config = getattr(config, "text_config", None) or config
    layers, heads, hidden = (_field(config, names) for names in (_LAYERS, _HEADS, _HIDDEN))
    if not layers or not heads or not hidden:
        raise _whole.Unknown("not known: the model's config does not say how many layers and heads it has")
    if _gpu.count(model) > 1:
        raise _whole.Unknown(SEVERAL_GPUS)
    head_size = getattr(config, "head_dim", None) or hidden // heads
    tp = _whole.ranks_of_a_batch(model, mesh or {})
    weights = _whole.weights(model, tp)
    total, products = _parameters(weights, _share_of_experts(config, weights))
    return Shape(total, products / tp, 12.0 * layers * heads * head_size / tp)


def _field(config, names):
    return next((getattr(config, name) for name in names if getattr(config, name, None)), 0)


def _share_of_experts(config, weights):
    """Of a mixture's experts, the share that a token goes through."""
    # DBRX keeps both in a part of its config.
    part = config if _count(config, _EXPERTS) else getattr(config, "ffn_config", None)
    experts, active = _count(part, _EXPERTS), _count(part, _ACTIVE)
    if not any(map(_is_of_experts, weights)):
        if experts > 1:
            raise _whole.Unknown(f"not known: its config tells of {experts} experts, and no parameter's name of one")
        return 1.0
    if not 0 < active <= experts:
        raise _whole.Unknown("not known: it has experts, and its config does not say how many of them a token goes through")
    return active / experts


def _count(config, names):
    count = _field(config, names)
    # Some configs have a list: a number for each layer.
    return count if isinstance(count, int) else 0


def _is_of_experts(weight):
    return ".experts." in weight.name


def _parameters(weights, share_of_experts):
    """How many there are, and what multiplying with them costs a token."""
    total, cost = 0, 0.0
    for weight in weights:
        total += weight.numel
        if weight.is_lookup:
            continue
        share = share_of_experts if _is_of_experts(weight) else 1.0
        cost += weight.numel * share * (6.0 if weight.is_trained else 4.0)
    return total, cost


class Counted:
    """`with run.measure_flops():` around one step: counts the FLOPs of every kernel torch knows."""

    def __init__(self, done):
        self._done = done
        self._counter = None

    def __enter__(self):
        from gpufleet._safe import FAILURES, failed

        try:
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
        except FAILURES as error:
            self._counter = None
            failed("measure_flops", error)
        return self

    def __exit__(self, kind, error, traceback):
        if self._counter is None:
            return False
        from gpufleet._safe import FAILURES, failed

        try:
            self._counter.__exit__(kind, error, traceback)
            if kind is None:
                self._done(float(self._counter.get_total_flops()))
        except FAILURES as problem:
            failed("measure_flops", problem)
        return False
