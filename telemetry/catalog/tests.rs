//! The rules that every metric keeps.

mod offered;

mod reference;

use std::collections::HashMap;

use super::*;

/// The rooms of the numbers: first, last, and how the names of the room begin.
const NUMBERS: [(u16, u16, &str); 8] = [
    (1, 9, "gpufleet_gpu_"),
    (10, 199, "gpufleet_gpu_"),
    (200, 249, "gpufleet_gpu_"),
    (300, 399, "gpufleet_node_"),
    (400, 499, "gpufleet_serving_"),
    (500, 599, "gpufleet_agent_"),
    (600, 699, "gpufleet_server_"),
    (700, 799, "gpufleet_training_"),
];

#[test]
fn numbers_names_and_dcgm_names_belong_to_one_metric_each() {
    let mut seen = HashMap::new();
    for metric in all() {
        let dcgm = metric.dcgm.map(|dcgm| dcgm.name.to_owned());
        let keys = [
            Some(metric.id.0.to_string()),
            Some(metric.name.to_owned()),
            dcgm,
        ];
        for key in keys.into_iter().flatten() {
            let before = seen.insert(key.clone(), metric.name);
            assert_eq!(before, None, "{key} is also {}", metric.name);
        }
    }
}

#[test]
fn a_number_lies_in_the_room_of_its_subject() {
    for metric in all() {
        let number = metric.id.0;
        let room = NUMBERS
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&number));
        let (first, _, prefix) = room.expect("every number lies in a room");
        assert!(metric.name.starts_with(prefix), "{number} {}", metric.name);
        let is_evidence = metric.kind == Kind::SecondBits;
        assert_eq!(is_evidence, *first == 1, "{}", metric.name);
        let is_gpu_part = metric.resource == ResourceKind::Gpu && metric.part.is_some();
        // XID is older than the room of the parts.
        if number != 82 {
            assert_eq!(is_gpu_part, *first == 200, "{}", metric.name);
        }
    }
}

#[test]
fn a_name_ends_in_its_unit_and_a_counter_in_total() {
    for metric in all() {
        let name = metric.name;
        let is_plain = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_');
        assert!(name.chars().all(is_plain), "{name}");
        // `promtool check metrics` wants base units wherever a name has one.
        for word in [
            "bits",
            "hours",
            "minutes",
            "days",
            "milliseconds",
            "megabytes",
        ] {
            assert!(!name.split('_').any(|it| it == word), "{name} has {word}");
        }
        let total = name.strip_suffix("_total");
        assert_eq!(total.is_some(), metric.kind == Kind::Counter, "{name}");
        let bare = total.unwrap_or(name);
        let ends_in = |word: &str| bare.ends_with(&format!("_{word}"));
        match (metric.kind, metric.unit.suffix()) {
            (Kind::SecondBits, _) => assert!(ends_in("mask"), "{name}"),
            (_, Some(unit)) => assert!(ends_in(unit), "{name} does not end in {unit}"),
            (_, None) => {
                for word in "watts joules celsius hertz bytes seconds ratio flag code count \
                             sum bucket info percent"
                    .split(' ')
                {
                    assert!(!ends_in(word), "{name} ends in {word}");
                }
            }
        }
    }
}

#[test]
fn help_is_whole_sentences() {
    for metric in all() {
        let first = metric.help.chars().next();
        let is_whole = first.is_some_and(|it| it.is_uppercase()) && metric.help.ends_with('.');
        assert!(is_whole, "{}: {}", metric.name, metric.help);
    }
}

#[test]
fn a_metric_is_found_by_its_number_and_by_its_name() {
    for metric in all() {
        assert_eq!(by_id(metric.id), Some(metric));
        assert_eq!(by_name(metric.name), Some(metric));
    }
    assert_eq!(by_id(MetricId(0)), None);
    assert_eq!(by_name("gpufleet_gpu_power"), None);
}

#[test]
fn only_gauges_carry_a_maximum_and_only_gpu_metrics_have_shares() {
    for metric in all() {
        assert!(
            !metric.with_max || metric.kind == Kind::Gauge,
            "{}",
            metric.name
        );
        let is_gpu = metric.resource == ResourceKind::Gpu;
        assert!(is_gpu || !gpu::shares_have(metric), "{}", metric.name);
    }
}
