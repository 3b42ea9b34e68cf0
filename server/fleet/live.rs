//! What is known of a resource now: what a page shows without asking the store.

use std::sync::Arc;
use std::time::Duration;

use gpufleet_analysis::health::Asks;
use gpufleet_analysis::owner::job_of;
use gpufleet_analysis::states::{HealthEvent, Recent};
use gpufleet_telemetry::catalog::{Metric, MetricId, producers, training};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{AgentId, Origin, Part, Resource, attribute};
use gpufleet_telemetry::minute::Bitmaps;
use gpufleet_telemetry::sample::Reading;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, SECONDS_PER_MINUTE, Timestamp};

use crate::store::model::ResourceKey;

/// A resource as it was last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct Live {
    /// Its name.
    pub key: ResourceKey,
    /// Its attributes as last told.
    pub resource: Arc<Resource>,
    /// The agent that told them; none for foreign OTLP.
    pub agent: Option<AgentId>,
    /// The node it is on; empty where the sender does not say.
    pub node: Arc<str>,
    /// Where the data comes from.
    pub origin: Origin,
    /// The time of the first point ever.
    pub first_seen: Timestamp,
    /// The time of the newest point, in the server's time.
    pub last_point: Timestamp,
    /// When the newest point arrived. 1970 when it has only been read from the store.
    pub received: Timestamp,
    /// The length of the newest tick: how often to expect points. Zero when not known.
    pub interval: Duration,
    /// Readings, sorted by metric number, then part. Empty when it has only been read from the
    /// store since the server started.
    pub values: Vec<LiveValue>,
    /// The evidence of the newest tick, bit 0 the second that begins at `bits_start`.
    pub bits: Bitmaps,
    /// When the newest tick began.
    pub bits_start: Timestamp,
    /// The run of equal seconds that it is in.
    pub recent: Recent,
    /// The newest event since the server started that broke or healed it, or its work that healed it.
    pub health: Option<HealthEvent>,
    /// What events said of it since the server started, and its XIDs of the week before.
    pub told: Told,
}

/// Most XIDs that are remembered of a GPU, one of each code and job: what one job raises a thousand times pushes out
/// nothing that came to another.
const MAX_XIDS: usize = 16;

/// What was read just before a GPU was taken out has the time of its tick's end, nanoseconds.
const LONGEST_TICK: i64 = SECONDS_PER_MINUTE as i64 * NANOS_PER_SECOND;

/// The attribute of a stored XID that says who held the GPU when it came: after a start nobody else knows.
pub(super) const XID_HOLDER: &str = "holder";

/// What events said of a GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Told {
    /// Its XIDs, each of a code and a job once, in the order in which they came first.
    pub xids: Vec<LiveXid>,
    /// When the driver last listed it no more: taken out, and not lost.
    pub removed_at: Option<Timestamp>,
    /// When it was last made whole: reset, listed anew, or nothing more asked of it by the driver.
    pub whole_at: Option<Timestamp>,
    /// When it last answered again after it could not be reached.
    pub back_at: Option<Timestamp>,
}

/// An XID of one job, however often it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveXid {
    /// When it came first.
    pub first: Timestamp,
    /// When it came last.
    pub at: Timestamp,
    /// How often.
    pub count: u32,
    /// Its number.
    pub code: u32,
    /// What it asks for, as the agent said last.
    pub action: Arc<str>,
    /// How bad it is, as the agent said last.
    pub severity: Severity,
    /// Who held the GPU; empty is not known.
    pub holder: Arc<str>,
}

impl LiveXid {
    /// One that came once.
    pub fn new(at: Timestamp, code: u32, action: &str, severity: Severity, holder: &str) -> Self {
        Self {
            first: at,
            at,
            count: 1,
            code,
            action: action.into(),
            severity,
            holder: holder.into(),
        }
    }

    /// What it asks for.
    pub fn asks(&self) -> Asks {
        Asks::of(self.code, &self.action, self.severity)
    }

    /// Whether the other one is the same trouble of the same job.
    fn is_same(&self, other: &Self) -> bool {
        self.code == other.code && job_of(&self.holder) == job_of(&other.holder)
    }

    /// It came again; what comes late may have come before.
    fn again(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.first = self.first.min(other.first);
        if other.at >= self.at {
            (self.at, self.action, self.severity) = (other.at, other.action, other.severity);
        }
    }
}

impl Told {
    /// Takes in an event about the GPU; an XID says itself who held it.
    pub fn take(&mut self, event: &Event) {
        let text = |name: &str| event.attributes.get(name).map_or("", String::as_str);
        match event.kind {
            EventKind::GpuRemoved => self.removed_at = self.removed_at.max(Some(event.at)),
            EventKind::GpuReset | EventKind::GpuAdded => self.made_whole(event.at),
            EventKind::GpuRecovered => self.back_at = self.back_at.max(Some(event.at)),
            EventKind::RecoveryAction if matches!(text("action"), "0" | "none") => {
                self.made_whole(event.at);
            }
            EventKind::Xid => {
                let Ok(code) = text("xid").parse() else {
                    return;
                };
                let (action, holder) = (text("action"), text(XID_HOLDER));
                self.raised(LiveXid::new(event.at, code, action, event.severity, holder));
            }
            _ => {}
        }
    }

    /// Whether it was taken out and is, going by when it was last read too: what is put in while the machine is off
    /// nobody tells of.
    pub fn is_removed(&self, last_point: Timestamp) -> bool {
        self.removed_at.is_some_and(|at| {
            let is_back = self.whole_at.max(self.back_at) >= Some(at);
            !is_back && last_point.since(at) <= LONGEST_TICK
        })
    }

    /// The clocks were set back: nothing of it happened later than now.
    pub(super) fn set_back(&mut self, now: Timestamp) {
        for at in [&mut self.whole_at, &mut self.back_at, &mut self.removed_at] {
            *at = at.map(|it| it.min(now));
        }
        for xid in &mut self.xids {
            (xid.first, xid.at) = (xid.first.min(now), xid.at.min(now));
        }
    }

    fn made_whole(&mut self, at: Timestamp) {
        self.whole_at = self.whole_at.max(Some(at));
    }

    fn raised(&mut self, xid: LiveXid) {
        if let Some(known) = self.xids.iter_mut().find(|it| it.is_same(&xid)) {
            // What came before a reset is another trouble.
            match self.whole_at {
                Some(at) if (known.at..xid.at).contains(&at) => *known = xid,
                _ => known.again(xid),
            }
            return;
        }
        self.xids.push(xid);
        if self.xids.len() > MAX_XIDS {
            // What a reset is owed for goes last.
            let all = self.xids.iter().enumerate();
            let least = all.min_by_key(|(_, it)| (it.asks().is_owed(), it.at));
            let least = least.map_or(0, |(place, _)| place);
            self.xids.remove(least);
        }
    }
}

/// One reading as it was last told.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveValue {
    /// Which metric.
    pub metric: MetricId,
    /// The part it is about; none when about the resource itself.
    pub part: Option<Arc<Part>>,
    /// The value in the metric's base unit, or why there is none.
    pub reading: Reading,
    /// The greatest sample of the tick, where the catalog asks for it: of one in twelve, which the others leave no room for.
    pub max: Option<Box<f64>>,
    /// The time of the point.
    pub at: Timestamp,
}

// A fleet has a million of them.
const _: () = assert!(size_of::<LiveValue>() <= 48);

/// An agent as it was last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveAgent {
    /// Its id.
    pub agent: AgentId,
    /// The cluster of its data.
    pub cluster: Arc<str>,
    /// The node it runs on.
    pub node: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// When its last request arrived.
    pub heard: Timestamp,
    /// What is added to its times, nanoseconds.
    pub clock_offset_nanos: i64,
    /// The longest tick of its newest request: how often to expect one. Zero when not known.
    pub interval: Duration,
    /// How old its newest live point was when it arrived.
    pub lag: Duration,
    /// Whether old data is being drained from it.
    pub backfilling: bool,
}

impl LiveValue {
    /// Takes in a newer point of it.
    pub(super) fn set(&mut self, reading: Reading, max: Option<f64>, at: Timestamp) {
        (self.reading, self.at) = (reading, at);
        match (&mut self.max, max) {
            (Some(known), Some(max)) => **known = max,
            (known, max) => *known = max.map(Box::new),
        }
    }
}

impl Live {
    /// Whether it is told of by this name of its cluster and of its node, if it has one.
    pub(super) fn is_at(&self, cluster: &str, node: &str) -> bool {
        *self.key.cluster == *cluster && (self.node.is_empty() || *self.node == *node)
    }

    /// The reading of a metric about the resource itself.
    pub fn value(&self, metric: MetricId) -> Option<&LiveValue> {
        let first = self.values.partition_point(|it| it.metric < metric);
        self.values
            .get(first)
            .filter(|it| it.metric == metric && it.part.is_none())
    }

    /// The readings of a metric about parts of the resource.
    pub fn parts(&self, metric: MetricId) -> impl Iterator<Item = &LiveValue> {
        let first = self.values.partition_point(|it| it.metric < metric);
        self.values[first..]
            .iter()
            .take_while(move |it| it.metric == metric)
            .filter(|it| it.part.is_some())
    }

    /// Of how many collectives of this part the time was measured, which their duration is the sum of. An agent of before
    /// there was a count of these tells how many there were at all.
    pub fn timed_collectives(&self, part: Option<&Part>) -> Option<f64> {
        let told = |metric: &Metric| {
            let mut parts = self.parts(metric.id);
            parts.find(|it| it.part.as_deref() == part)?.reading.ok()
        };
        told(&training::COLLECTIVE_TIMED).or_else(|| told(&training::COLLECTIVE_CALLS))
    }

    /// The reader that a metric is taken from; all of them where it is not told which.
    pub fn source(&self, metric: MetricId) -> &str {
        let text = |name| self.resource.attribute(name);
        text(attribute::METRIC_SOURCES)
            .and_then(|text| producers::of(text, metric))
            .or_else(|| text(attribute::SOURCE))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    /// An XID of this code that came this second while that holder had the GPU.
    fn take(told: &mut Told, second: i64, code: u32, holder: &str) {
        let action = if code == 48 { "reset_gpu" } else { "observe" };
        let texts = [
            ("xid", code.to_string()),
            ("action", action.to_owned()),
            (XID_HOLDER, holder.to_owned()),
        ];
        take_event(told, second, EventKind::Xid, &texts);
    }

    fn take_event(told: &mut Told, second: i64, kind: EventKind, texts: &[(&str, String)]) {
        told.take(&Event {
            at: Timestamp::from_seconds(second),
            kind,
            severity: Severity::Warning,
            resource_kind: ResourceKind::Gpu,
            resource_id: "GPU-1".into(),
            message: String::new(),
            attributes: texts
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.clone()))
                .collect(),
        });
    }

    #[test]
    fn a_storm_of_one_job_pushes_out_nothing_that_came_to_another() {
        let mut told = Told::default();
        take(&mut told, 5, 13, "slurm:1");
        for second in 100..200 {
            take(&mut told, second, 13, "slurm:2");
        }
        take(&mut told, 90, 13, "slurm:2");
        take(&mut told, 200, 31, "slurm:2");
        let of = |it: &LiveXid| {
            let seconds = (it.first.seconds(), it.at.seconds());
            (it.code, it.holder.to_string(), it.count, seconds)
        };
        let known: Vec<_> = told.xids.iter().map(of).collect();
        let [first, second] = ["slurm:1", "slurm:2"].map(str::to_owned);
        assert_eq!(
            known,
            [
                (13, first, 1, (5, 5)),
                (13, second.clone(), 101, (90, 199)),
                (31, second, 1, (200, 200)),
            ]
        );
    }

    #[test]
    fn of_more_jobs_than_are_remembered_those_go_whose_xid_is_the_longest_ago() {
        let mut told = Told::default();
        take(&mut told, 0, 48, "slurm:0");
        for second in 1..40 {
            take(&mut told, second, 13, &format!("slurm:{second}"));
        }
        let kept: Vec<i64> = told.xids.iter().map(|it| it.at.seconds()).collect();
        let expected: Vec<i64> = [0].into_iter().chain(25..40).collect();
        assert_eq!(kept, expected, "and what owes a reset stays");
    }

    #[test]
    fn a_reset_of_a_time_that_has_not_come_ends_nothing_that_comes_before_it() {
        let mut told = Told::default();
        take_event(&mut told, 900, EventKind::GpuReset, &[]);
        told.set_back(Timestamp::from_seconds(100));
        take(&mut told, 200, 48, "slurm:1");
        assert!(told.whole_at < Some(told.xids[0].at), "{told:?}");
    }

    #[test]
    fn a_gpu_that_was_taken_out_is_until_it_is_listed_or_read_again_in_any_order() {
        use EventKind::{GpuAdded, GpuRecovered, GpuRemoved};
        for (events, read_at, expected) in [
            (&[(100, GpuRemoved)][..], 90, true),
            (&[], 100, false),
            (&[(100, GpuRemoved)], 105, true),
            (&[(100, GpuRemoved)], 170, false),
            (&[(100, GpuRemoved), (120, GpuAdded)], 90, false),
            (&[(120, GpuAdded), (100, GpuRemoved)], 90, false),
            (&[(90, GpuAdded), (100, GpuRemoved)], 90, true),
            (&[(100, GpuRemoved), (90, GpuRecovered)], 90, true),
            (&[(100, GpuRemoved), (120, GpuRecovered)], 90, false),
        ] {
            let mut told = Told::default();
            for (second, kind) in events {
                take_event(&mut told, *second, *kind, &[]);
            }
            let found = told.is_removed(Timestamp::from_seconds(read_at));
            assert_eq!(found, expected, "{events:?}, read at {read_at}");
        }
    }

    #[test]
    fn what_came_before_a_reset_does_not_count_with_what_comes_after_it() {
        let mut told = Told::default();
        take(&mut told, 10, 48, "slurm:1");
        take(&mut told, 20, 48, "slurm:1");
        take_event(&mut told, 30, EventKind::GpuReset, &[]);
        assert_eq!(told.whole_at, Some(Timestamp::from_seconds(30)));
        take_event(&mut told, 35, EventKind::GpuRecovered, &[]);
        assert_eq!(told.whole_at, Some(Timestamp::from_seconds(30)));
        take(&mut told, 40, 48, "slurm:1");
        let [known] = &told.xids[..] else {
            panic!("{:?}", told.xids);
        };
        assert_eq!((known.first.seconds(), known.count), (40, 1));
    }
}
