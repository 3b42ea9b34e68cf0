//! The ledger job: computes the hours whose minutes changed, rolls minutes up to ten minutes, and hours
//! up to days ([`days`]).
//!
//! The ledger is never incremented. An hour is a pure function (analysis::states) of its minute rows,
//! the five minutes after it, and what the hour before handed over; it is replaced as a whole.
//!
//! Numbers: an hour that runs is computed every 5 minutes, an hour that is over once more when the 5
//! minutes after it are in, and a last time when it is final. One round takes [`crate::store::MAX_DIRTY`] (64)
//! hours; 10,000 GPUs are 35 hours a second, about 1,200 minute rows read. What stands around them
//! (`around`) is read once a round: a look into an index for each node and hour, each cluster and hour and each
//! holder, and in one statement for each hour the runs that were heard in it.
//!
//! Limits: the job looks at data up to `settle_s` ago, so that a tick on its way is not taken for
//! silence. A card is accounted in the seconds in which none of its shares is there (`analysis::states`' family).

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_analysis::ledger::LedgerHour;
use gpufleet_analysis::serving;
use gpufleet_analysis::states::{self, Accounted, Around, Carry, Hour, Policy};
use gpufleet_program::section;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::minute::{Aggregate, ByMetric, Counter, MinuteRow};
use gpufleet_telemetry::time::{Minute, NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::money::tables::{Standby, Targets};
use crate::store::model::{ComputedHour, LedgerInput, TenMinutes};
use crate::store::{Store, StoreError};

mod around;

pub mod days;

/// Milliseconds of a minute.
const MILLIS_PER_MINUTE: u32 = 60_000;

/// How often the job looks for work, when there was none.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How often an hour that runs is computed again, seconds.
const AGAIN_S: i64 = 300;

/// How long after its last change an hour is computed once more and its minutes are packed, seconds:
/// while an outage is drained, each of its hours changes with every commit.
const CLOSE_AFTER_S: i64 = 600;

/// Seconds in one hour.
const HOUR_S: i64 = 3_600;

section! {
    /// The ledger: where the time of every GPU went, hour by hour.
    pub struct LedgerConfig {
        /// Data younger than this is not looked at yet, seconds: a tick, its way here and a commit.
        pub settle_s: i64 = 90,
        /// How late data may be before an hour that it changes counts as restated, seconds.
        pub lateness_s: i64 = 900,
    }
}

/// What people say of holders, as it is when an hour is computed.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// What their time is held against.
    pub targets: &'a Targets,
    /// Who is idle by design.
    pub standby: &'a Standby,
}

/// Computes hours from when this server leads until it is told to stop. A failing store is waited for.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("ledger"), app.clock.as_ref());
    let mut are_terms_read = false;
    while !stop.is_cancelled() {
        let work = async {
            if !are_terms_read {
                // With the tables of the store from the first hour on.
                app.money.refresh(&app.store, &app.config).await?;
                are_terms_read = true;
            }
            let (terms, config) = (app.money.terms(), &app.config.ledger);
            let rules = Rules {
                targets: &terms.targets,
                standby: &terms.standby,
            };
            round(&app.store, config, rules, clock.now()).await
        };
        let hours = job.round(clock, work).await;
        let work = days::replace(&app.store, clock.now());
        let (days, which) = job.round(clock, work).await.unzip();
        app.money.restate(which.unwrap_or_default());
        if hours.max(days).is_some_and(|done| done > 0) {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Computes the oldest hours that are due, at most [`crate::store::MAX_DIRTY`]. Returns how many.
///
/// # Errors
/// When the store refuses; then nothing has changed.
pub async fn round(
    store: &Store,
    config: &LedgerConfig,
    rules: Rules<'_>,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let dirty = store.dirty_hours(now).await?;
    if dirty.is_empty() {
        return Ok(0);
    }
    let inputs = store.ledger_inputs(&dirty).await?;
    let inputs = inputs.into_iter();
    let computed = inputs.map(|it| compute(it, config, rules, now));
    let computed: Vec<ComputedHour> = computed.collect();
    store.replace_hours(&computed, now).await?;
    Ok(dirty.len())
}

/// Computes one hour.
fn compute(
    mut input: LedgerInput,
    config: &LedgerConfig,
    rules: Rules<'_>,
    now: Timestamp,
) -> ComputedHour {
    let policy = Policy::default();
    let until = now.shifted(-config.settle_s * NANOS_PER_SECOND);
    let (start_s, end_s) = (input.dirty.hour * HOUR_S, (input.dirty.hour + 1) * HOUR_S);
    let is_over = until.seconds() >= end_s;
    let final_at_s = end_s + i64::from(policy.parked_after_s) + config.lateness_s;
    let mut computed = ComputedHour {
        dirty: input.dirty,
        ledger: LedgerHour::new(input.dirty.hour, BTreeMap::new()),
        held: BTreeMap::new(),
        spans: Vec::new(),
        family: Vec::new(),
        served: match input.resource.key.kind {
            ResourceKind::Endpoint => serving::served(input.dirty.hour, &input.minutes),
            _ => None,
        },
        carry: None,
        again: None,
        ten_minutes: if is_over {
            ten_minutes(input.dirty.hour, &input.minutes)
        } else {
            Vec::new()
        },
        closed: BTreeMap::new(),
    };
    let kind = input.resource.key.kind;
    let has_ledger = matches!(kind, ResourceKind::Gpu | ResourceKind::Share);
    let mut is_final = is_over;
    if has_ledger {
        let carry = input.carry.unwrap_or_default();
        let around = around::around(&input, rules);
        let accounted = account(&input, (carry, &around), until, &policy);
        computed.carry = Some(accounted.carry).filter(|it| is_over && it.is_there);
        computed.ledger = accounted.ledger;
        computed.held = accounted.held;
        computed.spans = accounted.spans;
        // What comes late of a card's shares may yet make time of it that is none now.
        let is_nothing = computed.is_empty() && is_over && input.family.is_empty();
        is_final = now.seconds() >= final_at_s || is_nothing;
        computed.ledger.is_final = is_final;
        // Before it is final, those of the others are computed again by themselves.
        if input.dirty.is_changed && now.seconds() >= final_at_s {
            computed.family = std::mem::take(&mut input.family);
        }
    }
    let again_s = if is_over {
        final_at_s
    } else {
        let next = now.seconds().max(start_s) + AGAIN_S;
        next.min(end_s + config.settle_s)
    };
    computed.again = (!is_final).then_some(Timestamp::from_seconds(again_s));
    if is_final && input.dirty.is_changed {
        computed.again = Some(now.shifted(CLOSE_AFTER_S * NANOS_PER_SECOND));
    } else if is_final {
        // What is left is its own minutes, without those of the lookahead.
        input
            .minutes
            .split_off(&Minute((input.dirty.hour + 1) * 60));
        computed.closed = input.minutes;
    }
    computed
}

fn account(
    input: &LedgerInput,
    (carry, around): (Carry, &Around),
    until: Timestamp,
    policy: &Policy,
) -> Accounted {
    let asked = Hour {
        hour: input.dirty.hour,
        minutes: &input.minutes,
        health: &input.health,
        carry,
        until,
        around,
    };
    states::account(&asked, policy)
}

impl ComputedHour {
    /// Whether there is nothing to keep of it.
    fn is_empty(&self) -> bool {
        self.ledger.entries.is_empty() && self.carry.is_none()
    }
}

/// The ten-minute rows of an hour; buckets without any minute are left out.
fn ten_minutes(hour: i64, minutes: &BTreeMap<Minute, MinuteRow>) -> Vec<TenMinutes> {
    let count = |bits: u64| i64::from(bits.count_ones());
    let mut buckets: BTreeMap<i64, TenMinutes> = BTreeMap::new();
    for (minute, row) in minutes.range(Minute(hour * 60)..Minute((hour + 1) * 60)) {
        let bucket = minute.0.div_euclid(10);
        let into = buckets.entry(bucket).or_insert_with(|| TenMinutes {
            bucket,
            observed_s: 0,
            active_s: 0,
            stalled_s: 0,
            held_s: 0,
            holder_known_s: 0,
            metrics: ByMetric::default(),
            counters: ByMetric::default(),
        });
        into.observed_s += count(row.bitmaps.observed);
        into.active_s += count(row.bitmaps.active);
        into.stalled_s += count(row.bitmaps.stalled);
        into.held_s += count(row.bitmaps.held);
        into.holder_known_s += count(row.bitmaps.holder_known);
        for (metric, aggregate) in &row.metrics {
            into.metrics.add(*metric, *aggregate, Aggregate::merge);
        }
        let later = u32::try_from(minute.0.rem_euclid(10)).unwrap_or(0) * MILLIS_PER_MINUTE;
        for (metric, counter) in &row.counters {
            let counter = counter.clone().later(later);
            into.counters.add(*metric, counter, Counter::merge);
        }
    }
    buckets.into_values().collect()
}
