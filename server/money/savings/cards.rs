//! Cards that one could have instead: what the price book calls them, what NVML does, and what one costs.
//!
//! Limits: cards that are rented with whole machines. GPUs that are added to a host (N1) are in no list, because
//! their host has a price of its own; nor are parts of a card (MIG, an eighth of an RTX PRO 6000).

use gpufleet_analysis::price_book::{Ask, Basis};
use gpufleet_analysis::right_size::Card;
use gpufleet_telemetry::gpu_specs::{DataType, Spec, Specs};

use crate::money::Terms;

/// The book's name of a card and NVML's.
const CARDS: [(&str, &str); 7] = [
    ("nvidia-l4", "NVIDIA L4"),
    (
        "nvidia-rtx-pro-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    ),
    ("nvidia-tesla-a100", "NVIDIA A100-SXM4-40GB"),
    ("nvidia-a100-80gb", "NVIDIA A100-SXM4-80GB"),
    ("nvidia-h100-80gb", "NVIDIA H100 80GB HBM3"),
    ("nvidia-h200-141gb", "NVIDIA H200"),
    ("nvidia-b200", "NVIDIA B200"),
];

/// Eighths of a whole card.
const WHOLE: u32 = 8;

/// Seconds of a day.
const DAY_S: i128 = 86_400;

/// A card by its figures, at this price a second (nano-units); none where one of them is not known.
pub(super) fn card(spec: &Spec, second: i64) -> Option<Card> {
    let flops = [DataType::Bf16Tensor, DataType::Fp16Tensor];
    let flops = flops.into_iter().find_map(|it| spec.peak(it))?;
    Some(Card {
        name: spec.name.clone(),
        memory: spec.memory_bytes?,
        flops,
        bandwidth: spec.memory_bytes_per_second,
        has_links: spec.nvlink_bytes_per_second.is_some(),
        day_cost: i128::from(second) * DAY_S,
    })
}

/// Every card that can be had in a region on these terms at a moment, each in its cheapest machine.
pub(super) fn to_be_had(
    terms: &Terms,
    specs: &Specs,
    (region, basis): (&str, Basis),
    at_ms: i64,
) -> Vec<Card> {
    let mut found = Vec::new();
    for (model, name) in CARDS {
        let machines = terms.book.machines();
        let whole = machines.filter(|(_, it)| it.gpu_model == model && it.gpu_eighths >= WHOLE);
        let second = whole.filter_map(|(machine_type, it)| {
            let ask = Ask {
                machine_type,
                region,
                gpu_model: model,
                gpus: it.gpu_eighths / WHOLE,
                basis,
                from_ms: at_ms,
                until_ms: at_ms + 1,
            };
            terms.book.gpu_second(&ask).ok()
        });
        let spec = specs.lookup(name);
        found.extend(second.min().zip(spec).and_then(|(it, spec)| card(spec, it)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::terms::Sources;

    #[test]
    fn every_card_of_the_list_is_known_to_the_book_and_to_the_table_of_peaks() {
        let terms = Terms::of(Sources::default());
        let specs = Specs::default();
        for (model, name) in CARDS {
            assert!(
                terms.book.machines().any(|it| it.1.gpu_model == model),
                "{model}"
            );
            let spec = specs.lookup(name).expect(name);
            assert!(card(spec, 1).is_some(), "{name}");
        }
        let at = gpufleet_analysis::table::moment("2026-10-01").expect("a date");
        let had = to_be_had(&terms, &specs, ("us-central1", Basis::OnDemand), at);
        let cost = |name: &str| had.iter().find(|it| it.name == name).map(|it| it.day_cost);
        let (l4, h100) = (cost("NVIDIA L4"), cost("NVIDIA H100 80GB HBM3"));
        assert!(l4.is_some() && l4 < h100, "{had:?}");
        assert!(to_be_had(&terms, &specs, ("nowhere", Basis::OnDemand), at).is_empty());
    }
}
