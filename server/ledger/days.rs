//! Days of the ledger: what a GPU or share did in a day (UTC), by holder, with what prices it.
//!
//! A day is a pure function of its hours, of what its resource and its node say of themselves, and of what it said of its
//! machine before: a node that is made anew under its name, or a card that is moved to another, is not what prices the
//! days that are over. When in an hour it
//! was there is told with the hour. Of hours of before that was written down the length is known and not the place:
//! one that is not whole begins where the hour before ended, else it ends where the hour after begins.
//!
//! Limits: whoever sends data says what part of its card a share is, so it is one of 1,024 replicas and of 16 slices at
//! the least; what says more says nothing.
//!
//! Numbers: one round puts together [`crate::store::MAX_DIRTY_DAYS`] (256) days; a day changes every 5 minutes while it
//! runs and is put together half a minute later, so 10,000 GPUs are 33 days a second, and of the day that runs about an
//! eighth waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::ledger::{Energy, MILLIS_PER_HOUR, Reason, State};
use gpufleet_telemetry::gpu_specs;
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;

use crate::store::model::{DayFacts, DayHour, DayInput, DayOf, DayTime, LedgerDay};
use crate::store::{Store, StoreError};

/// Most replicas that a device is taken to have. NVIDIA's device plugin names no limit; no driver has time slices for
/// as many.
const MAX_REPLICAS: u32 = 1_024;

/// Most compute slices that a card is taken to have: an A30 has four, the others seven.
const MAX_SLICES: u32 = 16;

/// Puts together the oldest days that are due. Returns how many.
///
/// # Errors
/// When the store refuses; then nothing has changed.
pub async fn round(store: &Store, now: Timestamp) -> Result<usize, StoreError> {
    Ok(replace(store, now).await?.0)
}

/// The same, and which days, since the Unix epoch.
///
/// # Errors
/// When the store refuses; then nothing has changed.
pub async fn replace(store: &Store, now: Timestamp) -> Result<(usize, BTreeSet<i64>), StoreError> {
    let dirty = store.dirty_days(now).await?;
    if dirty.is_empty() {
        return Ok((0, BTreeSet::new()));
    }
    let which = dirty.iter().map(|it| it.day).collect();
    let inputs = store.day_inputs(&dirty).await?;
    let days: Vec<_> = inputs
        .into_iter()
        .map(|input| {
            let day = put_together(&input);
            (input, day)
        })
        .collect();
    Ok((store.replace_days(&days, now).await?, which))
}

/// Puts one day together.
pub fn put_together(input: &DayInput) -> LedgerDay {
    let mut times: BTreeMap<(i64, State, Reason), (i64, Energy, i64)> = BTreeMap::new();
    for time in input.hours.iter().flat_map(|it| &it.times) {
        let key = (time.holder, time.state, time.reason);
        let (millis, energy, lost_millis) = times.entry(key).or_default();
        *millis += time.millis;
        *lost_millis += time.lost_millis;
        energy.add(time.energy);
    }
    let time = |((holder, state, reason), (millis, energy, lost_millis))| DayTime {
        holder,
        state,
        reason,
        millis,
        energy,
        lost_millis,
    };
    let key = &input.resource.key;
    let of = DayOf {
        cluster: key.cluster.to_string(),
        id: key.id.to_string(),
        is_share: key.kind == ResourceKind::Share,
        facts: facts(input),
    };
    LedgerDay {
        day: input.day,
        of: Arc::new(of),
        spans: spans(&input.hours),
        times: times.into_iter().map(time).collect(),
    }
}

fn facts(input: &DayInput) -> DayFacts {
    let told = told_now(input);
    let Some(before) = &input.before else {
        return told;
    };
    // Whatever changes of a resource is seen when it is told.
    let seen = input.node.iter().chain([&input.resource]);
    let seen = seen.map(|it| it.last_seen.millis()).max();
    let end_ms = (input.day + 1) * MILLIS_PER_DAY;
    kept(before, told, seen.is_some_and(|it| it >= end_ms))
}

/// What a day says of its machine: what is told of it now, until that may be of another time or machine. Of a day that
/// is over (that was told when it was) what it said before stays, and only what it did not know is added. Where another
/// machine or node is told, all of it stays: a day has one, that on which it began.
fn kept(before: &DayFacts, told: DayFacts, is_over: bool) -> DayFacts {
    let differ = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
    let is_other = differ(&before.instance, &told.instance) || differ(&before.node, &told.node);
    if !is_over && !is_other {
        return told;
    }
    let of = |before: &String, told: String| match is_other || !before.is_empty() {
        true => before.clone(),
        false => told,
    };
    // Replicas keep their names when their device is divided by another number.
    let (slices, whole) = match before.of {
        0 => (told.slices, told.of),
        whole => (before.slices, whole),
    };
    DayFacts {
        slices,
        of: whole,
        node: of(&before.node, told.node),
        machine_type: of(&before.machine_type, told.machine_type),
        region: of(&before.region, told.region),
        zone: of(&before.zone, told.zone),
        provisioning: of(&before.provisioning, told.provisioning),
        account: of(&before.account, told.account),
        provider: of(&before.provider, told.provider),
        instance: of(&before.instance, told.instance),
        ..told
    }
}

fn told_now(input: &DayInput) -> DayFacts {
    let own = &input.resource.resource;
    let node = input.node.as_ref().map(|it| &*it.resource);
    let text = |name: &str| told(own, node, name);
    let (slices, of) = match input.resource.key.kind {
        ResourceKind::Share => part(own, input.siblings),
        _ => (1, 1),
    };
    DayFacts {
        origin: own.origin(),
        node: text(attribute::NODE),
        machine_type: text(attribute::MACHINE_TYPE),
        region: text(attribute::REGION),
        zone: text(attribute::ZONE),
        provisioning: text(attribute::PROVISIONING),
        account: text(attribute::CLOUD_ACCOUNT),
        provider: text(attribute::CLOUD_PROVIDER),
        instance: text(attribute::HOST_ID),
        gpu_model: text(attribute::GPU_MODEL),
        parent: text(attribute::PARENT),
        slices,
        of,
    }
}

/// What the resource says, or else its node.
fn told(own: &Resource, node: Option<&Resource>, name: &str) -> String {
    let of_node = || node.and_then(|it| it.attribute(name));
    own.attribute(name)
        .or_else(of_node)
        .unwrap_or_default()
        .to_owned()
}

/// A share's part of its card: compute slices of a MIG instance, as NVML tells them or as its profile names them
/// (`3g.40gb`), of as many as NVML tells or a card of its model has; one of as many as there are else. A replica is one of
/// as many as its device has, of the part of its card that this is. It is one of
/// 16 × 1,024 at the least.
pub fn part(share: &Resource, siblings: u32) -> (u32, u32) {
    let replicas = share.attribute(attribute::REPLICAS);
    let replicas = replicas.and_then(|it| it.parse::<u32>().ok());
    if let Some(replicas) = replicas.filter(|it| (1..=MAX_REPLICAS).contains(it)) {
        let is_of_card =
            share.attribute(attribute::REPLICA_OF) == share.attribute(attribute::PARENT);
        let (slices, of) = if is_of_card {
            (1, 1)
        } else {
            part_of_instance(share, 1)
        };
        return (slices, of * replicas);
    }
    part_of_instance(share, siblings)
}

/// The same as the share itself tells it; none of one that is one of as many as there are.
pub fn told_part(share: &Resource) -> Option<(u32, u32)> {
    let told = part(share, 1);
    (told == part(share, 2)).then_some(told)
}

fn part_of_instance(share: &Resource, siblings: u32) -> (u32, u32) {
    let model = share.attribute(attribute::GPU_MODEL).unwrap_or_default();
    let of_model = gpu_specs::mig_slices(model);
    let slices = share.attribute(attribute::MIG_SLICES);
    let numbers = slices.and_then(|it| {
        let (slices, of) = it.split_once('/').unwrap_or((it, ""));
        Some((slices.parse().ok()?, of.parse().unwrap_or(of_model)))
    });
    let profile = share.attribute(attribute::MIG_PROFILE).and_then(slices_of);
    let is_part = |(slices, of): &(u32, u32)| (1..=*of).contains(slices) && *of <= MAX_SLICES;
    let told = numbers.filter(is_part);
    told.or(profile.map(|it| (it, of_model)).filter(is_part))
        .unwrap_or((1, siblings.clamp(1, MAX_REPLICAS)))
}

/// The compute slices of a profile: 3 of `3g.40gb`, and 1 of `1c.3g.40gb`, which leaves the other two of that to others.
fn slices_of(profile: &str) -> Option<u32> {
    let count = |unit: char| -> Option<u32> {
        let mut pieces = profile.split('.');
        pieces.find_map(|it| it.strip_suffix(unit)?.parse().ok())
    };
    count('c').or_else(|| count('g'))
}

/// When it was accounted.
fn spans(hours: &[DayHour]) -> Vec<(i64, i64)> {
    let millis = |it: &DayHour| it.times.iter().map(|it| it.millis).sum::<i64>();
    let mut spans: Vec<(i64, i64)> = Vec::new();
    for (at, hour) in hours.iter().enumerate() {
        let length = millis(hour).clamp(0, MILLIS_PER_HOUR);
        if hour.spans.iter().map(|it| it.1 - it.0).sum::<i64>() == length {
            for span in &hour.spans {
                add(&mut spans, *span);
            }
            continue;
        }
        let start = hour.hour * MILLIS_PER_HOUR;
        let has_before = spans.last().is_some_and(|it| it.1 == start);
        let has_after = hours.get(at + 1).is_some_and(|it| it.hour == hour.hour + 1);
        let from = match !has_before && has_after {
            true => start + MILLIS_PER_HOUR - length,
            false => start,
        };
        add(&mut spans, (from, from + length));
    }
    spans
}

/// Adds a stretch behind the others, to the last where it goes on from it.
fn add(spans: &mut Vec<(i64, i64)>, (from, until): (i64, i64)) {
    match spans.last_mut() {
        Some(last) if last.1 == from => last.1 = until,
        _ if from < until => spans.push((from, until)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hour(hour: i64, minutes: i64) -> DayHour {
        let time = DayTime {
            holder: 0,
            state: State::Unallocated,
            reason: Reason::Unknown,
            millis: minutes * 60_000,
            energy: Energy::default(),
            lost_millis: 0,
        };
        DayHour {
            hour,
            times: vec![time],
            spans: Vec::new(),
        }
    }

    #[test]
    fn an_hour_that_says_when_it_was_there_is_there_then() {
        let minutes = |spans: &[(i64, i64)]| {
            let spans = spans.iter().map(|it| (it.0 * 60_000, it.1 * 60_000));
            spans.collect::<Vec<_>>()
        };
        let told = DayHour {
            spans: minutes(&[(665, 670), (690, 705)]),
            ..hour(11, 20)
        };
        let hours = [hour(10, 60), told, hour(12, 60)];
        let expected = minutes(&[(600, 660), (665, 670), (690, 705), (720, 780)]);
        assert_eq!(spans(&hours), expected);
        let joined = DayHour {
            spans: minutes(&[(660, 670), (710, 720)]),
            ..hour(11, 20)
        };
        let hours = [hour(10, 60), joined, hour(12, 60)];
        assert_eq!(spans(&hours), minutes(&[(600, 670), (710, 780)]));
        let other = DayHour {
            spans: minutes(&[(665, 670)]),
            ..hour(11, 20)
        };
        let hours = [hour(10, 60), other];
        assert_eq!(
            spans(&hours),
            minutes(&[(600, 680)]),
            "of other time than it has"
        );
    }

    #[test]
    fn an_hour_that_is_not_whole_lies_beside_the_hour_that_it_goes_on_from_or_into() {
        let check = |hours: &[DayHour], expected: &[(i64, i64)]| {
            let minutes = |it: (i64, i64)| (it.0 / 60_000, it.1 / 60_000);
            let found: Vec<_> = spans(hours).into_iter().map(minutes).collect();
            assert_eq!(found, expected);
        };
        check(&[], &[]);
        check(&[hour(10, 20)], &[(600, 620)]);
        check(&[hour(10, 20), hour(11, 60), hour(12, 5)], &[(640, 725)]);
        check(&[hour(10, 60), hour(12, 60)], &[(600, 660), (720, 780)]);
        check(
            &[hour(10, 30), hour(12, 0), hour(13, 60)],
            &[(600, 630), (780, 840)],
        );
    }

    #[test]
    fn a_day_that_is_over_and_one_whose_machine_is_another_now_keep_what_they_said() {
        let facts = |node: &str, instance: &str, provisioning: &str, zone: &str| DayFacts {
            node: node.to_owned(),
            instance: instance.to_owned(),
            provisioning: provisioning.to_owned(),
            zone: zone.to_owned(),
            gpu_model: format!("of {provisioning}"),
            ..DayFacts::default()
        };
        let check = |before: &DayFacts, told: &DayFacts, is_over, expected: [&str; 4]| {
            let found = kept(before, told.clone(), is_over);
            let [node, instance, provisioning, zone] = expected;
            let expected = DayFacts {
                gpu_model: told.gpu_model.clone(),
                ..facts(node, instance, provisioning, zone)
            };
            assert_eq!(found, expected);
        };
        let spot = facts("n1", "i1", "spot", "");
        let mended = facts("n1", "i1", "on_demand", "here");
        check(&spot, &mended, false, ["n1", "i1", "on_demand", "here"]);
        check(&spot, &mended, true, ["n1", "i1", "spot", "here"]);
        let anew = facts("n1", "i2", "on_demand", "here");
        let moved = facts("n2", "", "on_demand", "here");
        for other in [anew, moved] {
            for is_over in [false, true] {
                check(&spot, &other, is_over, ["n1", "i1", "spot", ""]);
            }
        }
        // Who tells no name of the machine may be the same.
        let unnamed = facts("n1", "", "on_demand", "");
        check(&spot, &unnamed, false, ["n1", "", "on_demand", ""]);
        check(&spot, &unnamed, true, ["n1", "i1", "spot", ""]);
        let nothing = facts("", "", "", "");
        check(&nothing, &mended, true, ["n1", "i1", "on_demand", "here"]);
    }

    #[test]
    fn a_day_that_is_over_keeps_the_part_of_its_card_that_a_share_was_then() {
        let replica = |of: u32| DayFacts {
            node: "n1".to_owned(),
            slices: u32::from(of > 0),
            of,
            ..DayFacts::default()
        };
        let part = |before: u32, told: u32, is_over| {
            let found = kept(&replica(before), replica(told), is_over);
            (found.slices, found.of)
        };
        assert_eq!(
            part(2, 4, true),
            (1, 2),
            "late data of a day of two replicas"
        );
        assert_eq!(part(2, 4, false), (1, 4), "the day runs");
        assert_eq!(part(0, 4, true), (1, 4), "it was not known");
    }

    #[test]
    fn a_share_is_its_slices_of_the_card_or_one_of_its_siblings() {
        let share = |slices: &str| {
            Resource::new(ResourceKind::Share, "MIG-1").with(attribute::MIG_SLICES, slices)
        };
        assert_eq!(part(&share("3/7"), 2), (3, 7));
        assert_eq!(part(&share("2"), 2), (2, 7));
        assert_eq!(part(&share(""), 4), (1, 4));
        let profile = |text: &str| share("").with(attribute::MIG_PROFILE, text);
        assert_eq!(
            part(&profile("3g.40gb"), 4),
            (3, 7),
            "an exporter tells no more"
        );
        assert_eq!(part(&profile("1g.10gb+me"), 4), (1, 7));
        assert_eq!(part(&profile("1c.2g.20gb"), 4), (1, 7), "its own part");
        assert_eq!(part(&profile("2c.3g.40gb"), 4), (2, 7));
        assert_eq!(part(&profile("9g.80gb"), 4), (1, 4), "more than a card has");
        assert_eq!(part(&profile("half"), 4), (1, 4));
        let of_a30 = |text: &str| profile(text).with(attribute::GPU_MODEL, "NVIDIA A30");
        assert_eq!(part(&of_a30("1g.6gb"), 4), (1, 4), "an A30 has four slices");
        assert_eq!(part(&of_a30("2g.12gb"), 1), (2, 4));
        assert_eq!(part(&of_a30("4g.24gb"), 1), (4, 4), "all of it");
        let slices = share("2").with(attribute::GPU_MODEL, "NVIDIA A30");
        assert_eq!(part(&slices, 2), (2, 4));
        let replica = |of: &str, slices: &str| {
            let replica = share(slices).with(attribute::PARENT, "GPU-1");
            let replica = replica.with(attribute::REPLICAS, "4");
            replica.with(attribute::REPLICA_OF, of)
        };
        assert_eq!(
            part(&replica("GPU-1", ""), 9),
            (1, 4),
            "however many were seen"
        );
        assert_eq!(part(&replica("MIG-1", "3/7"), 9), (3, 28));
        let none = replica("GPU-1", "").with(attribute::REPLICAS, "0");
        assert_eq!(part(&none, 2), (1, 2), "no number of replicas");
        let many = |of: &str, number: &str| replica(of, "3/7").with(attribute::REPLICAS, number);
        assert_eq!(part(&many("GPU-1", "1024"), 2), (1, 1_024));
        assert_eq!(part(&many("MIG-1", "1024"), 2), (3, 7_168));
        for number in ["1025", "4294967291", "4294967296"] {
            let told = part(&many("GPU-1", number), 2);
            assert_eq!(told, (3, 7), "{number} replicas are none");
        }
        assert_eq!(part(&share("1/16"), 3), (1, 16));
        for slices in ["1/17", "4294967279/4294967291"] {
            assert_eq!(part(&share(slices), 3), (1, 3), "{slices}");
        }
        assert_eq!(part(&share(""), 1_000_000), (1, 1_024));
        let both = share("2/8").with(attribute::MIG_PROFILE, "3g.40gb");
        assert_eq!(part(&both, 4), (2, 8), "NVML says it better");
        assert_eq!(
            part(&share("9/7"), 0),
            (1, 1),
            "no share is more than its card"
        );
    }
}
