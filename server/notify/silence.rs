//! Silences by pattern: of what matches nobody is told for a while, also of what breaks meanwhile.
//!
//! An incident that matches is silenced as a person silences one, and what is still wrong when the silence is
//! over is told then. An incident that has grown beyond what a pattern names (from a node to its cluster)
//! matches it no more, so that what takes many down is told.
//!
//! Limits: [`MAX_SILENCES`] at a time, of 7 days at most, patterns of [`MAX_PATTERN_BYTES`].

use gpufleet_analysis::incident::{
    Family, Incident, MAX_NOTE_BYTES, MAX_PERSON_BYTES, MAX_SILENCE_NS,
};
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::route::matches;

/// Most silences at a time: what a person can look through.
pub const MAX_SILENCES: usize = 100;
/// Longest pattern: the longest name that Kubernetes gives.
pub const MAX_PATTERN_BYTES: usize = 253;

/// What a silence is about: all that is said has to match, where `*` is any text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SilencePattern)]
pub struct Pattern {
    /// Of these clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// On these nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// On these GPUs, by id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Of these runs, `namespace/name/…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Of this kind: `gpu_fault`, `heat`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Of these teams, as `notify.teams` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
}

/// A silence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its id.
    pub id: Uuid,
    /// What it is about.
    pub pattern: Pattern,
    /// Until when.
    pub until: Timestamp,
    /// Since when.
    pub since: Timestamp,
    /// Who says so.
    pub who: String,
    /// Why; may be empty.
    pub note: String,
}

/// Why there is no such silence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Everything would be silent.
    #[error("a silence says of what: one of cluster, node, gpu, run, kind, team, and not only *")]
    Everything,
    /// A pattern that cannot be one.
    #[error("{0}: a pattern has 1 to {MAX_PATTERN_BYTES} bytes and no control characters")]
    Pattern(&'static str),
    /// No incident is of this kind.
    #[error("kind “{0}”: it is one of {names}", names = Family::ALL.map(Family::name).join(", "))]
    Kind(String),
    /// Over before it begins, or too long.
    #[error("a silence ends after now and within 7 days")]
    Until,
    /// No name, or none that can be kept.
    #[error("who says so: a name of 1 to {MAX_PERSON_BYTES} bytes")]
    Person,
    /// Too long a reason.
    #[error("a note has at most {MAX_NOTE_BYTES} bytes")]
    Note,
    /// There are too many.
    #[error("there are {MAX_SILENCES} silences already: end some, or say more with one")]
    TooMany,
    /// There is none.
    #[error(
        "there is no silence {0}; it may be over, and that of one incident ends with gpufleet unsilence"
    )]
    Unknown(Uuid),
}

/// Whether somebody is named.
pub fn is_person(who: &str) -> bool {
    let who = who.trim();
    (1..=MAX_PERSON_BYTES).contains(&who.len()) && !who.chars().any(char::is_control)
}

impl Pattern {
    /// What it asks for, by name.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("cluster", &self.cluster),
            ("node", &self.node),
            ("gpu", &self.gpu),
            ("run", &self.run),
            ("kind", &self.kind),
            ("team", &self.team),
        ];
        all.into_iter()
            .filter_map(|(name, pattern)| Some((name, pattern.as_deref()?)))
    }

    /// As it is typed: `node=gke-a3-* kind=heat`.
    pub fn words(&self) -> String {
        let parts: Vec<String> = self
            .parts()
            .map(|(name, it)| format!("{name}={it}"))
            .collect();
        parts.join(" ")
    }

    fn check(&self) -> Result<(), Refused> {
        for (name, pattern) in self.parts() {
            let fits = (1..=MAX_PATTERN_BYTES).contains(&pattern.len());
            if !fits || pattern.chars().any(char::is_control) {
                return Err(Refused::Pattern(name));
            }
        }
        if let Some(kind) = &self.kind
            && !Family::ALL.iter().any(|it| matches(kind, it.name()))
        {
            return Err(Refused::Kind(kind.clone()));
        }
        let says_something = self.parts().any(|(_, it)| it.chars().any(|it| it != '*'));
        says_something.then_some(()).ok_or(Refused::Everything)
    }
}

impl Silence {
    /// Whether it is one that may be kept.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn check(&self) -> Result<(), Refused> {
        if !is_person(&self.who) {
            return Err(Refused::Person);
        }
        if self.note.len() > MAX_NOTE_BYTES {
            return Err(Refused::Note);
        }
        if !(1..=MAX_SILENCE_NS).contains(&self.until.since(self.since)) {
            return Err(Refused::Until);
        }
        self.pattern.check()
    }

    /// Whether an incident is what it is about; `team` is whose it is.
    pub fn is_about(&self, incident: &Incident, team: Option<&str>) -> bool {
        let place = &incident.place;
        let of = |name: &str| match name {
            "cluster" => Some(place.cluster.as_str()),
            "node" => place.node.as_deref(),
            "gpu" => place.gpu.as_deref(),
            "run" => place.run.as_deref(),
            "kind" => Some(incident.family.name()),
            _ => team,
        };
        let mut parts = self.pattern.parts();
        parts.all(|(name, pattern)| of(name).is_some_and(|it| matches(pattern, it)))
    }

    /// Who silences an incident by it, for the incident's log.
    pub fn signature(&self) -> String {
        let whole = format!("{} ({})", self.who.trim(), self.pattern.words());
        whole[..whole.floor_char_boundary(MAX_PERSON_BYTES)].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::fixture::incident;

    fn silence(pattern: &str) -> Silence {
        let now = Timestamp::from_seconds(1_795_000_000);
        Silence {
            id: Uuid::from_u128(1),
            pattern: serde_json::from_str(pattern).expect("a pattern"),
            until: now.shifted(3_600_000_000_000),
            since: now,
            who: "Mira".to_owned(),
            note: String::new(),
        }
    }

    #[test]
    fn an_incident_matches_when_all_that_is_said_does_and_has_to_be_there() {
        let mut one = incident(1);
        one.place.cluster = "prod".to_owned();
        one.place.node = Some("gke-a3-7".to_owned());
        for (pattern, expected) in [
            (r#"{"node": "gke-a3-*"}"#, true),
            (r#"{"node": "gke-a2-*"}"#, false),
            (r#"{"node": "gke-a3-*", "kind": "gpu_fault"}"#, true),
            (r#"{"node": "gke-a3-*", "kind": "heat"}"#, false),
            (r#"{"kind": "gpu_*", "cluster": "prod"}"#, true),
            (r#"{"cluster": "prod", "team": "research"}"#, true),
            (r#"{"cluster": "prod", "team": "search"}"#, false),
            (r#"{"cluster": "prod", "run": "*"}"#, false),
        ] {
            let is_about = silence(pattern).is_about(&one, Some("research"));
            assert_eq!(is_about, expected, "{pattern}");
        }
        one.place.node = None;
        let of_nodes = silence(r#"{"node": "*-*"}"#);
        assert!(
            !of_nodes.is_about(&one, None),
            "it is about the whole cluster by now"
        );
    }

    #[test]
    fn a_silence_of_everything_of_nothing_or_without_an_end_is_refused_by_name() {
        for (pattern, refused) in [
            ("{}", Some(Refused::Everything)),
            (
                r#"{"node": "*", "cluster": "**"}"#,
                Some(Refused::Everything),
            ),
            (r#"{"node": ""}"#, Some(Refused::Pattern("node"))),
            (r#"{"gpu": "a\nb"}"#, Some(Refused::Pattern("gpu"))),
            (
                r#"{"kind": "fire"}"#,
                Some(Refused::Kind("fire".to_owned())),
            ),
            (r#"{"kind": "gpu_*"}"#, None),
        ] {
            assert_eq!(silence(pattern).check().err(), refused, "{pattern}");
        }
        let good = silence(r#"{"node": "a"}"#);
        for (change, refused) in [
            (
                (|it| it.who = " ".to_owned()) as fn(&mut Silence),
                Refused::Person,
            ),
            (|it| it.until = it.since, Refused::Until),
            (
                |it| it.until = Timestamp(it.since.0 + MAX_SILENCE_NS + 1),
                Refused::Until,
            ),
            (|it| it.note = "x".repeat(MAX_NOTE_BYTES + 1), Refused::Note),
            (
                |it| it.pattern.node = Some("x".repeat(MAX_PATTERN_BYTES + 1)),
                Refused::Pattern("node"),
            ),
        ] {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(bad.check(), Err(refused));
        }
        assert!(serde_json::from_str::<Pattern>(r#"{"nodes": "a"}"#).is_err());
    }

    #[test]
    fn who_silences_says_by_what_and_fits_into_a_log() {
        let mut long = silence(r#"{"node": "gke-a3-*", "kind": "heat"}"#);
        assert_eq!(long.signature(), "Mira (node=gke-a3-* kind=heat)");
        long.pattern.node = Some("é".repeat(100));
        assert!(long.signature().len() <= MAX_PERSON_BYTES);
    }
}
