//! The weekly digest: on Monday each payer's week goes to the channels that are configured for it.
//!
//! A week is made once, by the server that leads: that it was made is written together with its messages, which the
//! outbox then sends as it sends everything, so a crash or another leader neither loses nor doubles one. A week whose
//! Monday nobody led is made as soon as somebody does, until the next one's turn.
//!
//! Limits: [`MAX_TEAMS`] messages of a week to a receiver, the dearest first; the other teams are one message, which
//! counts them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::chargeback::MILLIS_PER_DAY;
use gpufleet_analysis::digest::{Summary, Week};
use gpufleet_analysis::ledger::MILLIS_PER_HOUR;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::group::{Group, Notice};
use super::settings::{Kind, MAX_ROUTES, NotifyConfig, Settings, Way};
use crate::App;
use crate::money::digest::{read, summaries};
use crate::words::digest::{Said, say, say_rest};

/// Teams whose week one receiver is sent by itself: twenty minutes of messages. Who has more looks at the report.
pub const MAX_TEAMS: usize = 100;

/// How often is looked whether a week is due.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The longest wait of a server that has just begun to lead, seconds.
const MAX_WAIT_S: u64 = 86_400;

/// Whose week goes where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digested {
    /// The channels that it goes to.
    pub channels: Vec<String>,
    /// Teams by the names that they pay under, `unowned` and `nobody` among them; empty: each.
    #[serde(default)]
    pub teams: Vec<String>,
}

impl Digested {
    /// Whether weeks can be made as they are asked for.
    ///
    /// # Errors
    /// Names the key and what it may be.
    pub fn check_all(config: &NotifyConfig) -> Result<(), String> {
        if config.digests.len() > MAX_ROUTES {
            return Err(format!("notify.digests: at most {MAX_ROUTES}"));
        }
        let (hour, wait) = (config.digest_hour, config.digest_wait_s);
        if hour > 23 {
            return Err(format!("notify.digest_hour = {hour}: it is 0 to 23"));
        }
        if wait > MAX_WAIT_S {
            return Err(format!(
                "notify.digest_wait_s = {wait}: it is 0 to {MAX_WAIT_S}"
            ));
        }
        Ok(())
    }

    /// Whether a week can go where it is to go; `kinds` are the channels that there are.
    ///
    /// # Errors
    /// Names the channel and the way out, to follow the key.
    pub fn check(&self, kinds: &BTreeMap<&str, Kind>) -> Result<(), String> {
        if self.channels.is_empty() {
            return Err(" leads nowhere: channels names none".to_owned());
        }
        let mut all = self.channels.iter();
        let unfit = all.find_map(|name| {
            let kind = kinds.get(name.as_str())?;
            (!kind.takes_notices()).then(|| {
                format!(
                    ": channel {name:?} is {}, which is for what is wrong and no place for a digest: name one of kind slack or webhook",
                    kind.name()
                )
            })
        });
        unfit.map_or(Ok(()), Err)
    }

    fn is_of(&self, way: &Way, payer: &str) -> bool {
        let is_to = self.channels.iter().any(|it| **it == *way.channel);
        is_to && (self.teams.is_empty() || self.teams.iter().any(|it| it == payer))
    }
}

/// Makes weeks as they become due, from when this server leads until it is told to stop.
pub async fn run(app: App, stop: CancellationToken) {
    let settings = Settings::read(&app.config.notify);
    let settings = settings.expect("the configuration was checked at the start");
    if settings.digests.is_empty() {
        stop.cancelled().await;
        return;
    }
    if !app.lead.wait(&stop).await {
        return;
    }
    tokio::select! {
        () = stop.cancelled() => return,
        () = app.incidents.restored() => {}
    }
    let (job, clock) = (app.jobs.of("the weekly digest"), app.clock.as_ref());
    let since = clock.monotonic();
    let mut made = None;
    while !stop.is_cancelled() {
        let waited = clock.monotonic().saturating_sub(since);
        let due = due(clock.now(), settings.digest_hour);
        let due = due.filter(|it| made != Some(*it) && waited >= settings.digest_wait);
        if let Some(week) = due
            && job
                .round(clock, Box::pin(make(&app, &settings, week)))
                .await
                .is_some()
        {
            made = Some(week);
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// The week that is to be made by now: the last one, from its Monday's hour on.
fn due(now: Timestamp, hour: u32) -> Option<Week> {
    let week = Week::at(now.millis());
    let from = week.days().start * MILLIS_PER_DAY + i64::from(hour) * MILLIS_PER_HOUR;
    (now.millis() >= from).then(|| week.before())
}

/// Makes a week unless it was made.
///
/// # Errors
/// When the store does not answer.
pub async fn make(app: &App, settings: &Settings, week: Week) -> anyhow::Result<()> {
    if app.store.is_digest_made(week).await? {
        return Ok(app.incidents.take_notices(&app.store).await?);
    }
    let terms = app.money.refresh(&app.store, &app.config).await?;
    let specs = Specs::with(&app.config.gpu.peaks)?;
    let days = read(&app.store, &specs, week).await?;
    let made = tokio::task::spawn_blocking(move || summaries(&days, week, &terms)).await?;
    let now = app.clock.now();
    let notices = notices(&made, settings, &page(&app.config.notify), now);
    let messages = notices.len();
    app.incidents
        .announce(&app.store, week, notices, now)
        .await?;
    tracing::info!(%week, teams = made.len(), messages, "the weekly digest is made");
    Ok(())
}

/// Our page of costs.
pub fn page(config: &NotifyConfig) -> String {
    format!("{}/cost", config.page_url.trim_end_matches('/'))
}

/// What is to be said to whom, the dearest first.
pub fn notices(made: &[Summary], settings: &Settings, page: &str, now: Timestamp) -> Vec<Group> {
    let mut said: BTreeMap<&str, Arc<Notice>> = BTreeMap::new();
    let mut all = Vec::new();
    for way in settings.ways.iter().filter(|it| it.kind.takes_notices()) {
        let is_wanted = |it: &&Summary| settings.digests.iter().any(|of| of.is_of(way, &it.payer));
        let wanted: Vec<&Summary> = made.iter().filter(is_wanted).collect();
        let (named, rest) = wanted.split_at(wanted.len().min(MAX_TEAMS));
        for it in named {
            let notice = said.entry(&it.payer);
            let notice = notice.or_insert_with(|| Arc::new(notice_of(say(it, page), page)));
            all.push(group(way, Arc::clone(notice), all.len(), now));
        }
        if let Some(said) = say_rest(rest, page) {
            let notice = Arc::new(notice_of(said, page));
            all.push(group(way, notice, all.len(), now));
        }
    }
    all
}

fn notice_of(said: Said, page: &str) -> Notice {
    Notice {
        title: said.title,
        text: said.text,
        link: page.to_owned(),
        digest: said.figures,
    }
}

/// A message of its own: its id says when it was made, and for the order in which it goes, how many before it.
fn group(way: &Way, notice: Arc<Notice>, number: usize, now: Timestamp) -> Group {
    let mut bytes: [u8; 10] = rand::random();
    let number = u16::try_from(number).unwrap_or(u16::MAX);
    // The first twelve bits behind the time, and two more, which the variant takes.
    bytes[..2].copy_from_slice(&number.to_be_bytes());
    let millis = u64::try_from(now.millis()).unwrap_or(0);
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid();
    let mut group = Group::new(id, way, Vec::new(), now);
    group.notice = Some(notice);
    group
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::chargeback::Sum;
    use gpufleet_analysis::digest::Spent;
    use gpufleet_analysis::report::efficiency::Training;
    use gpufleet_analysis::table;

    use super::*;
    use crate::notify::fixture;

    fn summary(payer: &str) -> Summary {
        let sum = Sum {
            gpu_millis: MILLIS_PER_HOUR,
            cost: 1_000_000_000,
            ..Sum::default()
        };
        Summary {
            week: Week::parse("2026-W47").expect("a week"),
            payer: payer.to_owned(),
            currency: "USD".to_owned(),
            this: Spent {
                sum,
                held_gpu_millis: MILLIS_PER_HOUR,
                ..Spent::default()
            },
            before: Spent::default(),
            month: Spent::default(),
            training: Training::default(),
            not_read: None,
            runs_untold: None,
            waste: Vec::new(),
            budget: None,
            unpriced: None,
            advised: gpufleet_analysis::taken::Sum::default(),
            advice_not_kept: None,
        }
    }

    fn settings(digests: &[(&str, &[&str])]) -> Settings {
        let mut settings = fixture::settings(&[
            ("chat", Kind::Slack),
            ("hook", Kind::Webhook),
            ("pager", Kind::Pagerduty),
        ]);
        let digested = |(channel, teams): &(&str, &[&str])| Digested {
            channels: vec![(*channel).to_owned()],
            teams: teams.iter().map(|it| (*it).to_owned()).collect(),
        };
        settings.digests = digests.iter().map(digested).collect();
        settings
    }

    fn titles(all: &[Group]) -> Vec<(&str, &str)> {
        let title = |it: &Group| {
            let title = &it.notice.as_ref()?.title;
            Some(title.split(": ").next()?.len())
        };
        all.iter()
            .filter_map(|it| {
                let end = title(it)?;
                Some((
                    &*it.way,
                    &it.notice.as_ref()?.title["Week 2026-W47 of ".len()..end],
                ))
            })
            .collect()
    }

    #[test]
    fn a_week_is_due_from_its_mondays_hour_until_the_next_one_is() {
        let at = |text: &str| Timestamp::from_millis(table::moment(text).expect("a moment"));
        for (now, week) in [
            ("2026-11-23T07:59:59Z", None),
            ("2026-11-23T08:00:00Z", Some("2026-W47")),
            ("2026-11-29T23:59:59Z", Some("2026-W47")),
            ("2026-11-30T00:00:00Z", None),
            ("2026-11-30T08:00:00Z", Some("2026-W48")),
        ] {
            let due = due(at(now), 8).map(|it| it.to_string());
            assert_eq!(due.as_deref(), week, "{now}");
        }
        assert!(due(at("2026-11-30T00:00:00Z"), 0).is_some());
    }

    #[test]
    fn a_team_goes_to_each_channel_that_is_to_have_it_once_and_to_no_other() {
        let made = ["research", "ads", "nobody"].map(summary);
        let of = |digests: &[(&str, &[&str])]| {
            let settings = settings(digests);
            let all = notices(&made, &settings, "x", fixture::START);
            titles(&all)
                .iter()
                .map(|(way, team)| format!("{way} {team}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(
            of(&[("chat", &["ads"]), ("chat", &["ads", "batch"])]),
            ["chat ads"]
        );
        assert_eq!(
            of(&[("hook", &["nobody"]), ("chat", &[])]),
            ["chat research", "chat ads", "chat nobody", "hook nobody"]
        );
    }

    #[test]
    fn of_two_thousand_teams_a_hundred_have_a_message_and_one_tells_of_the_others() {
        let made: Vec<Summary> = (0..2_000)
            .map(|it| summary(&format!("team-{it}")))
            .collect();
        let settings = settings(&[("chat", &[]), ("hook", &["team-1999"])]);
        let all = notices(&made, &settings, "x", fixture::START);
        let chat: Vec<&Group> = all.iter().filter(|it| &*it.way == "chat").collect();
        assert_eq!((chat.len(), all.len()), (MAX_TEAMS + 1, MAX_TEAMS + 2));
        let last = chat[MAX_TEAMS].notice.as_ref().expect("a notice");
        assert!(
            last.title.contains("1\u{202f}900 more teams"),
            "{}",
            last.title
        );
        assert_eq!(titles(&all)[MAX_TEAMS + 1], ("hook", "team-1999"));
        let in_order = all.windows(2).all(|it| it[0].id < it[1].id);
        assert!(in_order, "they go in the order of their ids");
        let bytes: usize = all
            .iter()
            .map(|it| serde_json::to_string(it).expect("JSON").len())
            .sum();
        assert!(bytes < 600_000, "{bytes}");
    }
}
