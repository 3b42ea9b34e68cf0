//! Nodes, GPUs and jobs by a part of their name: one walk over the picture of the fleet, and over the names of the newest
//! jobs ([`jobs`]).
//!
//! Names are compared as they are: of 10,000 GPUs thirty thousand are looked at for one question, and none is copied.
//!
//! Limits: what is asked for has at most [`MAX_ASKED`] characters; of a kind [`MAX_TOLD`] are told and the others
//! counted; jobs are looked for among the [`MAX_JOBS`] that started last.

use std::fmt::Write as _;
use std::sync::Arc;

use gpufleet_telemetry::identity::Origin;
use gpufleet_telemetry::time::Timestamp;

use crate::App;
use crate::auth::Grant;
use crate::runs::RunKey;
use crate::today::blind;
use crate::view::{ClusterView, FleetView, GpuView, NodeView};
use crate::words::text::{self, counted, grouped};
use crate::words::{self, address};

mod jobs;

pub use jobs::{MAX_JOBS, Names};

/// Longest text that is looked for, in characters: the longest id has as many bytes.
pub const MAX_ASKED: usize = 256;

/// Most of a kind that are told, the exact ones first: who sees more types more.
pub const MAX_TOLD: usize = 20;

/// What has a text in its name.
#[derive(Debug, Default)]
pub struct Found {
    /// Nodes, also those of which no agent tells.
    pub nodes: Few,
    /// GPUs by their id, by `node/index` and by who holds them.
    pub gpus: Few,
    /// Training jobs, each by its last attempt or the one that was named.
    pub jobs: Few,
    /// Why there may be more jobs.
    pub not_all_jobs: Option<String>,
}

/// Those of a kind.
#[derive(Debug, Default)]
pub struct Few {
    /// The first ones; those whose whole name was asked for go before.
    pub told: Vec<Match>,
    exact: usize,
    all: usize,
}

/// One of them.
#[derive(Debug)]
pub struct Match {
    /// Its cluster.
    pub cluster: Arc<str>,
    /// Where its data comes from.
    pub origin: Origin,
    /// What people call it.
    pub name: String,
    /// What else tells it from others.
    pub about: String,
    /// Its page.
    pub address: String,
}

/// Why nothing is looked for.
#[derive(Debug, thiserror::Error)]
#[error("a name has at most {MAX_ASKED} characters; a part of it will do")]
pub struct TooLong;

/// What is looked for, in small letters; never empty.
struct Asked(String);

impl Found {
    /// The one whose whole name was asked for, where it is one.
    pub fn only(&self) -> Option<&Match> {
        let kinds = [&self.nodes, &self.gpus, &self.jobs];
        let exact: usize = kinds.iter().map(|it| it.exact).sum();
        let has_it = kinds.iter().find(|it| it.exact == 1)?;
        has_it.told.first().filter(|_| exact == 1)
    }
}

impl Few {
    /// How many are not told.
    pub fn more(&self) -> usize {
        self.all - self.told.len()
    }

    fn add(&mut self, is_exact: bool, one: impl FnOnce() -> Match) {
        let place = match is_exact {
            true => self.exact,
            false => self.told.len(),
        };
        self.all += 1;
        self.exact += usize::from(is_exact);
        if place < MAX_TOLD {
            self.told.insert(place, one());
            self.told.truncate(MAX_TOLD);
        }
    }
}

impl Asked {
    fn new(asked: &str) -> Self {
        Self(asked.to_lowercase())
    }

    /// Whether it is all of one of these names; none where it is in none of them.
    fn is_all_of<const N: usize>(&self, names: [&str; N]) -> Option<bool> {
        let is_in = names.iter().any(|it| self.is_in(it));
        is_in.then(|| names.iter().any(|it| self.is(it)))
    }

    /// Whether it is a name, in whichever letters that is written.
    fn is(&self, name: &str) -> bool {
        match name.is_ascii() {
            true => name.eq_ignore_ascii_case(&self.0),
            false => name.to_lowercase() == self.0,
        }
    }

    /// Whether it is in a name, in the same way.
    fn is_in(&self, name: &str) -> bool {
        if !name.is_ascii() {
            return name.to_lowercase().contains(&self.0);
        }
        let asked = self.0.as_bytes();
        let mut parts = name.as_bytes().windows(asked.len());
        parts.any(|it| it.eq_ignore_ascii_case(asked))
    }

    /// Which attempt of a job it names, behind the job's id; none where it is no such name.
    fn attempt_of(&self, last: &RunKey) -> Option<u32> {
        let (job, attempt) = self.0.rsplit_once('/')?;
        let attempt = attempt.parse().ok()?;
        let is_meant = job == last.run.job.to_string().to_lowercase();
        (is_meant && attempt <= last.run.attempt).then_some(attempt)
    }
}

/// What a reader may see that has this in its name; nothing where nothing is asked for.
///
/// # Errors
/// When no name is so long.
pub async fn find(
    app: &App,
    names: &Names,
    view: &FleetView,
    grant: &Grant,
    asked: &str,
) -> Result<Found, TooLong> {
    let mut found = Found::default();
    let asked = match asked.trim() {
        "" => return Ok(found),
        long if long.chars().nth(MAX_ASKED).is_some() => return Err(TooLong),
        asked => Asked::new(asked),
    };
    for cluster in &view.clusters {
        // What is there goes before what was.
        for node in cluster.nodes.iter().chain(&cluster.ended) {
            of_node(&mut found, cluster, node, &asked, view.at);
        }
    }
    for it in blind::without_agent(app, grant.cluster.as_deref(), view) {
        if asked.is_all_of([&*it.node.name]).is_some() {
            // It has no page of its own, so nobody is led there at once.
            found.nodes.add(false, || Match {
                cluster: Arc::clone(app.inventory.cluster()),
                origin: Origin::Live,
                name: it.node.name.clone(),
                about: "no agent tells of it".to_owned(),
                address: "/queue".to_owned(),
            });
        }
    }
    match jobs::jobs(app, names, grant, &asked).await {
        Ok((few, are_all)) => {
            found.jobs = few;
            found.not_all_jobs = (!are_all).then(|| {
                let most = grouped(MAX_JOBS as f64);
                format!("Only the {most} that started last were looked at.")
            });
        }
        Err(error) => {
            tracing::error!(%error, "the jobs cannot be read");
            let why = "They are not known: the store does not answer, the server's log says why.";
            found.not_all_jobs = Some(why.to_owned());
        }
    }
    Ok(found)
}

fn of_node(
    found: &mut Found,
    cluster: &ClusterView,
    node: &NodeView,
    asked: &Asked,
    now: Timestamp,
) {
    if let Some(is_exact) = asked.is_all_of([&*node.name]) {
        let gpus = counted(node.gpus.len(), "GPU", "GPUs");
        let silent = node.silent_since.map(|it| now.millis() - it.millis());
        let silent = silent.map(|it| match cluster.has_gone(node) {
            true => ", gone".to_owned(),
            false => format!(", silent for {}", text::span(it)),
        });
        found.nodes.add(is_exact, || Match {
            cluster: Arc::clone(&cluster.name),
            origin: cluster.origin,
            name: node.name.to_string(),
            about: gpus + &silent.unwrap_or_default(),
            address: address::node(&cluster.name, &node.name),
        });
    }
    let mut place = format!("{}/", node.name);
    let stem = place.len();
    for card in &node.gpus {
        place.truncate(stem);
        if let Some(index) = card.index {
            // It is written into memory.
            let _ = write!(place, "{index}");
        }
        for it in card.with_shares() {
            let holder = it.holder.as_deref().unwrap_or_default();
            // Shares have the place of their card, which is the one that is meant.
            let place = if it.key == card.key { &*place } else { "" };
            if let Some(is_exact) = asked.is_all_of([&*it.key.id, place, holder]) {
                found.gpus.add(is_exact, || gpu(card, it));
            }
        }
    }
}

/// A card, or a share of it.
fn gpu(card: &GpuView, it: &GpuView) -> Match {
    let state = words::look(it.state).name;
    let holder = it.holder.as_deref().map(|it| format!(", held by {it}"));
    Match {
        cluster: Arc::clone(&it.key.cluster),
        origin: it.origin,
        name: match it.key == card.key {
            true => card.called(),
            false => format!("a share of {}", card.called()),
        },
        about: format!("{}, {state}{}", it.key.id, holder.unwrap_or_default()),
        address: address::gpu(&it.key.cluster, &it.key.id),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::training::RunId;

    use super::*;

    fn one(name: &str) -> Match {
        Match {
            cluster: "prod".into(),
            origin: Origin::Live,
            name: name.to_owned(),
            about: String::new(),
            address: format!("/{name}"),
        }
    }

    #[test]
    fn the_exact_ones_go_before_and_of_very_many_the_others_are_counted() {
        let mut few = Few::default();
        for number in 0..10_000 {
            let is_exact = number == 9_000;
            few.add(is_exact, || one(&number.to_string()));
        }
        assert_eq!((few.told.len(), few.more()), (MAX_TOLD, 9_980));
        let names: Vec<_> = few.told.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names[..3], ["9000", "0", "1"]);
        assert_eq!(few.told[MAX_TOLD - 1].name, "18");
    }

    #[test]
    fn only_one_whose_whole_name_was_asked_for_is_the_only_one() {
        let mut found = Found::default();
        found.nodes.add(false, || one("node-10"));
        assert!(found.only().is_none(), "a part of a name");
        found.nodes.add(true, || one("node-1"));
        assert_eq!(found.only().expect("it is one").name, "node-1");
        found.jobs.add(true, || one("node-1"));
        assert!(found.only().is_none(), "a job has the same name");
    }

    #[test]
    fn a_name_is_found_in_whichever_letters_it_is_written() {
        for (name, asked, is_all) in [
            ("GPU-5EED", "5eed", Some(false)),
            ("GPU-5EED", "gpu-5EED", Some(true)),
            ("node-1", "node-10", None),
            ("node", "nodé", None),
            ("Straße-ÄÖ", "ÄÖ", Some(false)),
            ("STRASSE-ÄÖ", "strasse-äö", Some(true)),
            ("İ", "İ", Some(true)),
        ] {
            let found = Asked::new(asked).is_all_of(["", name]);
            assert_eq!(found, is_all, "{asked} in {name}");
        }
    }

    #[test]
    fn an_attempt_is_named_behind_the_id_of_its_job() {
        let last = RunKey {
            cluster: "prod".into(),
            run: RunId::parse("Team/llama/u1/3").unwrap(),
        };
        for (asked, attempt) in [
            ("team/LLAMA/u1/3", Some(3)),
            ("team/llama/u1/0", Some(0)),
            ("team/llama/u1/4", None),
            ("team/llama/u1", None),
            ("team/llama/0", None),
        ] {
            assert_eq!(Asked::new(asked).attempt_of(&last), attempt, "{asked}");
        }
    }
}
