//! What is known of a run and of its ranks beside their steps: as JSON in tables run and rank.
//!
//! Facts merge: an event that comes twice, or comes late, leaves what is known as it is. So the
//! store may hold facts that are newer than the cursor beside them, and a resend harms nothing. Which
//! rank told one is kept beside it, because not every rank is believed ([`super::belief`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_analysis::ending::{self, Cause};
use gpufleet_telemetry::catalog::MetricId;
use gpufleet_telemetry::event::{Event, EventKind};
use gpufleet_telemetry::identity::{Origin, Resource, attribute as named};
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use gpufleet_telemetry::training::{
    Ended, MAX_START_UP_NS, Mesh, MeshSource, Trust, attribute, fingerprint_of,
};
use serde::{Deserialize, Serialize};

use crate::words::Said;

/// Two processes of a rank began further apart than this, nanoseconds: a clock that was set moves the start of one.
const ANOTHER_AFTER: i64 = 10 * NANOS_PER_SECOND;

/// What is known of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Live, recorded or simulated.
    pub origin: Origin,
    /// The best of what its ranks' identities rest on; none before the first is known.
    pub trust: Option<Trust>,
    /// When its first rank came up: when its process began, else when it said that it trains; none while nobody said.
    pub started: Option<Timestamp>,
    /// Which rank that was.
    pub started_rank: Option<u32>,
    /// When anything of it was last heard, in the server's time.
    pub heard: Timestamp,
    /// When it ended; none while it runs, or fell silent.
    pub ended: Option<Timestamp>,
    /// Why it ended, once that was judged.
    pub ending: Option<EndingFacts>,
    /// How many ranks it says it has; 0 not said.
    pub world: u32,
    /// Which rank said that, and the framework, launcher and types below: the lowest.
    pub described_by: Option<u32>,
    /// What it is made of: versions, settings.
    pub fingerprint: BTreeMap<String, String>,
    /// When that was told.
    pub fingerprint_at: Timestamp,
    /// By which rank: of several at the start the lowest counts.
    pub fingerprint_rank: Option<u32>,
    /// The tags that its user gave it.
    pub tags: BTreeMap<String, String>,
    /// Which rank told them.
    pub tags_by: Option<u32>,
    /// How many more it told, beyond what is kept.
    pub tags_left_out: usize,
    /// The framework and its version.
    pub framework: String,
    /// What started it.
    pub launcher: String,
    /// The type of its matrix arithmetic.
    pub data_type: String,
    /// How its FLOPs were got.
    pub flops_source: String,
    /// The last checkpoint that was saved.
    pub checkpoint: Option<Occasion>,
    /// The last checkpoint that was gone back to.
    pub restored: Option<Occasion>,
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Occasion {
    /// When.
    pub at: Timestamp,
    /// Of which step.
    pub step: u64,
    /// Which rank told it.
    pub rank: Option<u32>,
}

/// Why a run ended, as it was judged.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EndingFacts {
    /// The name of the cause.
    pub cause: String,
    /// One sentence.
    pub sentence: String,
    /// The first rank that failed.
    pub first_rank: Option<u32>,
    /// When it failed.
    pub at: Option<Timestamp>,
    /// What that rests on.
    pub evidence: Vec<String>,
    /// What was looked at.
    pub looked_at: Vec<String>,
    /// Steps since the last checkpoint; none where that is not known.
    pub steps_lost: Option<u64>,
    /// Its nodes at Spot that went around its end.
    pub taken_back: Vec<String>,
}

/// What is known of a rank.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankFacts {
    /// When its process began to start up, of several the first; none where nobody said.
    pub began: Option<Timestamp>,
    /// The same of the newest of its processes.
    pub began_last: Option<Timestamp>,
    /// When it said that it trains; none while nobody said.
    pub started: Option<Timestamp>,
    /// When anything of it was last heard, in the server's time.
    pub heard: Timestamp,
    /// How it ended; none while nobody said.
    pub end: Option<RankEnd>,
    /// What it died of, or last nearly died of.
    pub exception: Option<Exception>,
    /// Its node; empty where that is not known.
    pub node: Arc<str>,
    /// The id of its GPU or share; empty where that is not known.
    pub gpu: Arc<str>,
    /// Its number on its node.
    pub local_rank: Option<u32>,
    /// Where it stands in the mesh.
    pub mesh: Mesh,
    /// Who said so.
    pub mesh_source: MeshSource,
    /// Whether its identity was proved; none before its first reading.
    pub trust: Option<Trust>,
    /// Its newest readings by metric number, those with a value.
    pub readings: Vec<(MetricId, f64)>,
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    /// When.
    pub at: Timestamp,
    /// How it said that it ended.
    pub ended: Ended,
    /// Its exit status.
    pub exit_status: Option<i64>,
    /// The signal that ended it.
    pub signal: Option<u32>,
    /// How many processes the kernel killed for want of memory in its container, pod or job; none where nobody said, as
    /// also an older server.
    #[serde(default)]
    pub oom_kills: Option<u64>,
    /// Its last step.
    pub step: Option<u64>,
    /// The step of its last checkpoint.
    pub checkpoint_step: Option<u64>,
    /// The phase it was in.
    pub phase: Option<String>,
}

/// An exception that nobody caught.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// When.
    pub at: Timestamp,
    /// Its type.
    pub kind: String,
    /// Its first line.
    pub message: String,
    /// The end of its traceback.
    pub traceback: String,
    /// The step it happened in.
    pub step: Option<u64>,
}

impl RunFacts {
    /// Learns from an event of a rank.
    pub fn learn(&mut self, rank: u32, event: &Event) {
        let about = &event.attributes;
        match event.kind {
            EventKind::RunStarted => {
                let began = began(event);
                if self.started.is_none_or(|at| began < at) {
                    (self.started, self.started_rank) = (Some(began), Some(rank));
                }
                let is_better = self.fingerprint_rank.is_none_or(|known| rank <= known);
                if is_better && self.fingerprint_at <= event.at {
                    self.take_fingerprint(rank, event);
                }
            }
            EventKind::FingerprintChanged if self.fingerprint_at < event.at => {
                self.take_fingerprint(rank, event);
            }
            EventKind::CheckpointSaved => {
                self.checkpoint = self.checkpoint.max(occasion(rank, event));
            }
            EventKind::CheckpointRestored => {
                self.restored = self.restored.max(occasion(rank, event));
            }
            EventKind::RunEnded => {
                let step = number(about, attribute::CHECKPOINT_STEP);
                let left = step.map(|step| Occasion {
                    at: event.at,
                    step,
                    rank: Some(rank),
                });
                self.checkpoint = self.checkpoint.or(left);
            }
            _ => {}
        }
    }

    fn take_fingerprint(&mut self, rank: u32, event: &Event) {
        let told = fingerprint_of(&event.attributes);
        if !told.is_empty() {
            self.fingerprint = told;
            self.fingerprint_at = event.at;
            self.fingerprint_rank = Some(rank);
        }
    }

    /// The name of the cause for which it ended.
    pub fn cause(&self) -> Option<&str> {
        self.ending.as_ref().map(|it| it.cause.as_str())
    }
}

impl EndingFacts {
    /// From what was judged.
    pub fn of(ending: &ending::Ending) -> Self {
        Self {
            cause: ending.cause.name().to_owned(),
            sentence: ending.sentence.clone(),
            first_rank: ending.first_rank,
            at: ending.at,
            evidence: ending.evidence.clone(),
            looked_at: ending.looked_at.iter().map(|it| (*it).to_owned()).collect(),
            steps_lost: ending.steps_lost,
            taken_back: Vec::new(),
        }
    }

    /// The cause; none of one that a newer version named.
    pub fn cause(&self) -> Option<Cause> {
        Cause::ALL.into_iter().find(|it| it.name() == self.cause)
    }

    /// The sentence, open where nobody knows why it ended: what an exception says may sound like that.
    pub fn said(&self) -> Said {
        match self.cause() {
            Some(Cause::Unknown) => Said::open("hooks", self.sentence.as_str()),
            _ => self.sentence.as_str().into(),
        }
    }

    /// Whether it was an interruption against everyone's will.
    pub fn is_interruption(&self) -> bool {
        self.cause().is_none_or(Cause::is_interruption)
    }
}

impl RankFacts {
    /// Learns from its resource. Whether that was new.
    pub fn introduce(&mut self, resource: &Resource) -> bool {
        let text = |name| resource.attribute(name).unwrap_or_default();
        let place = (
            text(named::NODE).into(),
            text(named::GPU_ID).into(),
            text(named::LOCAL_RANK).parse().ok(),
            Mesh::parse(text(named::MESH)),
            MeshSource::parse(text(named::MESH_SOURCE)).unwrap_or_default(),
            Trust::parse(text(named::TRUST)),
        );
        let known = (
            std::mem::take(&mut self.node),
            std::mem::take(&mut self.gpu),
            self.local_rank,
            self.mesh,
            self.mesh_source,
            self.trust,
        );
        let is_new = place != known;
        (
            self.node,
            self.gpu,
            self.local_rank,
            self.mesh,
            self.mesh_source,
            self.trust,
        ) = place;
        is_new
    }

    /// Learns from an event.
    pub fn learn(&mut self, event: &Event) {
        let about = &event.attributes;
        let text = |name: &str| about.get(name).cloned();
        match event.kind {
            EventKind::RunStarted => {
                let first = self.started.map_or(event.at, |at| at.min(event.at));
                self.started = Some(first);
                let began = began(event);
                self.began = Some(self.began.map_or(began, |at| at.min(began)));
                self.began_last = self.began_last.max(Some(began));
                // A rank that comes up again after its end lives: an elastic launcher did that.
                self.end.take_if(|it| it.at < event.at);
                self.exception.take_if(|it| it.at < event.at);
            }
            EventKind::RankException => {
                let is_newer = self.exception.as_ref().is_none_or(|it| it.at <= event.at);
                if is_newer {
                    self.exception = Some(Exception {
                        at: event.at,
                        kind: text(attribute::EXCEPTION).unwrap_or_default(),
                        message: text(attribute::EXCEPTION_MESSAGE).unwrap_or_default(),
                        traceback: text(attribute::TRACEBACK).unwrap_or_default(),
                        step: number(about, attribute::STEP),
                    });
                }
            }
            EventKind::RunEnded => {
                let told = RankEnd::of(event);
                // What a process said of itself is better than that it was gone.
                let rank = |it: &RankEnd| (it.ended == Ended::Vanished, it.at);
                if self.end.as_ref().is_none_or(|it| rank(&told) < rank(it)) {
                    self.end = Some(told);
                }
            }
            _ => {}
        }
    }

    /// When it came up, its start-up included; none while nobody said.
    pub fn came_up(&self) -> Option<Timestamp> {
        // Who was stored by an older server has no more than when it trained.
        self.began.or(self.started)
    }

    /// Whether it had a process before its newest one: what that one counts is not of the whole attempt.
    pub fn came_up_again(&self) -> bool {
        let both = self.began.zip(self.began_last);
        both.is_some_and(|(first, last)| last.since(first) > ANOTHER_AFTER)
    }

    /// Its newest reading of a metric.
    pub fn reading(&self, metric: MetricId) -> Option<f64> {
        let place = self.readings.binary_search_by_key(&metric, |it| it.0);
        place.ok().map(|place| self.readings[place].1)
    }
}

impl RankEnd {
    fn of(event: &Event) -> Self {
        let about = &event.attributes;
        let ended = about.get(attribute::ENDED);
        Self {
            at: event.at,
            ended: ended
                .and_then(|it| Ended::parse(it))
                .unwrap_or(Ended::Vanished),
            exit_status: about
                .get(attribute::EXIT_STATUS)
                .and_then(|it| it.parse().ok()),
            signal: about.get(attribute::SIGNAL).and_then(|it| it.parse().ok()),
            oom_kills: number(about, attribute::OOM_KILLS),
            step: number(about, attribute::STEP),
            checkpoint_step: number(about, attribute::CHECKPOINT_STEP),
            phase: about.get(attribute::PHASE).cloned(),
        }
    }
}

/// When the process of a rank that came up began to start up; the moment of the event where nobody says, or says what
/// cannot be.
fn began(event: &Event) -> Timestamp {
    let told = event.attributes.get(attribute::BEGAN);
    let told = told.and_then(|it| it.parse().ok()).map(Timestamp);
    let is_start_up = |it: &Timestamp| (0..=MAX_START_UP_NS).contains(&event.at.since(*it));
    told.filter(is_start_up).unwrap_or(event.at)
}

fn number(about: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    about.get(name)?.parse().ok()
}

fn occasion(rank: u32, event: &Event) -> Option<Occasion> {
    Some(Occasion {
        at: event.at,
        step: number(&event.attributes, attribute::STEP)?,
        rank: Some(rank),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gpufleet_telemetry::event::Severity;
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_790_000_000 + seconds)
    }

    /// A rank comes up at 0, its process so many seconds before.
    fn comes_up(began: Option<i64>) -> Event {
        let told = began.map(|seconds| (attribute::BEGAN.to_owned(), at(-seconds).0.to_string()));
        Event {
            at: at(0),
            kind: EventKind::RunStarted,
            severity: Severity::Info,
            resource_kind: ResourceKind::Rank,
            resource_id: Arc::from("team/llama/u1/0/0"),
            message: String::new(),
            attributes: told.into_iter().collect(),
        }
    }

    #[test]
    fn a_run_began_with_the_start_of_its_processes_and_not_with_what_they_did_before() {
        let limit = MAX_START_UP_NS / NANOS_PER_SECOND;
        for (began, expected) in [
            (Some(40), -40),
            (Some(limit), -limit),
            (Some(limit + 1), 0),
            (Some(-1), 0),
            (None, 0),
        ] {
            let (mut run, mut rank) = (RunFacts::default(), RankFacts::default());
            run.learn(0, &comes_up(began));
            rank.learn(&comes_up(began));
            assert_eq!(run.started, Some(at(expected)), "{began:?}");
            assert_eq!(rank.came_up(), run.started);
            assert_eq!(rank.started, Some(at(0)), "when it said that it trains");
        }
        let stored = RankFacts {
            started: Some(at(3)),
            ..RankFacts::default()
        };
        assert_eq!(stored.came_up(), Some(at(3)));
    }

    #[test]
    fn a_process_that_waited_for_work_while_another_was_this_rank_lives_although_it_began_before_its_end()
     {
        let mut rank = RankFacts::default();
        let mut ended = comes_up(None);
        (ended.kind, ended.at) = (EventKind::RunEnded, at(-10));
        rank.learn(&ended);
        assert!(rank.end.is_some());
        rank.learn(&comes_up(Some(600)));
        assert_eq!(rank.end, None);
    }

    #[test]
    fn a_rank_whose_process_began_anew_says_so_and_one_that_is_told_twice_does_not() {
        let mut rank = RankFacts::default();
        rank.learn(&comes_up(Some(40)));
        rank.learn(&comes_up(Some(39)));
        assert!(!rank.came_up_again());
        let mut again = comes_up(None);
        again.at = at(3_600);
        rank.learn(&again);
        rank.learn(&comes_up(Some(40)));
        assert!(rank.came_up_again());
        assert_eq!(
            (rank.began, rank.began_last),
            (Some(at(-40)), Some(at(3_600)))
        );
        assert!(!RankFacts::default().came_up_again(), "nobody said");
    }

    #[test]
    fn an_end_that_an_older_server_stored_is_read() {
        let mut told = comes_up(None);
        told.kind = EventKind::RunEnded;
        told.attributes = [(attribute::OOM_KILLS.to_owned(), "2".to_owned())].into();
        let end = RankEnd::of(&told);
        assert_eq!(end.oom_kills, Some(2));
        let mut stored = serde_json::to_value(&end).expect("it is JSON");
        let read = |stored: &serde_json::Value| RankEnd::deserialize(stored).expect("it is read");
        assert_eq!(read(&stored), end);
        let fields = stored.as_object_mut().expect("it has fields");
        assert!(fields.remove("oom_kills").is_some());
        assert_eq!(read(&stored).oom_kills, None);
    }
}
