//! What happened, as a list on a node's or a GPU's page.

use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::ResourceKind;

use super::text::{self, Name};
use super::{gpu, words};
use crate::store::model::StoredEvent;

/// Events shown on a page; the API has the rest.
pub const SHOWN: usize = 30;

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

/// Events for a page about `subject`.
pub fn entries(events: &[StoredEvent], subject: (ResourceKind, &str)) -> Vec<Entry> {
    events.iter().map(|stored| entry(stored, subject)).collect()
}

fn entry(stored: &StoredEvent, subject: (ResourceKind, &str)) -> Entry {
    let event = &stored.event;
    let is_subject = (event.resource_kind, &*event.resource_id) == subject;
    let is_gpu = event.resource_kind == ResourceKind::Gpu;
    let about = (!is_subject && is_gpu).then(|| {
        let address = gpu::address(&stored.cluster, &event.resource_id);
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
