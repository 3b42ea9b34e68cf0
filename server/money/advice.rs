//! Advice that is given, kept round by round with what becomes of it.
//!
//! What is advised now ([`given`], [`knobs`]) and what is seen of what was advised are asked of the fleet, the runs and
//! the savings; what that means is analysis' (`taken`). The book of what is open lies in memory and is written when
//! something moved and every [`WRITTEN_EVERY`], so that a server that ends loses no more than that of what was saved.
//! It is written from when it counts: what nobody need have read is never in the store.
//!
//! Limits: [`MAX_OPEN`] advices are followed, [`MAX_A_DAY`] new ones are taken up in a day, what is worth most first.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::report::efficiency::Advised;
use gpufleet_analysis::table;
use gpufleet_analysis::taken::{Advice, Record, Standing};
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::auth::Grant;
use crate::store::{MAX_ADVICE, Store, StoreError};

mod around;

mod given;

mod knobs;

use around::Around;
use given::Seen;
pub use knobs::{is_of, name};

/// How often is looked: often enough that a GPU that was given back is seen before its node is gone.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// How often what is open is written, milliseconds.
const WRITTEN_EVERY: i64 = 1_800_000;

/// Most advices that are followed.
pub const MAX_OPEN: usize = 1_000;

/// Most advices that are taken up in a day: with 13 months of them 30 MB.
pub const MAX_A_DAY: usize = 100;

/// What is open.
#[derive(Debug, Default)]
pub struct Book {
    entries: Vec<Entry>,
    /// The number of the next.
    next: i64,
    /// The day that runs, since the epoch, and how many were taken up in it.
    day: (i64, usize),
}

/// An advice with what is written of it.
#[derive(Debug)]
struct Entry {
    record: Record,
    /// When it was written last, and how it stood; none before.
    written: Option<(i64, Standing)>,
}

impl Book {
    /// A book with what the store has.
    fn restored((records, next): (Vec<Record>, i64)) -> Self {
        let entry = |record: Record| Entry {
            written: Some((record.looked_ms, record.standing)),
            record,
        };
        Self {
            entries: records.into_iter().map(entry).collect(),
            next,
            day: (0, 0),
        }
    }

    /// Takes in what is advised and what is seen now.
    fn look(&mut self, seen: &Seen, given: Vec<Advice>, now_ms: i64) {
        let mut given = around::distinct(given);
        let records: Vec<&Record> = self.entries.iter().map(|it| &it.record).collect();
        let around = Around::of_all(&records, now_ms);
        let mut sights = Vec::new();
        for (record, around) in records.iter().zip(&around) {
            let place = given.iter().position(|it| it.key() == record.advice.key());
            let again = place.map(|place| given.remove(place));
            sights.push(seen.sight((record, around), again, now_ms));
        }
        around::once(&records, &mut sights);
        for (entry, sight) in self.entries.iter_mut().zip(sights) {
            entry.record.look(sight, now_ms);
        }
        // What ended before it counted was never there.
        self.entries
            .retain(|it| it.record.standing != Standing::Ended || it.written.is_some());
        for advice in given {
            let day = now_ms.div_euclid(MILLIS_PER_DAY);
            if self.day.0 != day {
                self.day = (day, 0);
            }
            if self.entries.len() >= MAX_OPEN || self.day.1 >= MAX_A_DAY {
                break;
            }
            self.day.1 += 1;
            self.entries.push(Entry {
                record: Record::new(self.next, advice, now_ms),
                written: None,
            });
            self.next += 1;
        }
    }

    /// What is to be written.
    fn due(&self, now_ms: i64) -> Vec<&Record> {
        let is_due = |it: &&Entry| {
            let is_new = |(at, standing): (i64, Standing)| {
                standing != it.record.standing || now_ms - at >= WRITTEN_EVERY
            };
            it.record.counts() && it.written.is_none_or(is_new)
        };
        let due = self.entries.iter().filter(is_due);
        due.map(|it| &it.record).collect()
    }

    /// These were written: what is over is forgotten.
    fn written(&mut self, numbers: &BTreeSet<i64>, now_ms: i64) {
        for it in &mut self.entries {
            if numbers.contains(&it.record.number) {
                it.written = Some((now_ms, it.record.standing));
            }
        }
        self.entries.retain(|it| {
            let is_told = it.written.is_some_and(|it| it.1.is_over());
            !(it.record.standing.is_over() && (is_told || !it.record.counts()))
        });
    }
}

/// Follows advice from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("advice"), app.clock.as_ref());
    let mut book = None;
    while !stop.is_cancelled() {
        job.round(clock, Box::pin(round(&app, &mut book))).await;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Looks once and writes what moved.
///
/// # Errors
/// When the store does not answer, or another server has the right to write.
pub async fn round(app: &App, book: &mut Option<Book>) -> anyhow::Result<()> {
    let Some(token) = app.money.token() else {
        return Ok(());
    };
    let book = match book {
        Some(book) => book,
        None => book.insert(Book::restored(app.store.open_advice().await?)),
    };
    let now = app.clock.now();
    let specs = Arc::new(Specs::with(&app.config.gpu.peaks)?);
    let all = Grant::default();
    let savings = app.savings.get(app, &specs, &all, now).await;
    let savings = savings.map_err(|error| anyhow::anyhow!("{error}"))?;
    let looking = app.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let seen = Seen::now(&looking, &specs, now);
        let given = seen.given(&savings);
        (seen, given)
    });
    let (seen, given) = looked.await?;
    book.look(&seen, given, now.millis());
    let due = book.due(now.millis());
    let numbers: BTreeSet<i64> = due.iter().map(|it| it.number).collect();
    app.store.write_advice(&due, now, token).await?;
    book.written(&numbers, now.millis());
    Ok(())
}

/// What is kept of advice in a time, of one cluster or of all live ones.
///
/// # Errors
/// When the store does not answer.
pub async fn read(
    store: &Store,
    time: Range<Timestamp>,
    cluster: Option<&str>,
) -> Result<Advised, StoreError> {
    let mut found = kept(store, time, cluster).await?;
    let is_live = |it: &Record| it.advice.origin == Origin::Live;
    found.records.retain(|it| cluster.is_some() || is_live(it));
    Ok(found)
}

/// The same of one cluster, or of all whatever their origin.
pub(super) async fn kept(
    store: &Store,
    time: Range<Timestamp>,
    cluster: Option<&str>,
) -> Result<Advised, StoreError> {
    let (records, since, are_all) = store.advice(time.clone(), cluster).await?;
    let not_kept = match since {
        None => Some("what was advised is not known: no server has kept it yet".to_owned()),
        Some(since) if time.start < since => Some(format!(
            "what was advised before {} is not known: it was not kept, or is deleted (retention.events_d)",
            table::moment_text(since.millis())
        )),
        Some(_) if !are_all => Some(format!(
            "there was more advice than the {MAX_ADVICE} that are looked at, which are the newest"
        )),
        Some(_) => None,
    };
    Ok(Advised { records, not_kept })
}

#[cfg(test)]
mod tests;
