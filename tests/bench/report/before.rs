//! The month before, as large, with which pages and JSON compare.
//!
//! Its days are days of the month on other dates: to write another 7.4 million hours and to put days together of them
//! would take as long as the rest of the bench, and what a report reads of it is the same. They are marked as a change of
//! their hours marks them, and written by the store's own writer.

use std::sync::Arc;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_server::store::model::{DayInput, KnownResource, LedgerDay};
use gpufleet_server::store::{MAX_DIRTY_DAYS, Store};
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::time::Timestamp;

use super::month::{self, DAYS, FIRST_HOUR};

/// Its days.
pub(super) const DAYS_BEFORE: i64 = 31;
/// Days of the month that stand for them: the last is put together in part.
const WHOLE_DAYS: i64 = DAYS - 1;
/// What its days are marked with.
const MARK: i64 = 1;

/// Writes it; `execute` runs SQL in the store's database. Returns how many days of GPUs it has.
pub(super) async fn write(store: &Store, execute: &dyn Fn(&str), now: Timestamp) -> usize {
    let first_day = FIRST_HOUR / 24;
    let mut count = 0;
    for number in 0..DAYS_BEFORE {
        let day = first_day - DAYS_BEFORE + number;
        execute(&format!(
            "INSERT INTO ledger_day_dirty (day, subject, mark, due_ms)
             SELECT {day}, id, {MARK}, 0 FROM subject WHERE kind = 'gpu'"
        ));
        let like = first_day + number % WHOLE_DAYS;
        let read = store.ledger_days(like..like + 1, None).await;
        let (found, unreadable) = read.expect("it answers");
        assert!(unreadable.is_empty(), "{unreadable:?}");
        let days: Vec<_> = found.into_iter().map(|it| moved(it, day)).collect();
        for days in days.chunks(MAX_DIRTY_DAYS) {
            count += store.replace_days(days, now).await.expect("it answers");
        }
    }
    count
}

/// A day of a GPU, whose number in the store it comes with, as another day of it.
fn moved((subject, of_gpu): (i64, LedgerDay), day: i64) -> (DayInput, LedgerDay) {
    let later_ms = (day - of_gpu.day) * MILLIS_PER_DAY;
    let spans = of_gpu.spans.iter();
    let spans = spans.map(|(from, until)| (from + later_ms, until + later_ms));
    let moved = LedgerDay {
        day,
        spans: spans.collect(),
        ..of_gpu
    };
    let id = moved.of.id.as_str();
    let input = DayInput {
        day,
        subject,
        mark: MARK,
        resource: KnownResource {
            key: month::key(ResourceKind::Gpu, id),
            resource: Arc::new(Resource::new(ResourceKind::Gpu, id)),
            agent: None,
            first_seen: month::begin(),
            last_seen: month::begin(),
        },
        node: None,
        before: None,
        siblings: 1,
        hours: Vec::new(),
    };
    (input, moved)
}
