//! The retention job: what is older than it is kept goes, a bounded piece at a time.
//!
//! Minute rows live 48 hours on SQLite and 7 days on PostgreSQL, ten-minute rows 30 days, steps of
//! training runs 7 days, ledger hours 25 months, days of them 10 years, events and runs 13 months. Minute rows whose hour is still to be computed stay until it is.
//!
//! What is too old this server's clock says. So nothing goes while agents' clocks say another time, and after a start
//! nothing before an agent was heard or had the time to be: a machine may come up days ahead.

use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::store::{Deleted, Expiry, Store, StoreError};

/// How often the job looks, when there was nothing more to delete.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// How often the job looks whether it may delete.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// For so long an agent is waited for that says whether the clock is right. By then those come that are there, and NTP has
/// set a clock that it sets.
const AGENTS_WITHIN: Duration = Duration::from_secs(600);

/// Pause between two pieces, so that commits and pages come in between.
const PAUSE: Duration = Duration::from_millis(500);

/// How long minute rows live on SQLite, hours.
const MINUTES_H_SQLITE: i64 = 48;

/// How long minute rows live on PostgreSQL, hours.
const MINUTES_H_POSTGRES: i64 = 7 * 24;

section! {
    /// How long what is kept.
    pub struct RetentionConfig {
        /// Minute rows, hours. Data that comes later than this is left out. At least 3.
        /// Not set: 48 on SQLite, 168 (7 days) on PostgreSQL.
        pub minute_rows_h: Option<i64> = None,
        /// Ten-minute rows, days.
        pub ten_minute_rows_d: i64 = 30,
        /// Steps of training runs, days.
        pub steps_d: i64 = 7,
        /// Ledger hours, days (25 months).
        pub ledger_d: i64 = 761,
        /// Ledger days, and who held GPUs, days (10 years).
        pub days_d: i64 = 3_650,
        /// Events and runs, days (13 months).
        pub events_d: i64 = 396,
        /// Cursors of agents that were not heard since, days. Agents keep a day of data, so they have
        /// nothing left from before.
        pub senders_d: i64 = 30,
        /// Cursors of an epoch that an agent has replaced, hours since either was heard first. Must be
        /// longer than agents keep data: their spool.limit_hours (24), and as much again to be safe.
        pub epochs_h: i64 = 48,
    }
}

/// Least time that minute rows are kept, hours: an hour, what is computed after it, and late data.
const LEAST_MINUTES_H: i64 = 3;

/// How much longer than anything else a resource's name is kept, hours: its last ledger hours are
/// up to two hours younger than its last sample, and when it was last seen is a few minutes behind.
const RESOURCE_MARGIN_H: i64 = 48;

impl RetentionConfig {
    /// How long minute rows are kept in a database of this kind, hours.
    pub fn minutes_h(&self, kind: &str) -> i64 {
        let default_h = match kind {
            "sqlite" => MINUTES_H_SQLITE,
            _ => MINUTES_H_POSTGRES,
        };
        self.minute_rows_h.unwrap_or(default_h).max(LEAST_MINUTES_H)
    }

    /// What is too old at this moment.
    fn expiry(&self, now: Timestamp, kind: &str) -> Expiry {
        let minutes_h = self.minutes_h(kind);
        let before = |hours: i64| {
            now.shifted(
                hours
                    .saturating_mul(3_600)
                    .saturating_mul(-NANOS_PER_SECOND),
            )
        };
        Expiry {
            minutes: before(minutes_h).minute(),
            buckets: before(self.ten_minute_rows_d.saturating_mul(24))
                .minute()
                .0
                .div_euclid(10),
            steps: before(self.steps_d.saturating_mul(24))
                .minute()
                .0
                .div_euclid(10),
            days: before(self.days_d.saturating_mul(24))
                .minute()
                .hour()
                .div_euclid(24),
            hours: before(self.ledger_d.saturating_mul(24)).minute().hour(),
            events: before(self.events_d.saturating_mul(24)),
            senders: before(self.senders_d.saturating_mul(24)),
            epochs: before(self.epochs_h),
            resources: before(self.longest_h(minutes_h).saturating_add(RESOURCE_MARGIN_H)),
        }
    }
}

impl RetentionConfig {
    /// Refuses what would delete everything: nothing here means "for ever".
    ///
    /// # Errors
    /// The key and its value.
    pub fn check(&self) -> Result<(), String> {
        let least = |key: &str, value: i64, least: i64| match value {
            value if value >= least => Ok(()),
            value => Err(format!(
                "retention.{key} = {value}: must be at least {least}; to keep rows for ever give a large number"
            )),
        };
        if let Some(hours) = self.minute_rows_h {
            least("minute_rows_h", hours, LEAST_MINUTES_H)?;
        }
        least("ten_minute_rows_d", self.ten_minute_rows_d, 1)?;
        least("steps_d", self.steps_d, 1)?;
        least("ledger_d", self.ledger_d, 1)?;
        least("days_d", self.days_d, 1)?;
        least("events_d", self.events_d, 1)?;
        least("senders_d", self.senders_d, 1)?;
        least("epochs_h", self.epochs_h, 1)
    }

    /// How long the longest is kept, hours.
    fn longest_h(&self, minutes_h: i64) -> i64 {
        let days = [self.ten_minute_rows_d, self.ledger_d, self.events_d];
        let hours = days.into_iter().map(|it| it.saturating_mul(24));
        hours.fold(minutes_h, i64::max)
    }
}

/// Deletes from when this server leads until it is told to stop. A failing store is waited for.
pub async fn run(app: App, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("retention"), app.clock.as_ref());
    let began = clock.monotonic();
    while !stop.is_cancelled() {
        let up = clock.monotonic().saturating_sub(began);
        let pause = match job.round(clock, look(&app, up)).await {
            Some(None) => ASK_EVERY,
            Some(Some(deleted)) if deleted.more => PAUSE,
            _ => LOOK_EVERY,
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Deletes one piece of what is too old; none while it is not known what that is.
async fn look(app: &App, up: Duration) -> Result<Option<Deleted>, StoreError> {
    let now = app.clock.now();
    match app.fleet.agents_agree(now) {
        Some(false) => return Ok(None),
        None if up < AGENTS_WITHIN => return Ok(None),
        Some(true) | None => {}
    }
    let deleted = round(&app.store, &app.config.retention, now).await;
    deleted.map(Some)
}

/// Deletes one piece of what is too old, and keeps what comes where a clock that was ahead said that it is.
///
/// # Errors
/// When the store refuses.
pub async fn round(
    store: &Store,
    config: &RetentionConfig,
    now: Timestamp,
) -> Result<Deleted, StoreError> {
    let ahead_minutes = store.take_back_horizon(now).await?;
    if ahead_minutes > 0 {
        tracing::warn!(
            ahead_minutes,
            "minutes were left out that are still to come: this server's clock was ahead once"
        );
    }
    store.retain(&config.expiry(now, store.kind())).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::identity::{AgentId, Epoch};
    use gpufleet_telemetry::otlp::DecodedMetrics;
    use gpufleet_telemetry::time::Clock;
    use gpufleet_telemetry::wire::{Lane, Stream};
    use uuid::Uuid;

    use super::*;
    use crate::auth::Access;
    use crate::config::Config;
    use crate::fleet::{Body, Offer};
    use crate::hand::Hand;
    use crate::store::StoreConfig;
    use crate::store::model::CursorKey;

    /// An agent comes whose clock is so many hours behind the server's.
    fn comes(app: &App, agent: u128, behind_hours: i64) {
        let received = app.clock.now();
        let metrics = DecodedMetrics::default();
        app.fleet.offer(&Offer {
            key: CursorKey {
                agent: AgentId(Uuid::from_u128(agent)),
                epoch: Epoch(Uuid::from_u128(agent)),
                stream: Stream::Metrics,
            },
            seq: 1,
            session: 1,
            lane: Lane::Live,
            dropped: None,
            sent_at: received.shifted(-behind_hours * 3_600 * NANOS_PER_SECOND),
            received,
            bound_cluster: None,
            default_cluster: "c".into(),
            body: Body::Metrics(&metrics),
        });
    }

    #[tokio::test]
    async fn nothing_goes_before_agents_say_that_the_clock_is_right_or_had_the_time_to_say_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreConfig::for_tests(folder.path())).await;
        let store = store.unwrap();
        let clock = Arc::new(Hand::at(Timestamp::from_seconds(1_790_000_000)));
        let lease = store.acquire_lease("server", clock.now(), Duration::from_secs(15));
        lease.await.unwrap();
        let app = App::new(Config::for_tests(), store, Access::default(), clock);
        let looks = async |up| look(&app, up).await.unwrap().is_some();
        assert!(!looks(Duration::ZERO).await, "nobody says anything yet");
        assert!(looks(AGENTS_WITHIN).await, "there may be none");
        comes(&app, 1, 120);
        assert!(!looks(AGENTS_WITHIN).await, "the clock is days ahead");
        comes(&app, 2, 0);
        assert!(looks(Duration::ZERO).await, "it is that agent's");
    }

    #[test]
    fn minutes_live_longer_on_postgresql_and_as_long_as_is_configured() {
        let now = Timestamp::from_seconds(1_000_000_000);
        let hours = |config: &RetentionConfig, kind| {
            (now.minute().0 - config.expiry(now, kind).minutes.0) / 60
        };
        let mut config = RetentionConfig::default();
        assert_eq!(hours(&config, "sqlite"), 48);
        assert_eq!(hours(&config, "postgres"), 168);
        config.minute_rows_h = Some(72);
        assert_eq!(hours(&config, "sqlite"), 72);
        config.minute_rows_h = Some(0);
        assert_eq!(hours(&config, "sqlite"), LEAST_MINUTES_H);
    }

    #[test]
    fn an_absurd_age_keeps_everything() {
        let config = RetentionConfig {
            minute_rows_h: Some(i64::MAX),
            ..RetentionConfig::default()
        };
        let expiry = config.expiry(Timestamp::from_seconds(1_000_000_000), "sqlite");
        assert!(expiry.minutes.0 < 0);
    }
}
