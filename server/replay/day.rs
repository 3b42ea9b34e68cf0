//! A day of the store as ticks: its minutes ([`minutes`]), its events, and the steps of its runs.
//!
//! Beforehand comes the hour before the day, so that what detectors remember is there when it begins. Time of
//! which nothing at all is stored is gone through when something follows: a fleet that fell silent is told as it
//! was. What follows nothing is not: who knows whether there was a server.
//!
//! Limits: [`MAX_ROWS`] minute rows in memory at a time, and what [`reader`] takes beside them, so that a fleet of
//! 20,000 GPUs takes about 500 MB beside its live state. Attributes of resources are those of today, but for who
//! held a GPU. What was read of parts, and when a node came up, is not kept; what broke more than an hour before the day
//! is not known.

use std::collections::{BTreeMap, HashMap};

use gpufleet_analysis::inventory::Record;
use gpufleet_telemetry::identity::AgentId;
use gpufleet_telemetry::minute::MinuteRow;
use gpufleet_telemetry::otlp::DecodedEvent;
use gpufleet_telemetry::time::{Minute, Timestamp};
use time::Date;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::minutes::{self, TICK_SECONDS, TICKS};
use super::unable::{Data, Source};
use super::{Replay, ReplayError, Replayed, Sent};
use crate::config::Config;
use crate::fleet::FOREIGN_AGENT;
use crate::money::Money;
use crate::store::Store;

mod reader;

mod then;

use reader::{Read, Reader};

/// Minutes before the day that are played beforehand: the longest that a rate is meant over.
const RUN_UP: i64 = 60;

/// Minutes of a day.
const MINUTES: i64 = 24 * 60;

/// Most minute rows in memory, about 1.5 KB each.
const MAX_ROWS: usize = 100_000;

/// Most minutes that are read at a time, and those of the first time, when nobody knows how many rows that is.
const MOST_MINUTES: i64 = 60;
const FIRST_MINUTES: i64 = 5;

/// How a day is written.
const FORMAT: &[BorrowedFormatItem<'static>] = format_description!("[year]-[month]-[day]");

/// The Julian day of 1970-01-01.
const EPOCH: i64 = 2_440_588;

/// A day like `2026-11-21`, as days since the Unix epoch.
pub(super) fn parse(text: &str) -> Option<i64> {
    let date = Date::parse(text, FORMAT).ok()?;
    Some(i64::from(date.to_julian_day()) - EPOCH).filter(|day| *day >= 0)
}

/// It again as text.
fn words(day: i64) -> String {
    let date = i32::try_from(day + EPOCH).ok();
    let date = date.and_then(|it| Date::from_julian_day(it).ok());
    date.and_then(|it| it.format(FORMAT).ok())
        .unwrap_or_default()
}

pub(super) async fn replay(
    day: i64,
    config: &Config,
    cluster: Option<&str>,
    progress: &mut (dyn FnMut(f64, Timestamp) + Send),
) -> Result<Replayed, ReplayError> {
    let store = Store::open_to_read(&config.store).await?;
    let replayed = match store.is_behind() {
        true => Err(ReplayError::OlderSchema),
        false => play(&store, day, config, cluster, progress).await,
    };
    store.close().await;
    replayed
}

async fn play(
    store: &Store,
    day: i64,
    config: &Config,
    cluster: Option<&str>,
    progress: &mut (dyn FnMut(f64, Timestamp) + Send),
) -> Result<Replayed, ReplayError> {
    let terms = Money::default().refresh(store, config).await?;
    let mut replay = Replay::new(config, terms, Data::new(Source::Day));
    let begins = Minute(day * MINUTES);
    let (first, last) = (begins.0 - RUN_UP, begins.0 + MINUTES);
    replay.gone = gone(store, config, Minute(first).start()).await?;
    let mut reader = Reader::new(store, cluster);
    reader.find_runs(first, last).await?;
    let mut heard: Option<(i64, i64)> = None;
    let (mut minute, mut span) = (first, FIRST_MINUTES);
    let mut fullest = 0;
    while minute < last {
        let until = (minute + span).min(last);
        let mut read = reader.read(minute, until).await?;
        // What is silent for a while says nothing of how much comes after it.
        fullest = read.most_rows.max(fullest);
        span = match fullest {
            0 => FIRST_MINUTES,
            rows => (MAX_ROWS as i64 / rows as i64).clamp(1, MOST_MINUTES),
        };
        for minute in minute..until {
            reader.find_steps(minute).await?;
            let rows = read.rows.remove(&minute).unwrap_or_default();
            if rows.is_empty() {
                continue;
            }
            let from = heard.map_or(minute, |(_, newest)| newest + 1);
            heard = Some((heard.map_or(minute, |it| it.0), minute));
            for silent in from..minute {
                one_minute(&mut replay, &mut reader, &mut read, silent, &[]);
            }
            one_minute(&mut replay, &mut reader, &mut read, minute, &rows);
        }
        minute = until;
        let done = (minute - first) as f64 / (last - first) as f64;
        progress(done, Minute(minute).start());
    }
    let of_day = heard.filter(|(_, newest)| *newest >= begins.0);
    let Some((oldest, newest)) = of_day else {
        return Err(ReplayError::NotStored {
            day: words(day),
            of: cluster.map_or(String::new(), |it| format!(" of cluster {it}")),
            kept_h: config.retention.minutes_h(store.kind()),
        });
    };
    let from = Minute(begins.0.max(oldest)).start();
    let until = Minute(newest + 1).start();
    let what = format!(
        "{} of the store, from its minutes, events and steps",
        words(day)
    );
    let mut replayed = replay.finish(what, (from, until), TICK_SECONDS);
    replayed.notes.extend(reader.notes(oldest, begins.0));
    let then = then::read(store, (from, until), cluster).await?;
    replayed.then = Some(then::compare(&replayed.incidents, then));
    Ok(replayed)
}

/// When nodes were gone of which the cluster told.
async fn gone(
    store: &Store,
    config: &Config,
    since: Timestamp,
) -> Result<HashMap<(String, String), Timestamp>, ReplayError> {
    let cluster = config.inventory.cluster(&config.ingest.default_cluster);
    let records = store.inventory(cluster, since).await?;
    let of = |it: Record| Some(((cluster.to_owned(), it.node.name), it.gone_at?));
    Ok(records.into_iter().filter_map(of).collect())
}

/// The ticks of a minute.
fn one_minute(
    replay: &mut Replay,
    reader: &mut Reader<'_>,
    read: &mut Read,
    minute: i64,
    rows: &[(usize, MinuteRow)],
) {
    for number in 0..TICKS {
        let (_, end) = minutes::bounds(Minute(minute), number);
        let mut sent: BTreeMap<AgentId, Sent> = BTreeMap::new();
        while read.events.front().is_some_and(|it| it.event.at < end) {
            let Some(stored) = read.events.pop_front() else {
                break;
            };
            let agent = stored.agent.unwrap_or(FOREIGN_AGENT);
            let sender = reader.sender(&stored.cluster);
            let event = stored.event;
            sent.entry(agent)
                .or_default()
                .event(DecodedEvent { sender, event });
        }
        for (agent, steps) in reader.steps_until(end) {
            sent.entry(agent).or_default().steps(steps);
        }
        for (place, row) in rows {
            let known = &read.resources[*place];
            let resource = reader.described(known, row, number);
            let told = minutes::tick(&resource, row, Minute(minute), number);
            if let Some(told) = told {
                let agent = known.agent.unwrap_or(FOREIGN_AGENT);
                sent.entry(agent).or_default().resource(told);
            }
        }
        replay.tick(end, sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_a_date_and_nothing_else_is() {
        let day = parse("2026-11-21").expect("it is a day");
        assert_eq!(day, 20_778);
        assert_eq!(words(day), "2026-11-21");
        for other in [
            "2026-13-01",
            "2026-11-21T00:00",
            "21.11.2026",
            "1969-12-31",
            "node.jsonl",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
