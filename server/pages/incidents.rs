//! What is wrong: the list of incidents, one of them with all that is known, and the line on the fleet
//! page that says the worst of it with what it costs.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use gpufleet_analysis::incident::{Happened, Incident, Line, State as Life};
use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use uuid::Uuid;

use super::asked::{Path, Query};
use super::frame::{self, Frame};
use super::problem;
use crate::api::deliveries::{deliveries, shows_why};
use crate::api::incidents::{IncidentsAsked, find};
use crate::fleet::naming::origin_of;
use crate::notify::group::{Group, State as Told};
use crate::runs::stopped::Stopped;
use crate::store::model::IncidentFilter;
use crate::view::FleetView;
use crate::web::Web;
use crate::words::incident::{
    all_cost, costs, evidence, is_only_unseen, lost, place_words, price, run_of, why,
};
use crate::words::text::{self, Name};
use crate::words::{self, Said, address};

mod beside;

mod narrowed;

mod say;

pub(in crate::pages) use beside::Beside;
use narrowed::Narrowed;
use say::SayForm;
pub use say::say;

/// Incidents that are over, on the list.
const OVER: usize = 50;

/// So long before or after an incident began a run ended that it stopped, nanoseconds.
const STOPPED_AROUND: i64 = 900 * NANOS_PER_SECOND;

/// Runs that are named as stopped.
const MAX_STOPPED: usize = 8;

#[derive(Template)]
#[template(path = "incidents.html")]
struct ListPage {
    frame: Frame,
    /// How many of those that are open are live.
    live: usize,
    /// How many are not, and what they are; empty where there are none.
    others: String,
    open: Vec<Row>,
    silences: Vec<Silent>,
    over: Vec<Row>,
    /// Where older ones stand that are over.
    older: Option<String>,
    only: Narrowed,
}

/// What nobody is told of for a while.
struct Silent {
    /// The pattern; or the place and what is wrong, of one incident alone.
    what: Name,
    /// The page of the one.
    address: Option<String>,
    until: String,
    /// Who says so; none where the log says it no more.
    who: Option<Name>,
    note: Name,
    /// Open incidents that are like that.
    incidents: usize,
}

#[derive(Template)]
#[template(path = "incident.html")]
struct OnePage {
    frame: Frame,
    row: Row,
    /// The page of the job that it is about, and the job's name.
    job: Option<(String, Name)>,
    /// The pages and names of jobs that it stopped, with what they lost.
    stopped: Vec<(String, Name, String)>,
    runbook: String,
    facts: Vec<(&'static str, Said)>,
    evidence: Vec<Entry>,
    more_evidence: u64,
    told: Vec<Entry>,
    log: Vec<Entry>,
    say: Option<SayForm>,
}

/// One incident in few words.
pub struct Row {
    /// Its own page.
    pub address: String,
    /// Where: `GPU 3 of node-7`.
    pub place: Name,
    /// The page of the place.
    pub place_address: String,
    /// What it is.
    pub what: Name,
    /// Why, in words; none when it is not known.
    pub cause: Option<&'static str>,
    /// What it costs an hour, or that there is no price.
    pub costs: String,
    /// What it cost so far.
    pub lost: String,
    /// Since when.
    pub since: Moment,
    /// How long it was so far, `for 3 min`, or in all, `over after 3 min`.
    pub lasted: String,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// Who works on it.
    pub by: Option<Name>,
    /// Until when nobody is told of it; none where no silence holds now.
    pub silent: Option<String>,
    /// What to do.
    pub action: Name,
    /// Since when nobody hears of its place.
    pub unheard: Option<String>,
    /// The mark of a cluster that is not live.
    pub mark: Option<&'static str>,
}

/// What happened, or was seen, at a moment.
struct Entry {
    at: String,
    datetime: String,
    about: Option<String>,
    text: String,
}

/// A moment for people and for programs.
pub struct Moment {
    /// In UTC.
    pub text: String,
    /// As `datetime` has it.
    pub datetime: String,
}

/// What the fleet page says of incidents.
pub struct Headline {
    /// `1 incident`, `3 incidents`.
    pub count: String,
    /// What all of them cost an hour, where more than one does.
    pub all_cost: Option<String>,
    /// The worst one.
    pub worst: Row,
}

/// `GET /incidents`.
pub async fn show(
    State(web): State<Arc<Web>>,
    Query(asked): Query<IncidentsAsked>,
    frame: Frame,
) -> Response {
    let only = match Narrowed::of(asked, &frame.grant) {
        Ok(only) => only,
        Err(refused) => {
            let why = text::harmless(refused.detail(), text::SENTENCE_CHARACTERS);
            let title = "Incidents cannot be asked for so";
            return problem::refused(frame, refused.status(), title, why + ".", "/incidents");
        }
    };
    let view = web.views.get(&web.app).await;
    let currency = web.app.currency();
    let filter = IncidentFilter {
        state: Some(Life::Resolved),
        ..only.filter.clone()
    };
    let (over, next) = match web.app.store.incidents(&filter, only.before, OVER).await {
        Ok(over) => over,
        Err(error) => return problem::store_failed(frame, &error),
    };
    let known = web.app.incidents.open(&frame.grant);
    let over: Vec<Row> = over
        .iter()
        .filter(|it| !known.iter().any(|known| known.id == it.id) && filter.is_met(it))
        .map(|it| row(it, &view, frame.at, currency))
        .collect();
    let mut open: Vec<&Incident> = known.iter().filter(|it| only.filter.is_met(it)).collect();
    open.sort_by_key(|it| (!is_live(it), rank(it)));
    let open: Vec<Row> = open
        .into_iter()
        .map(|it| row(it, &view, frame.at, currency))
        .collect();
    let silences = silences(&web, &known, &view, &frame);
    let count = |of| {
        let mark = words::watermark(of);
        open.iter().filter(|it| it.mark == mark).count()
    };
    let live = count(Origin::Live);
    let others = [Origin::Simulated, Origin::Recorded].map(|it| (count(it), it.name()));
    let others = others.iter().filter(|it| it.0 > 0);
    let others: Vec<String> = others.map(|it| format!("{} {}", it.0, it.1)).collect();
    let page = ListPage {
        frame,
        live,
        others: others.join(" and "),
        open,
        silences,
        over,
        older: next.map(|it| only.address(it)),
        only,
    };
    frame::page(StatusCode::OK, &page)
}

/// What nobody is told of: by patterns, the first made first, then what somebody has silenced alone.
fn silences(web: &Web, open: &[Incident], view: &FleetView, frame: &Frame) -> Vec<Silent> {
    let by_pattern = web.app.incidents.silences(&frame.grant, frame.at);
    let by_pattern = by_pattern.iter().map(|it| Silent {
        what: Name::new(&it.pattern.words()),
        address: None,
        until: text::moment(it.until),
        who: Some(Name::new(&it.who)),
        note: Name::sentence(&it.note),
        incidents: web.app.incidents.about(it, open),
    });
    let alone = open.iter().filter_map(|it| {
        let (until, line) = it.silenced_alone(frame.at)?;
        let place = place_words(&it.place_and_run(), view);
        Some(Silent {
            what: Name::sentence(&format!("{place}: {}", it.what)),
            address: Some(format!("/incidents/{}", it.id)),
            until: text::moment(until),
            who: line.and_then(|it| it.who.as_deref()).map(Name::new),
            note: Name::default(),
            incidents: 1,
        })
    });
    by_pattern.chain(alone).collect()
}

/// `GET /incidents/{id}`.
pub async fn show_one(
    State(web): State<Arc<Web>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    frame: Frame,
) -> Response {
    let unknown = |frame: Frame| {
        let said = text::harmless(&id, text::SHOWN_CHARACTERS);
        problem::not_found(
            frame,
            format!("No incident “{said}”"),
            vec!["The list of incidents has those that are known.".to_owned()],
        )
    };
    let Ok(number) = Uuid::parse_str(&id) else {
        return unknown(frame);
    };
    let incident = match find(&web, &frame.grant, number).await {
        Ok(Some(incident)) => incident,
        Ok(None) => return unknown(frame),
        Err(_) => return problem::store_failed(frame, &"an incident could not be read"),
    };
    let Ok(told) = deliveries(&web, number).await else {
        return problem::store_failed(frame, &"what was said of an incident could not be read");
    };
    let view = web.views.get(&web.app).await;
    let page = OnePage {
        told: told
            .iter()
            .map(|it| told_entry(it, shows_why(&frame.grant)))
            .collect(),
        row: row(&incident, &view, frame.at, web.app.currency()),
        job: run_of(&incident.place_and_run())
            .map(|key| (address::run(&key), Name::new(&key.run.job.name))),
        stopped: stopped(&web, &incident),
        runbook: address::runbook(crate::notify::runbook::of(&incident)),
        facts: facts(
            &incident,
            &web.app.incidents.owner_of(&incident),
            frame.at,
            web.app.currency(),
        ),
        evidence: incident
            .evidence
            .iter()
            .map(|it| Entry {
                at: text::moment(it.at),
                datetime: text::rfc3339(it.at),
                about: Some(place_words(&it.place, &view)),
                text: evidence(&it.what, &it.readings),
            })
            .collect(),
        more_evidence: incident.more_evidence,
        log: incident.log.iter().map(|it| entry(it, &incident)).collect(),
        say: SayForm::of(&web, (&headers, &frame), &incident),
        frame,
    };
    frame::page(StatusCode::OK, &page)
}

/// The jobs that it stopped, with how many ranks and steps that were.
fn stopped(web: &Web, incident: &Incident) -> Vec<(String, Name, String)> {
    let around = incident.since.shifted(-STOPPED_AROUND)..incident.since.shifted(STOPPED_AROUND);
    let all = web.app.fleet.runs().stopped_at(&incident.place, &around);
    let said = |it: Stopped| {
        let ranks = text::counted(it.ranks, "rank", "ranks");
        let lost = match it.steps_lost {
            Some(steps) => format!("{} lost", text::counted(steps as usize, "step", "steps")),
            None => "how many steps are lost is not known".to_owned(),
        };
        let name = Name::new(&it.key.run.job.name);
        (address::run(&it.key), name, format!("{ranks}, {lost}"))
    };
    all.into_iter().take(MAX_STOPPED).map(said).collect()
}

/// What the fleet page says, with money in this currency; nothing when nothing is wrong.
pub fn headline(incidents: &[Incident], view: &FleetView, currency: &str) -> Option<Headline> {
    let live = incidents.iter().filter(|it| is_live(it));
    let mut shown: Vec<&Incident> = live.collect();
    // What is simulated is in no live sum: it is said here only where nothing live is wrong.
    if shown.is_empty() {
        shown = incidents.iter().collect();
    }
    let worst = shown.iter().min_by_key(|it| rank(it))?;
    let all_cost = all_cost(shown.iter().copied(), currency).filter(|_| shown.len() > 1);
    Some(Headline {
        count: text::counted(shown.len(), "incident", "incidents"),
        all_cost,
        worst: row(worst, view, view.at, currency),
    })
}

/// Whether an incident is of a cluster that is live, or of gpufleet itself. The name says it: a demo that was
/// stopped is in no picture any more, and what is wrong there is no more live for it.
fn is_live(incident: &Incident) -> bool {
    origin_of(&incident.place.cluster) == Origin::Live
}

/// The worst first: by severity, by what it loses, by age.
fn rank(incident: &Incident) -> (std::cmp::Reverse<(u8, u64)>, Timestamp) {
    let severity = incident.severity as u8;
    let loses = incident.losing.milli_gpus;
    (std::cmp::Reverse((severity, loses)), incident.since)
}

fn row(incident: &Incident, view: &FleetView, now: Timestamp, currency: &str) -> Row {
    let until = incident.resolved_at.unwrap_or(now);
    let lasted = text::span(until.millis() - incident.since.millis());
    Row {
        address: format!("/incidents/{}", incident.id),
        place: Name::sentence(&place_words(&incident.place_and_run(), view)),
        place_address: address::place(&incident.place),
        what: Name::sentence(&words::incident::what(incident)),
        cause: words::incident::cause(incident),
        costs: costs(incident, currency),
        lost: lost(incident, currency),
        since: Moment {
            text: text::moment(incident.since),
            datetime: text::rfc3339(incident.since),
        },
        lasted: match incident.resolved_at {
            Some(_) => format!("over after {lasted}"),
            None => format!("for {lasted}"),
        },
        severity: incident.severity.name(),
        by: incident.acknowledged_by.as_deref().map(Name::new),
        silent: incident.silent_until(now).map(text::moment),
        action: Name::sentence(&incident.action),
        unheard: incident
            .unheard_since
            .map(|at| format!("Nothing is heard of it since {}.", text::moment(at))),
        mark: words::watermark(origin_of(&incident.place.cluster)),
    }
}

fn facts(
    incident: &Incident,
    owner: &str,
    now: Timestamp,
    currency: &str,
) -> Vec<(&'static str, Said)> {
    let name = |of: &str| Said::from(text::harmless(of, text::SHOWN_CHARACTERS));
    let mut facts = vec![
        ("Kind", incident.family.name().replace('_', " ").into()),
        ("Cause", why(incident).into()),
        ("Owner", name(owner)),
        ("Began", text::moment(incident.since).into()),
        ("Last seen", text::ago(now, incident.seen_at).into()),
        ("Price", Said::ours("prices", price(incident, currency))),
    ];
    if let Some(at) = incident.resolved_at {
        facts.push(("Over", text::moment(at).into()));
    }
    if let Some(confidence) = incident.confidence {
        facts.insert(2, ("Confidence", confidence.name().into()));
    }
    if incident.places > 1 {
        facts.push(("Places", incident.places.to_string().into()));
    }
    if let Some(who) = &incident.acknowledged_by {
        facts.push(("In the hands of", name(who)));
    }
    if let Some(until) = incident.silent_until(now) {
        facts.push(("Silent until", text::moment(until).into()));
    }
    facts
}

/// What was said to one receiver.
fn told_entry(group: &Group, shows_why: bool) -> Entry {
    let at = group.tried_at.unwrap_or(group.began_at);
    let state = match group.state() {
        Told::Waiting => "has not been told yet",
        Told::Retrying => "was not reached, and is tried again",
        Told::Delivered => "was told",
        Told::Refused => {
            "refuses the message; it is sent again when the channel is mended (gpufleet notify test says whether it is)"
        }
        Told::Over => "was told that it is over",
    };
    let why = group.error.as_deref().filter(|_| shows_why);
    let why = why.unwrap_or_default();
    let why = text::harmless(why, text::SHOWN_CHARACTERS);
    let because = if why.is_empty() { "" } else { ": " };
    Entry {
        at: text::moment(at),
        datetime: text::rfc3339(at),
        about: Some(group.way.to_string()),
        text: format!("{state}{because}{why}"),
    }
}

fn entry(line: &Line, of: &Incident) -> Entry {
    let text = match &line.happened {
        Happened::Opened => "opened".to_owned(),
        Happened::Reopened => "came back".to_owned(),
        Happened::Widened(place) => {
            format!(
                "is about more: {}",
                text::harmless(place, text::SHOWN_CHARACTERS)
            )
        }
        Happened::Merged(other) => format!("took in {other}, which has the same cause"),
        Happened::Explained(other) => format!("ended: {other} explains it"),
        Happened::Understood(what) => {
            let what = text::harmless(what, text::SHOWN_CHARACTERS);
            format!("was understood: {what}")
        }
        Happened::Resolved if is_only_unseen(of) => "was not seen again".to_owned(),
        Happened::Resolved => "is over".to_owned(),
        Happened::Acknowledged => "is in hand".to_owned(),
        Happened::Silenced(_) if line.ends_silence() => "is silent no more".to_owned(),
        Happened::Silenced(until) => format!("is silent until {}", text::moment(*until)),
        Happened::Note(note) => text::harmless(note, NOTE_CHARACTERS),
    };
    let who = line.who.as_deref();
    Entry {
        at: text::moment(line.at),
        datetime: text::rfc3339(line.at),
        about: who.map(|it| text::harmless(it, text::SHOWN_CHARACTERS)),
        text,
    }
}

/// Longest note as it is shown: all that one may have.
const NOTE_CHARACTERS: usize = gpufleet_analysis::incident::MAX_NOTE_BYTES;

#[cfg(test)]
mod tests {
    use gpufleet_analysis::lost::Losing;

    use super::*;
    use crate::notify::fixture;

    #[test]
    fn a_price_that_is_not_known_leads_to_prices_and_what_others_wrote_nowhere() {
        let mut incident = fixture::incident(1);
        incident.acknowledged_by = Some("no price".to_owned());
        for (price, anchor) in [(Some(3_000_000_000), None), (None, Some("prices"))] {
            incident.losing = Losing::gpus(1, price);
            for (fact, said) in facts(&incident, "not known", fixture::START, "USD") {
                let expected = anchor.filter(|_| fact == "Price");
                assert_eq!(said.anchor(), expected, "{fact}: {said}");
            }
        }
    }
}
