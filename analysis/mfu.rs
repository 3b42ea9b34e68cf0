//! How much of what the GPUs could compute a training run asked for: MFU and HFU.
//!
//! MFU = model FLOPs a second ÷ (GPUs × dense peak of the type used). HFU counts recomputation too.
//! No number without its convention and its peak: 928 TFLOP/s on an H100 are 46.9 % of fp8 and
//! 93.8 % of bf16.
//!
//! FLOPs per token, N parameters in matrix products (the head, not the look-up of the input
//! embedding), L layers, H heads of size Q, T tokens of context:
//! ```text
//! PaLM, dense            6N + 12·L·H·Q·T       MFU; attention counted in full
//! causal half            6N +  6·L·H·Q·T       MFU; Megatron-Core today: half of it is masked
//! without attention      6N                    MFU; the older rule of thumb
//! Megatron 2021          96·L·h²·(1 + T/6h + V/16Lh)   HFU: it includes a recomputed forward pass
//! ```
//! KV heads shared by several query heads change N and not the attention. Of experts only those a
//! token goes through count. With frozen weights 6N becomes 4N. Packed sequences attend within
//! themselves: T is ΣLᵢ² ÷ ΣLᵢ. A recomputed forward pass makes HFU = MFU × 4/3.
//!
//! Refused with the reason: a value above 1, a peak that is not known, input that is no number.
//! Limits: `docs/mfu.md` holds this against what papers and repositories printed.

use gpufleet_telemetry::gpu_specs::{DataType, Spec};

/// Above this share of the peak a value is questioned: the best published runs stay below it.
pub const QUESTIONED_ABOVE: f64 = 0.80;

/// Hardware FLOPs per FLOP of the model where the whole forward pass is done again: four passes' worth for three.
pub const FORWARD_AGAIN: f64 = 4.0 / 3.0;

/// What a transformer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Size of one head. Where keys and values differ in size: the mean of both.
    pub head_size: u64,
    /// Heads of keys and values: as many as `heads`, or fewer (GQA), or 1 (MQA).
    pub kv_heads: u64,
    /// Width of the feed-forward part, of one expert where there are experts.
    pub feed_forward: u64,
    /// Whether the feed-forward part has a gate, which makes it three matrices.
    pub is_gated: bool,
    /// Rows of the embedding, as padded.
    pub vocabulary: u64,
    /// Experts that a token goes through, shared ones included; 1 without experts.
    pub active_experts: u64,
    /// Experts there are; 1 without experts.
    pub experts: u64,
}

/// How FLOPs are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Convention {
    /// 6N + 12·L·H·Q·T.
    Palm,
    /// 6N + 6·L·H·Q·T.
    CausalHalf,
    /// 6N.
    WithoutAttention,
    /// 96·L·h²·(1 + T/6h + V/16Lh), which includes recomputation.
    Megatron2021,
}

/// Which weights learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learning {
    /// All: a forward pass, and two backward.
    All,
    /// Few beside frozen ones (LoRA): no gradients of the frozen weights.
    Frozen,
}

/// What the backward pass computes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recomputed {
    /// Nothing: HFU is MFU.
    Nothing,
    /// The whole forward pass.
    Forward,
    /// The attention's products only.
    Attention,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Model FLOPs utilisation.
    Mfu,
    /// Hardware FLOPs utilisation.
    Hfu,
    /// An estimate of HFU from the time in which the tensor cores were active.
    Estimate,
}

/// A peak rate and whose it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    /// The card; `the run` where that states the peak itself.
    pub card: String,
    /// The type of the matrix products.
    pub data_type: DataType,
    /// Dense operations a second.
    pub flops_per_second: f64,
    /// Whether the run states it itself, because what it computes on is in no table.
    pub is_stated: bool,
    /// The same card's rates for other types, to say which would fit.
    others: Vec<(DataType, f64)>,
}

/// A share of the peak with everything that it means.
#[derive(Debug, Clone, PartialEq)]
pub struct Utilisation {
    /// What it is.
    pub kind: Kind,
    /// The share, above 0 and at most 1.
    pub ratio: f64,
    /// FLOPs a second of one GPU.
    pub flops_per_second: f64,
    /// Against which peak.
    pub peak: Peak,
    /// Whether it is too good to be taken without a question.
    pub is_questioned: bool,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The card's peak for this type is not known, or it has no such units.
    #[error("no {data_type} peak is known for `{card}`: add the card to the configuration")]
    NoPeak {
        /// The card.
        card: String,
        /// The type.
        data_type: &'static str,
    },
    /// There is nothing to divide by, or to divide.
    #[error("{what} is {value}, and has to be a number above 0")]
    NotPositive {
        /// Which input.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// More than the hardware can do.
    #[error(
        "{tera:.0} TFLOP/s a GPU are {percent:.0} % of {card}'s {data_type} peak ({peak_tera:.0}): {hint}"
    )]
    Impossible {
        /// What the input says.
        tera: f64,
        /// Of the peak.
        percent: f64,
        /// The card.
        card: String,
        /// The type.
        data_type: &'static str,
        /// Its peak.
        peak_tera: f64,
        /// What may be wrong.
        hint: String,
    },
}

impl ModelShape {
    /// Parameters of one layer that a token goes through (`active_experts`) or that there are.
    fn layer(&self, experts: u64) -> u64 {
        let query = self.heads * self.head_size;
        let attention = 2 * self.hidden * query + 2 * self.hidden * self.kv_heads * self.head_size;
        let matrices = if self.is_gated { 3 } else { 2 };
        attention + experts * matrices * self.hidden * self.feed_forward
    }

    /// N: parameters a token is multiplied with, the head included and the look-up of the input
    /// embedding not. Biases and norms are left out: they are no matrix products.
    pub fn active_parameters(&self) -> u64 {
        self.layers * self.layer(self.active_experts) + self.vocabulary * self.hidden
    }

    /// All parameters in matrices, every expert counted, embedding and head once each.
    pub fn all_parameters(&self) -> u64 {
        self.layers * self.layer(self.experts) + 2 * self.vocabulary * self.hidden
    }

    /// FLOPs of one token of a step, N by the shape. `context` is T: the sequence's length, or
    /// [`packed_context`].
    pub fn flops_per_token(&self, convention: Convention, learning: Learning, context: f64) -> f64 {
        let parameters = self.active_parameters() as f64;
        self.flops_per_token_of(parameters, convention, learning, context)
    }

    /// The same where N is known from elsewhere.
    pub fn flops_per_token_of(
        &self,
        parameters: f64,
        convention: Convention,
        learning: Learning,
        context: f64,
    ) -> f64 {
        let layers = self.layers as f64;
        let hidden = self.hidden as f64;
        let attention = 12.0 * layers * (self.heads * self.head_size) as f64 * context;
        let weights = match learning {
            Learning::All => 6.0 * parameters,
            Learning::Frozen => 4.0 * parameters,
        };
        match convention {
            Convention::Palm => weights + attention,
            Convention::CausalHalf => weights + attention / 2.0,
            Convention::WithoutAttention => weights,
            Convention::Megatron2021 => {
                let vocabulary = self.vocabulary as f64 / (16.0 * layers * hidden);
                96.0 * layers * hidden * hidden * (1.0 + context / (6.0 * hidden) + vocabulary)
            }
        }
    }

    /// What recomputation adds: hardware FLOPs per FLOP of the model, 1 to 4/3. Of a convention
    /// that already includes it: 1.
    pub fn recomputed(&self, what: Recomputed, convention: Convention, context: f64) -> f64 {
        let of = |convention| self.flops_per_token(convention, Learning::All, context);
        match (what, convention) {
            (Recomputed::Nothing, _) | (_, Convention::Megatron2021) => 1.0,
            (Recomputed::Forward, _) => FORWARD_AGAIN,
            (Recomputed::Attention, convention) => {
                let attention = of(convention) - of(Convention::WithoutAttention);
                1.0 + attention / 3.0 / of(convention)
            }
        }
    }
}

/// T of sequences packed together, each attending within itself: ΣLᵢ² ÷ ΣLᵢ; 0 of none.
pub fn packed_context(lengths: &[u32]) -> f64 {
    let sum: u64 = lengths.iter().map(|it| u64::from(*it)).sum();
    let squares: u128 = lengths
        .iter()
        .map(|it| u128::from(*it) * u128::from(*it))
        .sum();
    match sum {
        0 => 0.0,
        sum => squares as f64 / sum as f64,
    }
}

impl Convention {
    /// What it is called on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Palm => "PaLM: 6N + 12·L·H·Q·T",
            Self::CausalHalf => "causal half: 6N + 6·L·H·Q·T",
            Self::WithoutAttention => "without attention: 6N",
            Self::Megatron2021 => "Megatron 2021: 96·L·h²·(1 + T/6h + V/16Lh)",
        }
    }

    /// What comes out of it: MFU, or HFU where it includes recomputation.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Megatron2021 => Kind::Hfu,
            Self::Palm | Self::CausalHalf | Self::WithoutAttention => Kind::Mfu,
        }
    }
}

impl Kind {
    /// What it is called on the page.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mfu => "MFU",
            Self::Hfu => "HFU",
            Self::Estimate => "estimated HFU",
        }
    }
}

impl Peak {
    /// The dense peak of a card for a type. The table has no sparse ones.
    ///
    /// # Errors
    /// The card has no such units, or nobody says.
    pub fn of(spec: &Spec, data_type: DataType) -> Result<Self, Refused> {
        let flops_per_second = spec.peak(data_type).ok_or_else(|| Refused::NoPeak {
            card: spec.name.clone(),
            data_type: data_type.name(),
        })?;
        let others = DataType::ALL
            .into_iter()
            .filter_map(|it| Some((it, spec.peak(it)?)));
        Ok(Self {
            card: spec.name.clone(),
            data_type,
            flops_per_second,
            is_stated: false,
            others: others.collect(),
        })
    }

    /// One that a run states itself: dense operations a second of what one rank computes on.
    pub fn stated(flops_per_second: f64, data_type: DataType) -> Self {
        Self {
            card: "the run".to_owned(),
            data_type,
            flops_per_second,
            is_stated: true,
            others: Vec::new(),
        }
    }

    /// Whose it is and how much, in words.
    pub fn words(&self) -> String {
        let (card, data_type) = (&self.card, self.data_type.name());
        let giga = self.flops_per_second / 1e9;
        match self.is_stated {
            true => format!("{giga:.2} GFLOP/s of {data_type}, as the run states it"),
            false => format!("{card} {data_type} dense, {:.0} TFLOP/s", giga / 1e3),
        }
    }
}

/// The share of the peak that `flops_per_second` of `gpus` together are.
///
/// # Errors
/// Input that is not above 0, and a share above 1 with what may be wrong.
pub fn utilisation(
    kind: Kind,
    flops_per_second: f64,
    gpus: u32,
    peak: &Peak,
) -> Result<Utilisation, Refused> {
    positive("the work", flops_per_second)?;
    positive("the number of GPUs", f64::from(gpus))?;
    positive("the peak", peak.flops_per_second)?;
    let each = flops_per_second / f64::from(gpus);
    let ratio = each / peak.flops_per_second;
    if ratio > 1.0 {
        return Err(impossible(each, peak));
    }
    Ok(Utilisation {
        kind,
        ratio,
        flops_per_second: each,
        peak: peak.clone(),
        is_questioned: ratio > QUESTIONED_ABOVE,
    })
}

/// An estimate of HFU where the run does not say its FLOPs: the share of time in which the tensor
/// cores were active (GPM 5). An upper bound, because an active cycle need not be a full one.
///
/// # Errors
/// A share that is none.
pub fn estimated(tensor_active: f64, peak: &Peak) -> Result<Utilisation, Refused> {
    utilisation(
        Kind::Estimate,
        tensor_active * peak.flops_per_second,
        1,
        peak,
    )
}

fn positive(what: &'static str, value: f64) -> Result<(), Refused> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(Refused::NotPositive { what, value }),
    }
}

fn impossible(each: f64, peak: &Peak) -> Refused {
    let faster = peak.others.iter().filter(|(_, rate)| *rate >= each);
    let nearest = faster.min_by(|a, b| a.1.total_cmp(&b.1));
    let hint = match nearest {
        Some((data_type, rate)) => format!(
            "it would be {:.0} % of the {} peak; else the number of GPUs, the tokens or the model's shape is wrong",
            100.0 * each / rate,
            data_type.name()
        ),
        None => "the number of GPUs, the tokens or the model's shape is wrong, or a sparse peak was meant".to_owned(),
    };
    Refused::Impossible {
        tera: each / 1e12,
        percent: 100.0 * each / peak.flops_per_second,
        card: peak.card.clone(),
        data_type: peak.data_type.name(),
        peak_tera: peak.flops_per_second / 1e12,
        hint,
    }
}

impl Utilisation {
    /// One sentence with everything a reader needs to believe it.
    pub fn sentence(&self) -> String {
        let question = match self.is_questioned {
            true => " That is more than published runs reach: check the tokens and the type.",
            false => "",
        };
        format!(
            "{} {:.1} %: {:.0} TFLOP/s a GPU of {}'s dense {} peak of {:.0}.{question}",
            self.kind.name(),
            100.0 * self.ratio,
            self.flops_per_second / 1e12,
            self.peak.card,
            self.peak.data_type.name(),
            self.peak.flops_per_second / 1e12,
        )
    }
}

#[cfg(test)]
mod tests;
