//! Every reason and kind has its words.

use super::*;

#[test]
fn every_reason_says_what_is_the_case_and_what_fixes_it() {
    for reason in Missing::ALL {
        let why = missing(reason);
        assert!(!why.short.is_empty() && why.short.len() <= 32, "{reason}");
        assert_eq!(why.anchor, format!("missing-{reason}"));
        assert!(
            why.sentence.ends_with('.') && why.fix.ends_with('.'),
            "{reason}"
        );
    }
}

#[test]
fn states_are_told_apart_by_letter_and_by_class() {
    let looks: std::collections::BTreeSet<_> = State::ALL
        .map(|state| (look(state).letter, look(state).class))
        .into();
    let letters: std::collections::BTreeSet<_> = looks.iter().map(|it| it.0).collect();
    let classes: std::collections::BTreeSet<_> = looks.iter().map(|it| it.1).collect();
    assert_eq!((looks.len(), letters.len(), classes.len()), (10, 10, 10));
}

#[test]
fn the_order_has_every_state_once_and_not_observed_last() {
    let states: std::collections::BTreeSet<_> = ORDER.into();
    assert_eq!(states.len(), State::ALL.len());
    assert_eq!(ORDER.last(), Some(&State::Unobserved));
}

#[test]
fn every_reason_of_a_state_has_words() {
    for it in Reason::ALL {
        assert_eq!(reason(it).is_none(), it == Reason::Unknown, "{}", it.name());
        let anchor = reason(it).map_or("", |why| why.anchor);
        let own = format!("state-{}", it.name());
        assert!(
            anchor.is_empty() || anchor == own || anchor.starts_with("missing-"),
            "{anchor}"
        );
    }
}

#[test]
fn reasons_are_told_apart() {
    let shorts: std::collections::BTreeSet<_> =
        Missing::ALL.map(|reason| missing(reason).short).into();
    assert_eq!(shorts.len(), Missing::ALL.len());
}

#[test]
fn throttle_bits_are_named_and_unknown_bits_not_hidden() {
    for (bits, words) in [
        (0, "none"),
        (0x1, "none"),
        (0x5, "power cap"),
        (0x60, "heat (software), heat (hardware)"),
        (0x1004, "power cap, bits 0x1000"),
        (0x8000, "bits 0x8000"),
    ] {
        assert_eq!(throttle(bits), words);
    }
}

#[test]
fn every_throttle_bit_and_recovery_action_of_the_driver_is_named() {
    let facts = include_str!("../../telemetry/catalog/driver_facts.txt");
    let rows = |kind: &'static str| {
        let line = move |line: &'static str| line.strip_prefix(kind)?.split_once(' ');
        facts.lines().filter_map(line)
    };
    for (bit, words) in rows("throttle 0x") {
        let bit = u64::from_str_radix(bit, 16).expect("a bit");
        assert_eq!(throttle(bit), words, "{bit:#x}");
    }
    let actions: Vec<u64> = rows("action ")
        .map(|(code, _)| code.parse().expect("a code"))
        .collect();
    let named = actions.iter().map(|code| recovery_action(*code));
    let named: std::collections::HashSet<_> = named.collect();
    assert_eq!((named.len(), rows("throttle 0x").count()), (5, 9));
    assert!(!named.contains(recovery_action(5)), "5 is not known");
}

#[test]
fn only_live_data_goes_without_a_watermark() {
    assert_eq!(watermark(Origin::Live), None);
    assert_eq!(watermark(Origin::Recorded), Some("RECORDED"));
    assert_eq!(watermark(Origin::Simulated), Some("SIMULATED"));
}
