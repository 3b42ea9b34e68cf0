//! Which incidents are asked for: what the database can say of it, and the exact test of each.
//!
//! Where one is and how bad it is stand in its JSON alone, in no column. So the database leaves out those in whose JSON
//! the text does not stand at all, and each of the others is held against the filter ([`IncidentFilter::is_met`]).

use std::borrow::Cow;
use std::sync::Arc;

use gpufleet_analysis::incident::{Family, Incident, Place, State};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::JobId;

use crate::money::budgets;

/// Which incidents. What is none is not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncidentFilter {
    /// In this cluster, or of a budget that names it.
    pub cluster: Option<Arc<str>>,
    /// Of this kind.
    pub family: Option<Family>,
    /// In this state of their life.
    pub state: Option<State>,
    /// Over since this moment.
    pub resolved_since: Option<Timestamp>,
    /// Not over before this moment.
    pub from: Option<Timestamp>,
    /// Begun before this moment.
    pub to: Option<Timestamp>,
    /// At least so bad.
    pub severity: Option<Severity>,
    /// At this node: its place, or one of its evidence.
    pub node: Option<String>,
    /// At this GPU, by its id.
    pub gpu: Option<String>,
    /// Of this run or job: its id, or the job's `namespace/name` or name.
    pub run: Option<String>,
}

impl IncidentFilter {
    /// Whether an incident is one of those. Times are compared in milliseconds, as the database has them.
    pub fn is_met(&self, incident: &Incident) -> bool {
        let is_there = |it: &Place| is(&self.node, &it.node) && is(&self.gpu, &it.gpu);
        let cluster = incident.place.cluster.as_str();
        let is_in = |it: &str| it == cluster || budgets::cluster_of(cluster) == Some(it);
        self.cluster.as_deref().is_none_or(is_in)
            && self.family.is_none_or(|it| it == incident.family)
            && self.state.is_none_or(|it| it == incident.state)
            && self.severity.is_none_or(|it| it <= incident.severity)
            && self.is_then(incident)
            && incident.places().any(is_there)
            && self.is_of_run(incident)
    }

    fn is_then(&self, incident: &Incident) -> bool {
        let ended = incident.resolved_at.map_or(0, Timestamp::millis);
        let began = incident.since.millis();
        self.to.is_none_or(|it| began < it.millis())
            && self
                .from
                .is_none_or(|it| ended == 0 || ended >= it.millis())
            && self.resolved_since.is_none_or(|it| ended >= it.millis())
    }

    fn is_of_run(&self, incident: &Incident) -> bool {
        let Some(asked) = self.run.as_deref().map(written) else {
            return true;
        };
        let of_places = incident.places().filter_map(|it| it.run.as_deref());
        let standing = incident.standing.keys().map(String::as_str);
        of_places.chain(standing).any(|it| is_called(it, &asked))
    }

    /// Texts of which each stands (`true`) or does not stand in the JSON of every incident that meets it.
    pub(in crate::store) fn texts(&self) -> Vec<(bool, String)> {
        let json = |name: &str| serde_json::to_string(name).expect("a text is JSON");
        let names = [&self.node, &self.gpu].into_iter().flatten();
        let mut texts: Vec<(bool, String)> = names.map(|it| (true, json(it))).collect();
        if let Some(asked) = self.run.as_deref().map(written) {
            let text = match asked.contains('/') {
                true => {
                    // Behind it the id may go on.
                    let mut begin = json(&asked);
                    begin.pop();
                    begin
                }
                false => format!("/{asked}/"),
            };
            texts.push((true, text));
        }
        // Within a text of the JSON the quotes are escaped, so this is the field and nothing that somebody wrote.
        let of = |severity: Severity| format!("\"severity\":\"{}\"", severity.name());
        match self.severity {
            Some(Severity::Error) => texts.push((true, of(Severity::Error))),
            Some(Severity::Warning) => texts.push((false, of(Severity::Info))),
            Some(Severity::Info) | None => {}
        }
        texts
    }
}

fn is(asked: &Option<String>, of: &Option<String>) -> bool {
    asked.is_none() || asked == of
}

/// The name of a run or job as ids have it: a job's name as people see it may hold what an id does not.
fn written(asked: &str) -> Cow<'_, str> {
    if asked.contains('/') || JobId::parse(&format!("/{asked}/")).is_ok() {
        return Cow::Borrowed(asked);
    }
    let job = JobId {
        namespace: String::new(),
        name: asked.to_owned(),
        uid: String::new(),
    };
    Cow::Owned(job.to_string().trim_matches('/').to_owned())
}

/// Whether a run has this id, or is of a job with this id or name.
fn is_called(run: &str, asked: &str) -> bool {
    if !asked.contains('/') {
        return run.split('/').nth(1) == Some(asked);
    }
    let rest = run.strip_prefix(asked);
    rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::cause::Cause;
    use gpufleet_analysis::incident::Evidence;

    use super::*;
    use crate::notify::fixture::{after, incident};

    /// One of two nodes and a run, which was over after a minute.
    fn wide() -> Incident {
        let mut one = incident(7);
        let at = |place: Place| Evidence {
            at: one.since,
            place,
            what: "slow".to_owned(),
            cause: Cause::Heat,
            readings: Vec::new(),
        };
        let of_run = Place {
            run: Some("team/llama%20b/u1/0".to_owned()),
            ..Place::gpu("prod", "node-2", "GPU-9")
        };
        one.evidence = vec![at(Place::node("prod", "node-1")), at(of_run)];
        one.severity = Severity::Warning;
        (one.state, one.resolved_at) = (State::Resolved, Some(after(60)));
        one
    }

    fn check(filter: &IncidentFilter, expected: bool) {
        let one = wide();
        assert_eq!(filter.is_met(&one), expected, "{filter:?}");
        let json = serde_json::to_string(&one).expect("it is JSON");
        let is_told = filter.texts().iter().all(|it| json.contains(&it.1) == it.0);
        assert!(is_told || !expected, "the database leaves out {filter:?}");
    }

    #[test]
    fn one_of_many_places_is_found_by_each_of_them_and_by_no_part_of_a_name() {
        for (node, gpu, expected) in [
            (Some("node-1"), None, true),
            (Some("node-2"), None, true),
            (Some("node"), None, false),
            (None, Some("GPU-7"), true),
            (Some("node-2"), Some("GPU-9"), true),
            (Some("node-1"), Some("GPU-9"), false),
            (Some(""), None, false),
        ] {
            let filter = IncidentFilter {
                node: node.map(str::to_owned),
                gpu: gpu.map(str::to_owned),
                ..IncidentFilter::default()
            };
            check(&filter, expected);
        }
    }

    #[test]
    fn a_run_is_found_by_its_id_and_by_what_its_job_is_called() {
        for (run, expected) in [
            ("team/llama%20b/u1/0", true),
            ("team/llama%20b/u1", true),
            ("team/llama%20b", true),
            ("llama%20b", true),
            ("llama b", true),
            ("team/llama%20b/u1/1", false),
            ("team/llama", false),
            ("llama", false),
            ("team", false),
            ("", false),
        ] {
            let filter = IncidentFilter {
                run: Some(run.to_owned()),
                ..IncidentFilter::default()
            };
            check(&filter, expected);
        }
    }

    #[test]
    fn a_run_that_stands_with_many_others_is_found_although_no_evidence_of_it_was_kept() {
        let mut one = wide();
        one.standing.insert("team/b/u2/0".to_owned(), Vec::new());
        let of = |run: &str| IncidentFilter {
            run: Some(run.to_owned()),
            ..IncidentFilter::default()
        };
        assert!(of("team/b").is_met(&one));
        assert!(!of("team/b").is_met(&wide()));
    }

    #[test]
    fn one_is_of_a_time_in_which_it_was_and_at_least_as_bad_as_it_was() {
        for (from, to, expected) in [
            (0, 1, true),
            (60, 90, true),
            (61, 90, false),
            (-60, 0, false),
        ] {
            let filter = IncidentFilter {
                from: Some(after(from)),
                to: Some(after(to)),
                ..IncidentFilter::default()
            };
            check(&filter, expected);
            let mut open = wide();
            open.resolved_at = None;
            assert_eq!(filter.is_met(&open), to > 0, "it goes on: {filter:?}");
        }
        for (severity, expected) in [
            (Severity::Info, true),
            (Severity::Warning, true),
            (Severity::Error, false),
        ] {
            let filter = IncidentFilter {
                severity: Some(severity),
                ..IncidentFilter::default()
            };
            check(&filter, expected);
        }
    }

    #[test]
    fn cluster_kind_and_state_are_asked_of_what_is_in_memory_too() {
        let none = IncidentFilter::default();
        for (filter, expected) in [
            (none.clone(), true),
            (
                IncidentFilter {
                    cluster: Some("other".into()),
                    ..none.clone()
                },
                false,
            ),
            (
                IncidentFilter {
                    family: Some(Family::Heat),
                    ..none.clone()
                },
                false,
            ),
            (
                IncidentFilter {
                    state: Some(State::Open),
                    ..none
                },
                false,
            ),
        ] {
            check(&filter, expected);
        }
    }
}
