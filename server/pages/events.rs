//! What happened, as a list on the page of a job, a node or a GPU.

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};

use crate::store::model::StoredEvent;
use crate::words::text::{self, Name};
use crate::words::{self, address};

/// Lines shown on a page; the API has the rest.
pub const SHOWN: usize = 30;

/// Events read for the page of a job, whose ranks all tell of the same end.
pub const READ_OF_JOB: usize = 500;

/// What says the same again within this time of the last is one line, nanoseconds.
const TOGETHER: i64 = 60 * NANOS_PER_SECOND;

/// Longest message shown, characters.
const MESSAGE_CHARACTERS: usize = 600;

/// One event ready for the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When, for people.
    pub at: String,
    /// When, for machines.
    pub datetime: String,
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// What happened, in a few words.
    pub kind: &'static str,
    /// The sentence that came with it.
    pub message: String,
    /// What to do, where the event says it.
    pub action: Option<String>,
    /// What it is about, where that is not the page's own subject.
    pub about: Option<(String, Name)>,
    /// How often it was told within a minute, the last time at `at`.
    pub times: usize,
}

/// An XID code with how often it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XidLine {
    /// The code.
    pub code: String,
    /// How often since the agent started.
    pub count: String,
    /// When it last came, and what to do, as far as stored events say.
    pub last: Option<(String, String)>,
}

/// Events for a page about `subject`, newest first as they come; what says the same is one line.
pub fn entries(events: &[StoredEvent], subject: (ResourceKind, &str)) -> Vec<Entry> {
    let mut lines: Vec<Entry> = Vec::new();
    let mut earliest = None;
    for stored in events {
        let entry = entry(stored, subject);
        let at = stored.event.at;
        let is_near = earliest.is_some_and(|it: Timestamp| it.since(at) <= TOGETHER);
        earliest = Some(at);
        let is_full = lines.len() == SHOWN;
        match lines.last_mut().filter(|it| is_near && it.says_as(&entry)) {
            Some(line) => line.times += 1,
            None if is_full => break,
            None => lines.push(entry),
        }
    }
    lines
}

impl Entry {
    fn says_as(&self, other: &Self) -> bool {
        (self.kind, self.severity) == (other.kind, other.severity)
            && self.message == other.message
            && self.action == other.action
            && self.about == other.about
    }
}

fn entry(stored: &StoredEvent, subject: (ResourceKind, &str)) -> Entry {
    let event = &stored.event;
    let is_subject = (event.resource_kind, &*event.resource_id) == subject;
    let is_gpu = event.resource_kind == ResourceKind::Gpu;
    let about = (!is_subject && is_gpu).then(|| {
        let address = address::gpu(&stored.cluster, &event.resource_id);
        (address, Name::new(&event.resource_id))
    });
    Entry {
        at: text::moment(event.at),
        datetime: text::rfc3339(event.at),
        severity: match event.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        },
        kind: words::event(event.kind),
        message: text::harmless(&event.message, MESSAGE_CHARACTERS),
        action: action(event),
        about,
        times: 1,
    }
}

/// What the event says is to be done.
fn action(event: &Event) -> Option<String> {
    let raw = event.attributes.get("action")?;
    let plain = raw.replace('_', " ");
    Some(text::harmless(&plain, text::SHOWN_CHARACTERS))
}

/// The newest stored event of an XID code: when, and what to do.
pub fn last_xid(events: &[StoredEvent], code: &str) -> Option<(String, String)> {
    let newest = events
        .iter()
        .map(|stored| &stored.event)
        .filter(|event| event.kind == EventKind::Xid)
        .find(|event| event.attributes.get("xid").is_some_and(|it| it == code))?;
    let action = action(newest).unwrap_or_else(|| "see NVIDIA's XID list".to_owned());
    Some((text::moment(newest.at), action))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(seconds: i64, message: &str) -> StoredEvent {
        StoredEvent {
            cluster: "prod".into(),
            agent: None,
            event: Event {
                at: Timestamp::from_seconds(1_760_000_000 + seconds),
                kind: EventKind::RunEnded,
                severity: Severity::Error,
                resource_kind: ResourceKind::Rank,
                resource_id: "team/job/uid/1/0".into(),
                message: message.to_owned(),
                attributes: [].into(),
            },
        }
    }

    fn lines(events: &[StoredEvent]) -> Vec<(String, usize)> {
        let lines = entries(events, (ResourceKind::Rank, ""));
        lines.into_iter().map(|it| (it.message, it.times)).collect()
    }

    #[test]
    fn what_says_the_same_within_a_minute_of_the_last_is_one_line() {
        let newest_first = [
            told(300, "ended"),
            told(250, "ended"),
            told(200, "ended"),
            told(139, "ended"),
            told(130, "began"),
            told(129, "ended"),
        ];
        let line = |message: &str, times| (message.to_owned(), times);
        let expected = [
            line("ended", 3),
            line("ended", 1),
            line("began", 1),
            line("ended", 1),
        ];
        assert_eq!(lines(&newest_first), expected);
    }

    #[test]
    fn lines_are_bounded_and_not_the_events_in_them() {
        let mut events: Vec<StoredEvent> = (0..100).map(|_| told(10_000, "ended")).collect();
        events.extend((0..SHOWN as i64).map(|it| told(9_000 - it, &it.to_string())));
        let lines = lines(&events);
        assert_eq!(lines.len(), SHOWN);
        assert_eq!(lines[0], ("ended".to_owned(), 100));
        assert_eq!(lines[SHOWN - 1].0, (SHOWN - 2).to_string());
    }
}
