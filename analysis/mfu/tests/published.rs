//! What papers and repositories printed, with what it takes to compute it again.
//!
//! A row's convention, peak and way to count parameters are what its source says; where the source
//! does not say, the row says so in its note. Nothing is chosen because it fits: rows that do not
//! come out within 2 % stand in the table with the reason.
//!
//! Longer than 500 lines because it is one table, each row with its source beside it.

use super::super::{Convention, Kind, Learning, ModelShape, Recomputed};

/// What a source printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Printed {
    /// Percent of the peak.
    Percent(f64),
    /// TFLOP/s of one GPU.
    Tera(f64),
}

/// One printed value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    pub(super) shape: ModelShape,
    /// Parameters in matrix products, where the shape cannot say them.
    pub(super) parameters: Option<f64>,
    /// Rows of an input embedding or of positions that the source counts into N.
    pub(super) counted_rows: u64,
    pub(super) learning: Learning,
    pub(super) convention: Convention,
    pub(super) recomputed: Recomputed,
    /// Tokens a second of one GPU.
    pub(super) tokens: f64,
    pub(super) context: f64,
    /// The peak that the source divides by, TFLOP/s; 0 where it prints TFLOP/s.
    pub(super) peak: f64,
    pub(super) printed: Printed,
    pub(super) kind: Kind,
    /// What else the reader needs to know.
    pub(super) note: &'static str,
    /// Why it misses; empty of one that does not.
    pub(super) misses: &'static str,
}

/// A dense model with as many KV heads as heads, heads of `hidden / heads`, a feed-forward part of
/// four times the width.
const fn dense(layers: u64, hidden: u64, heads: u64, vocabulary: u64) -> ModelShape {
    ModelShape {
        layers,
        hidden,
        heads,
        head_size: hidden / heads,
        kv_heads: heads,
        feed_forward: 4 * hidden,
        is_gated: false,
        vocabulary,
        active_experts: 1,
        experts: 1,
    }
}

const fn gated(mut shape: ModelShape, kv_heads: u64, feed_forward: u64) -> ModelShape {
    shape.kv_heads = kv_heads;
    shape.feed_forward = feed_forward;
    shape.is_gated = true;
    shape
}

const LLAMA2_7B: ModelShape = gated(dense(32, 4_096, 32, 32_000), 32, 11_008);
const LLAMA2_13B: ModelShape = gated(dense(40, 5_120, 40, 32_000), 40, 13_824);
const LLAMA2_70B: ModelShape = gated(dense(80, 8_192, 64, 32_000), 8, 28_672);
const LLAMA3_8B: ModelShape = gated(dense(32, 4_096, 32, 128_256), 8, 14_336);
const LLAMA3_70B: ModelShape = gated(dense(80, 8_192, 64, 128_256), 8, 28_672);
const GPT3_175B: ModelShape = dense(96, 12_288, 96, 51_200);
const MT_NLG: ModelShape = dense(105, 20_480, 128, 50_257);
const PALM: ModelShape = {
    let mut shape = gated(dense(118, 18_432, 48, 256_000), 1, 73_728);
    shape.head_size = 256;
    shape
};
/// Multi-head latent attention: keys of 192 and values of 128, 160 in the mean.
const DEEPSEEK_V3: ModelShape = {
    let mut shape = gated(dense(61, 7_168, 128, 129_280), 128, 2_048);
    shape.head_size = 160;
    shape.active_experts = 9;
    shape.experts = 257;
    shape
};

const FOUNDRY: &str =
    "https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md";
const NEMO: &str = "https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/performance/performance_summary.html";
const TITAN: &str = "https://github.com/pytorch/torchtitan/blob/041336434916bdc0f88c1f89fda176fd3c2092e4/docs/performance.md";
const PALM_PAPER: &str = "https://arxiv.org/abs/2204.02311";
const MEGATRON_2021: &str = "https://arxiv.org/abs/2104.04473";
const MT_NLG_PAPER: &str = "https://arxiv.org/abs/2201.11990";
const DEEPSEEK_PAPER: &str = "https://arxiv.org/abs/2505.09343";

const BASE: Row = Row {
    name: "",
    source: "",
    shape: LLAMA2_7B,
    parameters: None,
    counted_rows: 0,
    learning: Learning::All,
    convention: Convention::Palm,
    recomputed: Recomputed::Nothing,
    tokens: 0.0,
    context: 0.0,
    peak: 0.0,
    printed: Printed::Percent(0.0),
    kind: Kind::Mfu,
    note: "",
    misses: "",
};

/// An MPT of LLM Foundry: the vocabulary is padded to 50,368, head and embedding are one matrix,
/// and N counts the learned positions.
const fn mpt(
    name: &'static str,
    shape: ModelShape,
    context: u64,
    tokens: f64,
    peak: f64,
    percent: f64,
) -> Row {
    Row {
        name,
        source: FOUNDRY,
        shape,
        counted_rows: context,
        tokens,
        context: context as f64,
        peak,
        printed: Printed::Percent(percent),
        ..BASE
    }
}

const fn mpt_shape(layers: u64, hidden: u64) -> ModelShape {
    dense(layers, hidden, hidden / 64, 50_368)
}

/// A row of NeMo: TFLOP/s of the model, attention in full.
const fn nemo(name: &'static str, shape: ModelShape, context: f64, tokens: f64, tera: f64) -> Row {
    Row {
        name,
        source: NEMO,
        shape,
        tokens,
        context,
        printed: Printed::Tera(tera),
        note: "Convention from the repository's nemo/utils/flops_formulas.py.",
        ..BASE
    }
}

/// Fine-tuning in NeMo: pieces of a question's length packed together.
const fn nemo_tuned(
    name: &'static str,
    shape: ModelShape,
    learning: Learning,
    tokens: f64,
    tera: f64,
) -> Row {
    Row {
        learning,
        convention: Convention::WithoutAttention,
        note: "The pieces that are packed are short and their lengths not printed: attention is left out.",
        ..nemo(name, shape, 0.0, tokens, tera)
    }
}

const fn titan(
    name: &'static str,
    shape: ModelShape,
    context: f64,
    tokens: f64,
    percent: f64,
) -> Row {
    Row {
        name,
        source: TITAN,
        shape,
        tokens,
        context,
        peak: 312.0,
        printed: Printed::Percent(percent),
        note: "Convention from the repository's get_num_flop_per_token.",
        ..BASE
    }
}

/// MT-NLG: 1,920 sequences of 2,048 tokens a step.
const fn mt_nlg(name: &'static str, gpus: f64, seconds: f64, tera: f64) -> Row {
    Row {
        name,
        source: MT_NLG_PAPER,
        shape: MT_NLG,
        convention: Convention::Megatron2021,
        tokens: 1_920.0 * 2_048.0 / seconds / gpus,
        context: 2_048.0,
        printed: Printed::Tera(tera),
        kind: Kind::Hfu,
        ..BASE
    }
}

/// A training time that the Megatron paper foresees from its throughput.
const fn megatron(
    name: &'static str,
    shape: ModelShape,
    tokens: f64,
    days: f64,
    gpus: f64,
    tera: f64,
) -> Row {
    Row {
        name,
        source: MEGATRON_2021,
        shape,
        convention: Convention::Megatron2021,
        tokens: tokens / (days * 86_400.0) / gpus,
        context: 2_048.0,
        printed: Printed::Tera(tera),
        kind: Kind::Hfu,
        note: "Throughput from the printed days.",
        ..BASE
    }
}

const TITAN_8B: &str = "The printed value comes out when the rows of the input embedding count as \
    matrix products (8.03 instead of 7.50 billion); the code of the repository leaves them out.";

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "PaLM 540B, 6,144 TPU v4, with attention",
        source: PALM_PAPER,
        shape: PALM,
        tokens: 238_300.0 / 6_144.0,
        context: 2_048.0,
        peak: 275.0,
        printed: Printed::Percent(46.2),
        ..BASE
    },
    Row {
        name: "PaLM 540B, 6,144 TPU v4, without attention",
        source: PALM_PAPER,
        shape: PALM,
        convention: Convention::WithoutAttention,
        tokens: 238_300.0 / 6_144.0,
        context: 2_048.0,
        peak: 275.0,
        printed: Printed::Percent(45.7),
        ..BASE
    },
    Row {
        name: "PaLM 540B, 6,144 TPU v4, HFU",
        source: PALM_PAPER,
        shape: PALM,
        recomputed: Recomputed::Forward,
        tokens: 238_300.0 / 6_144.0,
        context: 2_048.0,
        peak: 275.0,
        printed: Printed::Percent(57.8),
        kind: Kind::Hfu,
        misses: "Computed with the whole forward pass done again (4/3); PaLM did only a part of it again (1.25), and says no more of which.",
        ..BASE
    },
    Row {
        name: "MT-NLG 530B, 2,240 A100, with attention (PaLM's table)",
        source: PALM_PAPER,
        shape: MT_NLG,
        tokens: 65_430.0 / 2_240.0,
        context: 2_048.0,
        peak: 312.0,
        printed: Printed::Percent(30.2),
        ..BASE
    },
    Row {
        name: "MT-NLG 530B, 2,240 A100, without attention (PaLM's table)",
        source: PALM_PAPER,
        shape: MT_NLG,
        convention: Convention::WithoutAttention,
        tokens: 65_430.0 / 2_240.0,
        context: 2_048.0,
        peak: 312.0,
        printed: Printed::Percent(29.7),
        ..BASE
    },
    Row {
        name: "GPT-3 175B, V100 (PaLM's table)",
        source: PALM_PAPER,
        shape: dense(96, 12_288, 96, 50_257),
        tokens: 24.6e12 / (6.0 * 175e9),
        context: 2_048.0,
        peak: 125.0,
        printed: Printed::Percent(21.3),
        note: "Tokens from the printed 24.6 TFLOP/s without attention.",
        misses: "24.6 of a V100's 125 TFLOP/s are 19.7 %, and attention adds 3 %: which peak the paper divided by is not printed.",
        ..BASE
    },
    Row {
        name: "Gopher 280B, 4,096 TPU v3 (PaLM's table)",
        source: PALM_PAPER,
        shape: dense(80, 16_384, 128, 32_000),
        parameters: Some(280e9),
        tokens: 0.0152 * 6e6 / 4_096.0,
        context: 2_048.0,
        peak: 123.0,
        printed: Printed::Percent(32.5),
        note: "0.0152 steps a second, batches of \"6M\" tokens.",
        misses: "The batch is printed rounded: 3,072 sequences of 2,048 tokens would be 6.29 million and give 32.5 %.",
        ..BASE
    },
    mt_nlg(
        "MT-NLG 530B, 2,240 A100, 60.1 s a step",
        2_240.0,
        60.1,
        126.0,
    ),
    mt_nlg(
        "MT-NLG 530B, 2,800 A100, 50.2 s a step",
        2_800.0,
        50.2,
        121.0,
    ),
    mt_nlg(
        "MT-NLG 530B, 3,360 A100, 44.4 s a step",
        3_360.0,
        44.4,
        113.0,
    ),
    megatron(
        "Megatron-LM 1T, 3,072 A100, 84 days",
        dense(128, 25_600, 160, 51_200),
        450e9,
        84.0,
        3_072.0,
        163.0,
    ),
    Row {
        misses: "The paper foresees the days by 8·N a token with N = 175 billion, which leaves attention and vocabulary out.",
        ..megatron(
            "Megatron-LM 175B, 1,024 A100, 34 days",
            GPT3_175B,
            300e9,
            34.0,
            1_024.0,
            140.0,
        )
    },
    mpt(
        "MPT 70B, 64 H100, bf16",
        mpt_shape(80, 8_192),
        2_048,
        1_039.0,
        989.0,
        42.57,
    ),
    mpt(
        "MPT 30B, 8 H100, bf16, 8,192 tokens",
        mpt_shape(48, 7_168),
        8_192,
        1_384.0,
        989.0,
        29.92,
    ),
    mpt(
        "MPT 13B, 8 H100, bf16, 4,096 tokens",
        mpt_shape(40, 5_120),
        4_096,
        4_717.0,
        989.0,
        41.6,
    ),
    mpt(
        "MPT 7B, 8 H100, bf16",
        mpt_shape(32, 4_096),
        2_048,
        10_643.0,
        989.0,
        46.44,
    ),
    mpt(
        "MPT 7B, 8 H100, bf16, 65,536 tokens",
        mpt_shape(32, 4_096),
        65_536,
        1_956.0,
        989.0,
        28.59,
    ),
    mpt(
        "MPT 3B, 16 H100, bf16",
        mpt_shape(32, 2_560),
        2_048,
        24_142.0,
        989.0,
        43.73,
    ),
    mpt(
        "MPT 3B, 8 H100, fp8",
        mpt_shape(32, 2_560),
        2_048,
        30_586.0,
        1_979.0,
        27.7,
    ),
    mpt(
        "MPT 1B, 8 H100, fp8, 512 tokens",
        mpt_shape(24, 2_048),
        512,
        70_315.0,
        1_979.0,
        29.06,
    ),
    mpt(
        "MPT 7B, 8 A100-80GB, bf16",
        mpt_shape(32, 4_096),
        2_048,
        4_641.0,
        312.0,
        64.23,
    ),
    mpt(
        "MPT 13B, 8 A100-80GB, bf16, 8,192 tokens",
        mpt_shape(40, 5_120),
        8_192,
        1_795.0,
        312.0,
        56.07,
    ),
    mpt(
        "MPT 1B, 8 A100-80GB, bf16, 32,768 tokens",
        mpt_shape(24, 2_048),
        32_768,
        6_275.0,
        312.0,
        55.52,
    ),
    mpt(
        "MPT 125M, 8 A100-80GB, bf16, 65,536 tokens",
        mpt_shape(12, 768),
        65_536,
        20_368.0,
        312.0,
        54.13,
    ),
    mpt(
        "MPT 70B, 128 A100-40GB, bf16",
        mpt_shape(80, 8_192),
        2_048,
        376.0,
        312.0,
        48.91,
    ),
    Row {
        recomputed: Recomputed::Forward,
        kind: Kind::Hfu,
        ..mpt(
            "MPT 30B, 8 A100-80GB, bf16, HFU",
            mpt_shape(48, 7_168),
            2_048,
            916.0,
            312.0,
            73.74,
        )
    },
    nemo(
        "GPT-3 5B, 64 H100",
        dense(24, 4_096, 32, 51_200),
        2_048.0,
        23_406.0,
        765.0,
    ),
    nemo(
        "GPT-3 20B, 64 H100",
        dense(44, 6_144, 48, 51_200),
        2_048.0,
        5_851.0,
        750.0,
    ),
    nemo("GPT-3 175B, 128 H100", GPT3_175B, 2_048.0, 716.0, 771.0),
    nemo("GPT-3 175B, 512 H100", GPT3_175B, 2_048.0, 825.0, 888.0),
    nemo("Llama 2 7B, 8 H100", LLAMA2_7B, 4_096.0, 16_934.0, 780.0),
    nemo("Llama 2 13B, 16 H100", LLAMA2_13B, 4_096.0, 8_715.0, 760.0),
    nemo("Llama 2 70B, 64 H100", LLAMA2_70B, 4_096.0, 1_728.0, 768.0),
    nemo("Llama 3 8B, 8 H100", LLAMA3_8B, 8_192.0, 12_273.0, 711.0),
    nemo("Llama 3 70B, 64 H100", LLAMA3_70B, 8_192.0, 1_524.0, 734.0),
    nemo_tuned(
        "Llama 2 7B fine-tuned, 8 H100",
        LLAMA2_7B,
        Learning::All,
        16_891.0,
        673.0,
    ),
    nemo_tuned(
        "Llama 2 13B fine-tuned, 8 H100",
        LLAMA2_13B,
        Learning::All,
        10_176.0,
        787.0,
    ),
    nemo_tuned(
        "Llama 2 70B fine-tuned, 16 H100",
        LLAMA2_70B,
        Learning::All,
        1_816.0,
        749.0,
    ),
    nemo_tuned(
        "Llama 2 7B LoRA, 8 H100",
        LLAMA2_7B,
        Learning::Frozen,
        24_824.0,
        663.0,
    ),
    nemo_tuned(
        "Llama 2 13B LoRA, 8 H100",
        LLAMA2_13B,
        Learning::Frozen,
        14_629.0,
        757.0,
    ),
    nemo_tuned(
        "Llama 2 70B LoRA, 8 H100",
        LLAMA2_70B,
        Learning::Frozen,
        2_621.0,
        722.0,
    ),
    Row {
        misses: TITAN_8B,
        ..titan(
            "Llama 3 8B, 64 A100, selective layer",
            LLAMA3_8B,
            8_192.0,
            2_904.0,
            56.8,
        )
    },
    Row {
        misses: TITAN_8B,
        ..titan(
            "Llama 3 8B, 64 A100, selective op",
            LLAMA3_8B,
            8_192.0,
            2_973.0,
            58.2,
        )
    },
    titan("Llama 3 70B, 64 A100", LLAMA3_70B, 8_192.0, 331.0, 51.7),
    titan(
        "Llama 2 13B, 64 A100, no recomputation",
        LLAMA2_13B,
        4_096.0,
        2_162.0,
        61.1,
    ),
    titan(
        "Llama 2 13B, 64 A100, selective layer",
        LLAMA2_13B,
        4_096.0,
        1_914.0,
        54.1,
    ),
    titan(
        "Llama 2 70B, 64 A100, selective op",
        LLAMA2_70B,
        4_096.0,
        355.0,
        50.8,
    ),
    Row {
        name: "DeepSeek-V3, 2,048 H800, causal half",
        source: DEEPSEEK_PAPER,
        shape: DEEPSEEK_V3,
        parameters: Some(37e9),
        convention: Convention::CausalHalf,
        tokens: 272.80e9 / 86_400.0 / 2_048.0,
        context: 4_096.0,
        peak: 989.4,
        printed: Printed::Percent(38.94),
        note: "37 billion active parameters as printed.",
        ..BASE
    },
];
