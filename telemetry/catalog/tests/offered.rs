//! What NVIDIA's driver and exporter offer, as far as the product's authors know it, held against
//! what is read: fails on anything that is neither read nor explained.
//!
//! From the headers of NVML 13.0 and the counters of dcgm-exporter 4.8.

use std::collections::BTreeSet;

use crate::catalog::not_read::{LABELS, NOT_READ, Offer};
use crate::catalog::sources::{self, Source};
use crate::catalog::{MetricId, all, gpu};

/// What they offer, with its source.
const FACTS: &str = include_str!("../driver_facts.txt");

/// The ids of all lines of a kind.
fn of_kind(kind: &str) -> impl Iterator<Item = &'static str> {
    FACTS
        .lines()
        .filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '))
        .flat_map(str::split_whitespace)
}

/// `7` and `3-6` as numbers.
fn range(id: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = id.split_once('-').unwrap_or((id, id));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn ids(ranges: &[(u32, u32)], kind: &str) -> impl Iterator<Item = String> {
    ranges
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .map(move |id| format!("{kind} {id}"))
}

/// Everything offered, each by kind and id.
fn offered() -> BTreeSet<String> {
    let numbered = |kind: &'static str| {
        let ranges = of_kind(kind).map(|id| range(id).expect("a number or a range"));
        ranges.flatten().map(move |id| format!("{kind} {id}"))
    };
    let mut offered: BTreeSet<String> = numbered("field").chain(numbered("gpm")).collect();
    offered.extend(of_kind("event").map(|bit| format!("event {bit}")));
    offered.extend(
        of_kind("function")
            .chain(of_kind("counter"))
            .map(str::to_owned),
    );
    offered
}

/// What the driver can say beside that: throttle bits, return codes, recovery actions, XIDs.
fn said() -> BTreeSet<String> {
    let kinds = ["throttle", "code", "action", "xid"];
    let of_kind = |kind: &'static str| {
        let ids = of_kind(kind).filter_map(|id| match id.strip_prefix("0x") {
            Some(_) => Some(vec![id.to_owned()]),
            None => Some(range(id)?.map(|id| id.to_string()).collect()),
        });
        ids.flatten().map(move |id| format!("{kind} {id}"))
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

/// Everything that is read for a metric, called for something else, or a label.
fn read() -> BTreeSet<String> {
    let mut read = BTreeSet::new();
    for metric in all() {
        for source in sources::of(metric.id) {
            read.extend(match source {
                Source::Field(id) => Some(format!("field {id}")),
                Source::Gpm(id) => Some(format!("gpm {id}")),
                Source::Event(bit) => Some(format!("event {bit:#x}")),
                Source::Function(name) => Some((*name).to_owned()),
                _ => None,
            });
        }
        read.extend(metric.dcgm.map(|it| it.name.to_owned()));
    }
    read.insert("nvmlDeviceGetFieldValues".to_owned());
    read.extend(sources::CALLED.iter().map(|(name, _)| (*name).to_owned()));
    read.extend(
        sources::EVENTS
            .iter()
            .map(|(bit, _)| format!("event {bit:#x}")),
    );
    read.extend(LABELS.iter().map(|(name, _)| (*name).to_owned()));
    read
}

/// Everything that is explained; each at most once.
fn explained() -> BTreeSet<String> {
    let mut explained = BTreeSet::new();
    for (offer, why) in NOT_READ {
        assert!(why.ends_with('.') && why.len() > 20, "{offer:?}: {why}");
        let these: Vec<String> = match offer {
            Offer::Fields(first, last) => ids(&[(*first, *last)], "field").collect(),
            Offer::Gpm(first, last) => ids(&[(*first, *last)], "gpm").collect(),
            Offer::Event(bit) => vec![format!("event {bit:#x}")],
            Offer::Function(name) | Offer::Dcgm(name) => vec![(*name).to_owned()],
        };
        for this in these {
            assert!(explained.insert(this.clone()), "{this} is explained twice");
        }
    }
    explained
}

#[test]
fn everything_offered_is_read_or_explained_and_never_both() {
    let (offered, read, explained) = (offered(), read(), explained());
    let forgotten: Vec<_> = offered
        .iter()
        .filter(|it| !read.contains(*it) && !explained.contains(*it))
        .collect();
    assert!(
        forgotten.is_empty(),
        "neither read nor in the not-read table: {forgotten:?}"
    );
    let both: Vec<_> = read.intersection(&explained).collect();
    assert!(both.is_empty(), "read and in the not-read table: {both:?}");
    let unheard: Vec<_> = read
        .union(&explained)
        .filter(|it| !offered.contains(*it))
        .collect();
    assert!(
        unheard.is_empty(),
        "not in the list of what is offered: {unheard:?}"
    );
}

#[test]
fn every_metric_has_a_source() {
    for metric in all() {
        assert!(
            !sources::of(metric.id).is_empty(),
            "{} is read nowhere",
            metric.name
        );
    }
    assert_eq!(sources::of(MetricId(0)), []);
    assert_eq!(sources::of(gpu::POWER_INSTANT.id), [Source::Field(186)]);
}

/// Every id and symbol that a text about NVML, GPM and DCGM names: what the lines about field ids
/// and GPM ids count up, and every word that is a function's or a counter's name.
fn named_in(text: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let mut in_xids = false;
    let bits_of = |list: &str, kind: &str| -> Vec<String> {
        let bits = list
            .split([' ', ','])
            .filter_map(|it| it.strip_prefix("0x"));
        let bits = bits.filter_map(|it| u32::from_str_radix(it, 16).ok());
        bits.map(|bit| format!("{kind} {bit:#x}")).collect()
    };
    // `1 reset GPU, 2 reboot node`.
    let explained = |list: &str, kind: &str| -> Vec<String> {
        let first_word = |it: &str| it.split_whitespace().next()?.parse::<u32>().ok();
        let ids = list.split(',').filter_map(first_word);
        ids.map(|id| format!("{kind} {id}")).collect()
    };
    let numbers_of = |line: &str, kind: &str| -> Vec<String> {
        let mut ids = Vec::new();
        let words = line
            .split([' ', ',', ';', '/'])
            .map(|it| it.trim_end_matches([':', '.']));
        for word in words {
            let ends = word.split_once('-').unwrap_or((word, word));
            if let (Ok(first), Ok(last)) = (ends.0.parse::<u32>(), ends.1.parse::<u32>()) {
                ids.extend((first..=last.min(first + 100)).map(|id| format!("{kind} {id}")));
            }
        }
        ids
    };
    for line in text.lines() {
        if let Some(list) = line.strip_prefix("- Field ids") {
            // What stands in brackets explains a value.
            let list = list.split_once("):").map_or(list, |(_, list)| list);
            let outside = list
                .split('(')
                .map(|it| it.split_once(')').map_or(it, |(_, it)| it));
            named.extend(numbers_of(&outside.collect::<String>(), "field"));
        }
        if let Some((_, list)) = line.split_once("Metric ids, percent 0-100: ") {
            named.extend(numbers_of(list, "gpm"));
        }
        if let Some(list) = line.strip_prefix("- Events: ") {
            named.extend(bits_of(list, "event"));
        }
        if let Some(list) = line.strip_prefix("- Clock-event (throttle) bits: ") {
            named.extend(bits_of(list, "throttle"));
        }
        if let Some(list) = line.strip_prefix("- Errors: ") {
            let list = list.split_once('(').map_or(list, |(list, _)| list);
            named.extend(explained(list, "code"));
        }
        if let Some((_, list)) = line.split_once("recovery action (") {
            let list = list.split_once([';', ')']).map_or(list, |(list, _)| list);
            named.extend(explained(list, "action"));
        }
        if line.starts_with("## ") {
            in_xids = line.starts_with("## XID actions");
        }
        if let Some(cell) = line.split('|').nth(2).filter(|_| in_xids) {
            named.extend(numbers_of(cell, "xid"));
        }
        let words = line.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        for word in words {
            let is_device = word.starts_with("Get") || word.starts_with("IsMig");
            let is_function = word.starts_with("nvml") && word.chars().any(char::is_uppercase);
            let is_counter = word.starts_with("DCGM_FI_") || word.starts_with("DCGM_EXP_");
            if is_device && word.len() > 4 || word == "RegisterEvents" {
                named.insert(format!("nvmlDevice{word}"));
            } else if is_function || (is_counter && word.len() > 12) {
                named.insert(word.to_owned());
            }
        }
    }
    named
}

#[test]
fn the_committed_facts_are_all_there() {
    for (kind, all) in [
        ("field", 74),
        ("gpm", 53),
        ("event", 8),
        ("function", 80),
        ("counter", 64),
        ("served", 33),
    ] {
        let each = of_kind(kind).map(|id| range(id).map_or(1, Iterator::count));
        assert_eq!(each.sum::<usize>(), all, "{kind}");
    }
    let said = said();
    for (kind, count) in [("throttle", 9), ("code", 14), ("action", 5), ("xid", 99)] {
        let found = said.iter().filter(|it| it.starts_with(kind)).count();
        assert_eq!(found, count, "{kind}: {said:?}");
    }
}

/// Where the facts that the authors share lie beside the repository, the committed ones must not have
/// fallen behind; they stand by themselves everywhere else.
#[test]
fn the_committed_facts_lack_nothing_that_the_shared_ones_name() {
    let shared = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared");
    let facts = std::fs::read_to_string(format!("{shared}/facts/nvml-dcgm.md"));
    let counters = std::fs::read_to_string(format!("{shared}/data/dcgm_counters.csv"));
    let (Ok(facts), Ok(counters)) = (facts, counters) else {
        return;
    };
    let mut named = named_in(&facts);
    let first_column = counters
        .lines()
        .skip(1)
        .filter_map(|it| it.split(',').next());
    named.extend(first_column.map(str::to_owned));
    assert!(
        named.len() > 270,
        "only {} found: the text has changed",
        named.len()
    );
    // Words of the text's own: the beginning of every name, and a function without its ending.
    for word in ["nvmlDevice", "nvmlDeviceGetHandle"] {
        named.remove(word);
    }
    let committed: BTreeSet<_> = offered().into_iter().chain(said()).collect();
    let missing: Vec<_> = named.difference(&committed).collect();
    assert!(
        missing.is_empty(),
        "in the shared facts and not in driver_facts.txt: {missing:?}"
    );
}

#[test]
fn ids_and_symbols_are_found_in_a_text() {
    let text = "- Field ids (each with a code): 3-6 ECC; 197/198 PCIe (wraps 9); 230 action (0 none, 1 reset).\n\
                - Metric ids, percent 0-100: 1 graphics, 20/21 PCIe.\n\
                - Events: 0x8 XID, 0x4000 gone.\n\
                - Errors: 3 not supported, 4 no permission (a GPU 9).\n\
                - Clock-event (throttle) bits: 0x1 idle, 0x100 display.\n\
                - Field ids (one): 230 recovery action (0 none, 1 reset; driver 9).\n\
                ## XID actions\n| observe | 14 39-40 |\n\
                nvmlGpmSampleGet and GetName of DCGM_FI_DEV_SM_CLOCK";
    let named: Vec<_> = named_in(text).into_iter().collect();
    let expected = "DCGM_FI_DEV_SM_CLOCK,action 0,action 1,code 3,code 4,event 0x4000,event 0x8,\
                    field 197,field 198,field 230,field 3,field 4,field 5,field 6,gpm 1,gpm 20,\
                    gpm 21,nvmlDeviceGetName,nvmlGpmSampleGet,throttle 0x1,throttle 0x100,xid 14,\
                    xid 39,xid 40";
    assert_eq!(named.join(","), expected);
}
