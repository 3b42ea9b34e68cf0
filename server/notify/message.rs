//! What a message says: what is wrong, where, since when, why and how that is known, what it costs, whose
//! it is, which page helps, and how to silence it.
//!
//! Limits: [`MAX_ITEMS`] incidents in full, the worst first, the others counted; [`MAX_EVIDENCE`] pieces of
//! evidence each; texts cut with a note by [`cut`].

use std::sync::Arc;

use gpufleet_analysis::incident::{Incident, Place};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::group::{Delivered, Group, Name, Notice, Says};
use super::outbox::Sending;
use super::own;
use super::settings::{NotifyConfig, Settings};
use crate::money::budgets;
use crate::words::address;
use crate::words::incident::{self, all_cost, costs, evidence, lost, reckoned};
use crate::words::text::{self, harmless, segment};

/// Incidents that a message to people has in full.
pub const MAX_ITEMS: usize = 10;
/// Pieces of evidence of an incident in a message.
pub const MAX_EVIDENCE: usize = 5;
/// Longest text from outside in a message, characters.
const MAX_TEXT: usize = 1_000;

/// One incident in a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Item {
    /// Its id, for ever.
    pub id: Uuid,
    /// `open` or `resolved`.
    pub state: &'static str,
    /// What kind of trouble.
    pub kind: &'static str,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// What it is.
    pub what: String,
    /// Where, as people say it.
    pub place: String,
    /// The cluster.
    pub cluster: String,
    /// The node, if it is about one.
    pub node: Option<String>,
    /// The GPU, if it is about one.
    pub gpu: Option<String>,
    /// The run, if it is about one.
    pub run: Option<String>,
    /// The rank, if it is about one.
    pub rank: Option<u32>,
    /// The likeliest cause, in words.
    pub cause: &'static str,
    /// The same, where it is known and says more than `what`.
    pub because: Option<&'static str>,
    /// Since when, RFC 3339.
    pub since: String,
    /// When it was over, RFC 3339.
    pub until: Option<String>,
    /// What was read, beside what is usual.
    pub evidence: Vec<String>,
    /// What to do; may be empty.
    pub action: String,
    /// What it costs an hour, or why that is not known.
    pub costs: String,
    /// What it has cost, and what is at stake, unobserved or repeated beside.
    pub lost: String,
    /// What these figures are reckoned by; empty where there are none, and `costs` says why.
    pub reckoned: &'static str,
    /// Whose it is.
    pub owner: String,
    /// The page that helps.
    pub runbook: String,
    /// Our page of it.
    pub link: String,
    /// The Grafana dashboard of its place.
    pub grafana: Option<String>,
    /// Who works on it.
    pub acknowledged_by: Option<String>,
    /// When it opened and when it was over: for receivers that want moments.
    #[serde(skip)]
    pub times: (Timestamp, Option<Timestamp>),
    /// What it is called in this message, and what it may be known by from before: for receivers that know it by
    /// that.
    #[serde(skip)]
    pub called: Vec<Called>,
}

/// What an incident is called, by receivers that know it by its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// What kind of trouble.
    pub kind: &'static str,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// Whose it is.
    pub owner: String,
    /// The cluster.
    pub cluster: String,
    /// The node, if it is about one.
    pub node: Option<String>,
    /// The GPU, if it is about one.
    pub gpu: Option<String>,
    /// The run, if it is about one.
    pub run: Option<String>,
    /// The rank, if it is about one.
    pub rank: Option<u32>,
    /// Whether it is so under this name.
    pub is_open: bool,
}

/// One message to one receiver.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// The key that stays the same from the first message about these incidents to the last.
    pub key: String,
    /// The key of this message, however often it is sent.
    pub message_key: String,
    /// `opened`, `updated` or `resolved`; `notice` where it is about no incident.
    pub says: Says,
    /// Whether nobody was told of it before.
    pub is_first: bool,
    /// The line above everything.
    pub title: String,
    /// All the rest, for people.
    pub text: String,
    /// The worst that is open, or that was.
    pub severity: &'static str,
    /// What the incidents have in common, `cluster prod, kind heat`.
    pub common: String,
    /// How many are open.
    pub open: usize,
    /// How many of those that were told are over.
    pub over: usize,
    /// Incidents that are counted and not shown.
    pub left_out: u64,
    /// Since when, RFC 3339.
    pub since: String,
    /// What all of them cost an hour, where that is known.
    pub costs: Option<String>,
    /// Our page.
    pub link: String,
    /// How to silence it.
    pub silence: String,
    /// The incidents, the worst first.
    pub incidents: Vec<Item>,
    /// A payer's week, of a message that is about no incident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<serde_json::Value>,
    /// When it was written.
    #[serde(skip)]
    pub at: Timestamp,
    /// The receiver's name.
    #[serde(skip)]
    pub way: Arc<str>,
}

/// Where people find what a message names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses {
    page: String,
    grafana: String,
    runbooks: String,
}

impl Addresses {
    /// As it is configured.
    pub fn of(config: &NotifyConfig) -> Self {
        let whole = |it: &str| it.trim_end_matches('/').to_owned();
        let page = whole(&config.page_url);
        Self {
            runbooks: match config.runbook_url.as_str() {
                "" => format!("{page}/runbooks"),
                elsewhere => whole(elsewhere),
            },
            page,
            grafana: config.grafana_url.clone(),
        }
    }

    fn grafana(&self, place: &Place) -> Option<String> {
        if self.grafana.is_empty() || own::is_own(place) || budgets::is_one(place) {
            return None;
        }
        let put = |it: Option<&str>| segment(it.unwrap_or_default());
        let address = self
            .grafana
            .replace("{cluster}", &put(Some(&place.cluster)));
        let address = address.replace("{node}", &put(place.node.as_deref()));
        Some(address.replace("{gpu}", &put(place.gpu.as_deref())))
    }
}

/// A message that is about no incident, title and text and all.
pub fn of_notice(group: &Group, notice: &Notice, now: Timestamp) -> Message {
    Message {
        key: group.key(),
        message_key: group.message_key(),
        says: Says::Notice,
        is_first: true,
        title: notice.title.clone(),
        text: notice.text.clone(),
        severity: Severity::Info.name(),
        common: String::new(),
        open: 0,
        over: 0,
        left_out: 0,
        since: text::rfc3339(group.began_at),
        costs: None,
        link: notice.link.clone(),
        silence: String::new(),
        incidents: Vec::new(),
        digest: Some(notice.digest.clone()),
        at: now,
        way: Arc::clone(&group.way),
    }
}

/// The incidents that a message is about: those the receiver knows or is to know. What is over for it and
/// came back silently is none.
pub fn told(sending: &Sending) -> impl Iterator<Item = Uuid> {
    let members = sending.group.members.iter();
    let is_told = |it: &super::group::Member| match it.resolved_at {
        Some(_) => !it.is_silent(),
        None => it.is_loud() || it.told == Delivered::Open,
    };
    members
        .filter(move |(_, it)| is_told(it))
        .map(|(id, _)| *id)
}

/// Writes a message, but for title and text, which templates make of it. `incidents` are those of
/// [`told`] as far as they are known; `place` says where one is, `currency` what their money is in.
pub fn write(
    sending: &Sending,
    incidents: &[Incident],
    settings: &Settings,
    addresses: &Addresses,
    place: &dyn Fn(&Place) -> String,
    currency: &str,
    now: Timestamp,
) -> Message {
    let group = &sending.group;
    let mut all: Vec<&Incident> = incidents.iter().collect();
    all.sort_by_key(|it| {
        let loses = it.losing.milli_gpus;
        let rank = (it.resolved_at.is_none(), it.severity, loses);
        (std::cmp::Reverse(rank), it.since, it.id)
    });
    let open = all.iter().filter(|it| it.resolved_at.is_none()).count();
    let severity = all.first().map(|it| it.severity);
    let costs = all_cost(
        all.iter().copied().filter(|it| it.resolved_at.is_none()),
        currency,
    );
    let wanted = match sending.way.kind.wants_each() {
        true => all.len(),
        false => MAX_ITEMS,
    };
    let known = told(sending).count();
    let left_out = group.left_out + known.saturating_sub(all.len().min(wanted)) as u64;
    let items: Vec<Item> = all
        .iter()
        .take(wanted)
        .map(|it| Item {
            called: called(it, group, settings),
            ..item(it, settings, addresses, place, currency)
        })
        .collect();
    let common: Vec<String> = group
        .common
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name} {}", harmless(value, MAX_TEXT)))
        .collect();
    let since = all
        .iter()
        .map(|it| it.since)
        .min()
        .unwrap_or(group.began_at);
    let link = match items.as_slice() {
        [one] => one.link.clone(),
        _ => format!("{}/incidents", addresses.page),
    };
    Message {
        key: group.key(),
        message_key: group.message_key(),
        says: sending.says,
        is_first: group.first_at.is_none(),
        title: String::new(),
        text: String::new(),
        severity: severity.map_or("info", |it| it.name()),
        common: common.join(", "),
        open,
        over: all.len() - open,
        left_out,
        since: text::rfc3339(since),
        costs,
        link,
        silence: silence(group, &items, left_out),
        incidents: items,
        digest: None,
        at: now,
        way: Arc::clone(&group.way),
    }
}

/// The command that silences a message: of several incidents by what they have in common where patterns can
/// say it, else the worst of them. It is typed into a shell: names that mean something there are left out.
fn silence(group: &Group, items: &[Item], left_out: u64) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let pattern = |(name, value): &(String, String)| {
        let is_pattern = ["cluster", "kind", "node", "team"].contains(&name.as_str());
        let is_typed = !value.is_empty() && value.chars().all(is_plain);
        (is_pattern && is_typed).then(|| format!("{name}={value}"))
    };
    let patterns: Option<Vec<String>> = group.common.iter().map(pattern).collect();
    let is_one = items.len() < 2 && left_out == 0;
    let what = match patterns.filter(|it| !is_one && !it.is_empty()) {
        Some(patterns) => patterns.join(" "),
        None => items.first().map_or(Uuid::nil(), |it| it.id).to_string(),
    };
    format!("gpufleet silence {what} --for 2h")
}

fn item(
    incident: &Incident,
    settings: &Settings,
    addresses: &Addresses,
    place: &dyn Fn(&Place) -> String,
    currency: &str,
) -> Item {
    let at = &incident.place;
    let short = |it: &str| harmless(it, MAX_TEXT);
    let some = |it: &Option<String>| it.as_deref().map(short);
    let mut evidence: Vec<String> = incident
        .evidence
        .iter()
        .take(MAX_EVIDENCE)
        .map(|it| {
            format!(
                "{}: {}",
                short(&place(&it.place)),
                evidence(&it.what, &it.readings)
            )
        })
        .collect();
    let more = incident.evidence.len().saturating_sub(MAX_EVIDENCE) as u64 + incident.more_evidence;
    if more > 0 {
        evidence.push(format!("and {more} more"));
    }
    Item {
        id: incident.id,
        state: incident.state.name(),
        kind: incident.family.name(),
        severity: incident.severity.name(),
        what: short(&incident::what(incident)),
        place: short(&place(at)),
        cluster: short(&at.cluster),
        node: some(&at.node).filter(|_| !budgets::is_one(at)),
        gpu: some(&at.gpu),
        run: some(&at.run),
        rank: at.rank,
        cause: incident.cause.words(),
        because: incident::cause(incident),
        since: text::rfc3339(incident.since),
        until: incident.resolved_at.map(text::rfc3339),
        evidence,
        action: short(&incident.action),
        costs: costs(incident, currency),
        lost: lost(incident, currency),
        reckoned: reckoned(incident),
        owner: short(settings.owner_words(incident)),
        runbook: format!("{}/{}.md", addresses.runbooks, super::runbook::of(incident)),
        link: format!("{}/incidents/{}", addresses.page, incident.id),
        grafana: addresses.grafana(at),
        acknowledged_by: some(&incident.acknowledged_by),
        times: (incident.since, incident.resolved_at),
        called: Vec::new(),
    }
}

/// The names of an incident in a message: those that are over first. None has several but Alertmanager's.
fn called(incident: &Incident, group: &Group, settings: &Settings) -> Vec<Called> {
    let member = group.members.get(&incident.id);
    let known = member.filter(|it| it.names.now.is_some());
    let Some(member) = known else {
        let name = Name::of(incident, settings.owner_words(incident));
        return vec![call(&name, incident.resolved_at.is_none())];
    };
    let open = member.names.open(member.is_loud());
    let open = open.filter(|_| member.resolved_at.is_none());
    let over = member.names.all().filter(|it| Some(*it) != open);
    over.map(|it| call(it, false))
        .chain(open.map(|it| call(it, true)))
        .collect()
}

fn call(name: &Name, is_open: bool) -> Called {
    let short = |it: &str| harmless(it, MAX_TEXT);
    let some = |it: &Option<String>| it.as_deref().map(short);
    let place = &name.place;
    Called {
        kind: name.family.name(),
        severity: name.severity.name(),
        owner: short(&name.owner),
        cluster: short(&place.cluster),
        node: some(&place.node).filter(|_| !budgets::is_one(place)),
        gpu: some(&place.gpu),
        run: some(&place.run),
        rank: place.rank,
        is_open,
    }
}

/// The page of a place, of those that have one.
pub fn place_link(addresses: &Addresses, place: &Place) -> String {
    format!("{}{}", addresses.page, address::place(place))
}

/// A text of at most so many characters, with a note where something is missing.
pub fn cut(text: &str, characters: usize) -> String {
    const NOTE: &str = "… (cut: our page has all of it)";
    if text.chars().nth(characters).is_none() {
        return text.to_owned();
    }
    let kept = characters.saturating_sub(NOTE.chars().count());
    let kept: String = text.chars().take(kept).collect();
    let whole = format!("{kept}{NOTE}");
    match whole.chars().nth(characters) {
        None => whole,
        Some(_) => text.chars().take(characters).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::example;
    use crate::notify::fixture::{START, settings};
    use crate::notify::settings::Kind;

    /// What is in common, the incidents that are shown, how many more there are, and the command.
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [Item], u64, &'a str);

    #[test]
    fn several_incidents_are_silenced_by_what_they_share_where_a_shell_takes_that_as_it_is() {
        let settings = settings(&[("chat", Kind::Slack)]);
        let two = example::messages().remove(3).incidents;
        let by_id = format!("gpufleet silence {} --for 2h", two[0].id);
        let (prod, heat) = (("cluster", "prod"), ("kind", "heat"));
        let by_pattern = "gpufleet silence cluster=prod kind=heat --for 2h";
        let cases: [Case<'_>; 7] = [
            (&[prod, heat], &two, 0, by_pattern),
            (&[prod, heat], &two[..1], 5, by_pattern),
            (&[prod, heat], &two[..1], 0, &by_id),
            (&[("cluster", "prod; reboot"), heat], &two, 0, &by_id),
            (&[prod, ("node", "")], &two, 0, &by_id),
            (&[prod, ("severity", "error")], &two, 0, &by_id),
            (&[], &two, 0, &by_id),
        ];
        for (common, items, left_out, expected) in cases {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let common = common.iter().map(owned).collect();
            let group = Group::new(Uuid::nil(), &settings.ways[0], common, START);
            assert_eq!(silence(&group, items, left_out), expected);
        }
    }
}
