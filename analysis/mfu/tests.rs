//! Held against what others printed, and against what cannot be.
//!
//! docs/mfu.md is the table in words: the test fails when it is stale, and writes it anew when
//! GPUFLEET_BLESS=1 is set.

mod published;

use std::fmt::Write;

use gpufleet_telemetry::gpu_specs::{DataType, lookup};

use self::published::{Printed, ROWS, Row};
use super::*;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/mfu.md");

/// How far a computed value may be from the printed one.
const TOLERANCE: f64 = 0.02;

/// The row's value computed anew, in the unit it was printed in, and the printed one.
fn computed(row: &Row) -> (f64, f64) {
    let counted = (row.counted_rows * row.shape.hidden) as f64;
    let parameters = row
        .parameters
        .unwrap_or(row.shape.active_parameters() as f64 + counted);
    let each = row
        .shape
        .flops_per_token_of(parameters, row.convention, row.learning, row.context);
    let again = row
        .shape
        .recomputed(row.recomputed, row.convention, row.context);
    let tera = each * again * row.tokens / 1e12;
    match row.printed {
        Printed::Tera(printed) => (tera, printed),
        Printed::Percent(printed) => (100.0 * tera / row.peak, printed),
    }
}

fn off(row: &Row) -> f64 {
    let (found, printed) = computed(row);
    found / printed - 1.0
}

#[test]
fn more_than_20_published_rows_come_out_within_2_percent_and_the_others_say_why_not() {
    let mut hits = 0;
    for row in ROWS {
        let (found, printed) = computed(row);
        let is_hit = off(row).abs() <= TOLERANCE;
        hits += usize::from(is_hit);
        let text = format!("{}: {found:.2} computed, {printed} printed", row.name);
        assert_eq!(is_hit, row.misses.is_empty(), "{text}");
        let is_hfu = row.convention.kind() == Kind::Hfu || row.recomputed != Recomputed::Nothing;
        assert_eq!(is_hfu, row.kind == Kind::Hfu, "{text}");
    }
    assert!(hits >= 20, "{hits}");
    let misses = ROWS.len() - hits;
    assert!(misses < hits / 4, "{misses} of {}", ROWS.len());
}

fn reference() -> String {
    let hits = ROWS.iter().filter(|row| row.misses.is_empty()).count();
    let mut text = format!(
        "# MFU and HFU, held against what others printed

Made from `analysis/mfu/tests/published.rs`; do not edit. `GPUFLEET_BLESS=1 cargo test -p \
gpufleet-analysis published` writes it anew.

MFU is model FLOPs a second ÷ (GPUs × dense peak of the type used); HFU counts recomputation too. \
Conventions differ by more than most improvements, so a value never stands without its own. Each \
row is computed from the model's shape, the printed throughput and the number of GPUs, by the \
convention its source names. {hits} of {} rows come out within 2 %; the others say why not.

| run | convention | tokens/s a GPU | printed | computed | off | note |
|---|---|---|---|---|---|---|
",
        ROWS.len()
    );
    for row in ROWS {
        let (found, _) = computed(row);
        let unit = |value: f64| match row.printed {
            Printed::Tera(_) => format!("{value:.0} TFLOP/s"),
            Printed::Percent(_) => format!("{value:.1} %"),
        };
        let printed = match row.printed {
            Printed::Tera(printed) | Printed::Percent(printed) => printed,
        };
        let learning = match row.learning {
            Learning::All => "",
            Learning::Frozen => ", frozen weights 4N",
        };
        let misses = match row.misses {
            "" => String::new(),
            why => format!("**Misses:** {why}"),
        };
        let _ = writeln!(
            text,
            "| [{}]({}) | {} {}{learning} | {:.0} | {} | {} | {:+.1} % | {} |",
            row.name,
            row.source,
            row.kind.name(),
            row.convention.name(),
            row.tokens,
            unit(printed),
            unit(found),
            100.0 * off(row),
            [row.note, &misses].join(" ").trim(),
        );
    }
    text
}

#[test]
fn the_published_rows_stand_in_the_documentation() {
    let expected = reference();
    if std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1") {
        std::fs::write(PATH, &expected).expect("docs/mfu.md can be written");
    }
    let found = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        found == expected,
        "docs/mfu.md is stale, run with GPUFLEET_BLESS=1"
    );
}

fn peak(card: &str, data_type: DataType) -> Peak {
    Peak::of(lookup(card).expect("a known card"), data_type).expect("a known peak")
}

const H100: &str = "NVIDIA H100 80GB HBM3";

#[test]
fn one_throughput_is_half_of_one_peak_and_nearly_all_of_another() {
    for (data_type, percent, is_questioned) in [
        (DataType::Fp8Tensor, 46.9, false),
        (DataType::Bf16Tensor, 93.8, true),
    ] {
        let found =
            utilisation(Kind::Mfu, 928e12 * 8.0, 8, &peak(H100, data_type)).expect("possible");
        assert_eq!((found.ratio * 1_000.0).round() / 10.0, percent);
        assert_eq!(found.is_questioned, is_questioned);
        let sentence = found.sentence();
        assert!(
            sentence.contains(data_type.name()) && sentence.contains("dense"),
            "{sentence}"
        );
    }
}

#[test]
fn what_the_hardware_cannot_do_is_refused_with_what_may_be_wrong() {
    let bf16 = peak(H100, DataType::Bf16Tensor);
    let error = utilisation(Kind::Mfu, 1_200e12, 1, &bf16)
        .expect_err("impossible")
        .to_string();
    assert_eq!(
        error,
        "1200 TFLOP/s a GPU are 121 % of NVIDIA H100 80GB HBM3's bf16 peak (989): it would be 61 % \
         of the fp8 peak; else the number of GPUs, the tokens or the model's shape is wrong"
    );
    // A sparse peak would let this through.
    let fp8 = peak(H100, DataType::Fp8Tensor);
    let error = utilisation(Kind::Mfu, 3_000e12, 1, &fp8)
        .expect_err("impossible")
        .to_string();
    assert!(error.ends_with("or a sparse peak was meant"), "{error}");
    for (work, gpus) in [
        (0.0, 8),
        (-1.0, 8),
        (f64::NAN, 8),
        (f64::INFINITY, 8),
        (1e12, 0),
    ] {
        let found = utilisation(Kind::Mfu, work, gpus, &bf16);
        assert!(
            matches!(found, Err(Refused::NotPositive { .. })),
            "{work} {gpus}"
        );
    }
    let a100 = lookup("NVIDIA A100-SXM4-80GB").expect("a known card");
    let error = Peak::of(a100, DataType::Fp8Tensor)
        .expect_err("no such units")
        .to_string();
    assert!(error.starts_with("no fp8 peak is known"), "{error}");
}

#[test]
fn an_estimate_says_that_it_is_one() {
    let found = estimated(0.4, &peak(H100, DataType::Bf16Tensor)).expect("possible");
    assert_eq!(found.kind, Kind::Estimate);
    assert!(
        found.sentence().starts_with("estimated HFU 40.0 %"),
        "{}",
        found.sentence()
    );
    assert!(estimated(1.2, &peak(H100, DataType::Bf16Tensor)).is_err());
}

/// 2 layers, 4 heads of 8 in a width of 32, as many KV heads, a gated feed-forward part of 64.
const SMALL: ModelShape = ModelShape {
    layers: 2,
    hidden: 32,
    heads: 4,
    head_size: 8,
    kv_heads: 4,
    feed_forward: 64,
    is_gated: true,
    vocabulary: 100,
    active_experts: 1,
    experts: 1,
};

#[test]
fn each_convention_counts_what_its_formula_says() {
    let parameters = (2 * (4 * 32 * 32 + 3 * 32 * 64) + 100 * 32) as f64;
    let attention = (12 * 2 * 32 * 10) as f64;
    let of = |convention, learning| SMALL.flops_per_token(convention, learning, 10.0);
    for (convention, learning, expected) in [
        (
            Convention::Palm,
            Learning::All,
            6.0 * parameters + attention,
        ),
        (
            Convention::CausalHalf,
            Learning::All,
            6.0 * parameters + attention / 2.0,
        ),
        (
            Convention::WithoutAttention,
            Learning::All,
            6.0 * parameters,
        ),
        (
            Convention::Palm,
            Learning::Frozen,
            4.0 * parameters + attention,
        ),
    ] {
        assert_eq!(of(convention, learning), expected, "{}", convention.name());
    }
}

#[test]
fn shared_kv_heads_change_the_parameters_and_not_the_attention() {
    let shared = ModelShape {
        kv_heads: 1,
        ..SMALL
    };
    let attention = |shape: ModelShape| {
        let of = |convention| shape.flops_per_token(convention, Learning::All, 4_096.0);
        of(Convention::Palm) - of(Convention::WithoutAttention)
    };
    assert_eq!(attention(shared), attention(SMALL));
    let less = SMALL.active_parameters() - shared.active_parameters();
    assert_eq!(less, 2 * 2 * 32 * 3 * 8);
}

#[test]
fn of_experts_only_those_a_token_goes_through_count() {
    let experts = ModelShape {
        active_experts: 2,
        experts: 8,
        ..SMALL
    };
    let expert = 2 * 3 * 32 * 64;
    assert_eq!(
        experts.active_parameters() - SMALL.active_parameters(),
        expert
    );
    assert_eq!(
        experts.all_parameters() - SMALL.all_parameters(),
        7 * expert
    );
}

#[test]
fn packed_sequences_attend_within_themselves() {
    assert_eq!(packed_context(&[4_096]), 4_096.0);
    assert_eq!(packed_context(&[1_024; 4]), 1_024.0);
    assert_eq!(packed_context(&[3_000, 1_000]), 2_500.0);
    assert_eq!(packed_context(&[]), 0.0);
}

#[test]
fn recomputation_adds_a_third_at_most_and_nothing_to_what_includes_it() {
    let of = |what, convention| SMALL.recomputed(what, convention, 10.0);
    assert_eq!(of(Recomputed::Forward, Convention::Palm), 4.0 / 3.0);
    assert_eq!(of(Recomputed::Forward, Convention::Megatron2021), 1.0);
    assert_eq!(of(Recomputed::Nothing, Convention::Palm), 1.0);
    let attention = of(Recomputed::Attention, Convention::Palm);
    assert!(attention > 1.0 && attention < 4.0 / 3.0, "{attention}");
    assert_eq!(of(Recomputed::Attention, Convention::WithoutAttention), 1.0);
}
