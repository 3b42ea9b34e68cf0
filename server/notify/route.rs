//! Who is told of an incident: every route that matches adds its channels; and why each did or did not.
//!
//! Patterns have `*` for any text. A team is the first whose patterns all match, else the one that pays by the
//! owner rules.

use std::collections::BTreeSet;

use gpufleet_analysis::incident::{Family, Incident, Place};
use gpufleet_analysis::owner::{Named, Owners, Payer};
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::own;
use super::settings::{Settings, Way};

/// Which incidents go to which channels. What is left out is not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The channels that are told.
    pub channels: Vec<String>,
    /// The least severity: `info`, `warning` or `error`.
    #[serde(default = "least")]
    pub severity: String,
    /// Kinds of trouble: `gpu_fault`, `hang`, …
    #[serde(default)]
    pub families: Vec<String>,
    /// Patterns of clusters.
    #[serde(default)]
    pub clusters: Vec<String>,
    /// Teams, of `notify.teams` or of the owner rules.
    #[serde(default)]
    pub teams: Vec<String>,
}

fn least() -> String {
    Severity::Info.name().to_owned()
}

/// Who owns what lies where. What is left out is not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Its name.
    pub name: String,
    /// Patterns of clusters.
    #[serde(default)]
    pub clusters: Vec<String>,
    /// Patterns of nodes.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Patterns of runs, `namespace/name/…`.
    #[serde(default)]
    pub runs: Vec<String>,
}

/// What one route says to an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteVerdict {
    /// The route's number, from 1; 0 is what holds without routes, or for gpufleet's own.
    pub number: usize,
    /// Its channels.
    pub channels: Vec<String>,
    /// Why it does not match; none when it does.
    pub why_not: Option<String>,
}

/// A team that a route asks for and that nobody is known to be: nobody is told by the route for its sake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Whether it is a route of the weekly digest.
    pub is_of_digest: bool,
    /// The route's number, from 1.
    pub route: usize,
    /// The team.
    pub team: String,
    /// Whether a rule takes its team from a label or the like, so that it may be one all the same.
    pub is_perhaps: bool,
}

impl Stranger {
    /// The same in a sentence.
    pub fn words(&self) -> String {
        let Self { route, team, .. } = self;
        let but = match self.is_perhaps {
            true => "; only what a label, a queue or an account names so is told by it",
            false => ": nobody is told by it, but for what is told of with that owner",
        };
        match self.is_of_digest {
            true => {
                format!("notify.digests, number {route}: no owner rule has a team {team:?}{but}")
            }
            false => format!(
                "notify.routes, number {route}: neither notify.teams nor an owner rule has a team {team:?}{but}"
            ),
        }
    }
}

impl Route {
    /// Whether every word in it means something.
    ///
    /// # Errors
    /// Names the word that does not.
    pub fn check(&self) -> Result<(), String> {
        if Severity::parse(&self.severity).is_none() {
            let severity = &self.severity;
            return Err(format!(
                "severity {severity:?} is none of info, warning, error"
            ));
        }
        for family in &self.families {
            if Family::parse(family).is_none() {
                let names = Family::ALL.map(Family::name).join(", ");
                return Err(format!("family {family:?} is none of {names}"));
            }
        }
        // It would tell nobody, and keep what holds without routes from telling everybody. A team may be one that
        // only owner rules name, which are read again while the server runs.
        match self.channels.is_empty() {
            true => Err("it leads nowhere: channels names none".to_owned()),
            false => Ok(()),
        }
    }

    fn why_not(&self, incident: &Incident, team: Option<&str>) -> Option<String> {
        let least = Severity::parse(&self.severity).unwrap_or(Severity::Info);
        let family = incident.family.name();
        let cluster = &incident.place.cluster;
        if incident.severity < least {
            return Some(format!(
                "it is {}, the route begins at {}",
                incident.severity.name(),
                least.name()
            ));
        }
        if !self.families.is_empty() && !self.families.iter().any(|it| it == family) {
            return Some(format!(
                "its kind is {family}, the route has {}",
                self.families.join(", ")
            ));
        }
        if !any(&self.clusters, Some(cluster)) {
            return Some(format!(
                "its cluster is {cluster}, the route has {}",
                self.clusters.join(", ")
            ));
        }
        if !self.teams.is_empty()
            && !team.is_some_and(|team| self.teams.iter().any(|it| it == team))
        {
            let team = team.unwrap_or("nobody's");
            return Some(format!(
                "its team is {team}, the route has {}",
                self.teams.join(", ")
            ));
        }
        None
    }
}

impl Settings {
    /// The teams of routes that nobody is known to be.
    pub fn strangers(&self, owners: &Owners, now: Timestamp) -> Vec<Stranger> {
        let mut found = Vec::new();
        for (route, of) in (1..).zip(&self.digests) {
            // Who pays, not whose a place is: notify.teams has nothing to do with it.
            let nobodys = [Payer::Unowned.name(), Payer::Nobody.name()];
            for team in of.teams.iter().filter(|it| !nobodys.contains(&it.as_str())) {
                let named = owners.names(team, now.millis());
                if named != Named::Yes {
                    found.push(Stranger {
                        is_of_digest: true,
                        route,
                        team: team.clone(),
                        is_perhaps: named == Named::Perhaps,
                    });
                }
            }
        }
        for (route, teams) in (1..).zip(self.routes.iter().map(|it| &it.teams)) {
            for team in teams {
                let is_configured = self.teams.iter().any(|it| it.name == *team);
                let named = owners.names(team, now.millis());
                if is_configured || named == Named::Yes {
                    continue;
                }
                found.push(Stranger {
                    is_of_digest: false,
                    route,
                    team: team.clone(),
                    is_perhaps: named == Named::Perhaps,
                });
            }
        }
        found
    }

    /// Whose an incident is: the first team whose patterns match its place, else who pays for what it is about. A
    /// budget is its team's, and at no place that patterns are of.
    pub fn owner<'a>(&'a self, incident: &'a Incident) -> Option<&'a str> {
        let by_place = match incident.family {
            Family::Budget => None,
            _ => self.team(&incident.place),
        };
        by_place.or(incident.owner.as_deref())
    }

    /// The same as it is shown.
    pub fn owner_words<'a>(&'a self, incident: &'a Incident) -> &'a str {
        self.owner(incident).unwrap_or("unowned")
    }

    /// The team that owns a place by its patterns.
    fn team(&self, place: &Place) -> Option<&str> {
        let owns = |it: &&Team| {
            any(&it.clusters, Some(&place.cluster))
                && any(&it.nodes, place.node.as_deref())
                && any(&it.runs, place.run.as_deref())
        };
        self.teams.iter().find(owns).map(|it| it.name.as_str())
    }

    /// What each route says to an incident.
    pub fn explain(&self, incident: &Incident) -> Vec<RouteVerdict> {
        let all = || -> Vec<String> {
            let names: BTreeSet<&str> = self.ways.iter().map(|it| &*it.channel).collect();
            names.into_iter().map(str::to_owned).collect()
        };
        if let Some(origin) = untold(&incident.place.cluster, self.simulated) {
            return vec![RouteVerdict {
                number: 0,
                channels: all(),
                why_not: Some(format!("its cluster is {origin}: nobody is paged for that")),
            }];
        }
        if let Some(failing) = own::failing_channel(incident) {
            // A channel that fails is told by others.
            let others = |from: Vec<String>| -> Vec<String> {
                from.into_iter().filter(|it| it != failing).collect()
            };
            let own = others(self.own_channels.clone());
            let channels = if own.is_empty() { others(all()) } else { own };
            return vec![RouteVerdict {
                number: 0,
                channels,
                why_not: None,
            }];
        }
        if incident.family == Family::Blind && !self.own_channels.is_empty() {
            let channels = self.own_channels.clone();
            return vec![RouteVerdict {
                number: 0,
                channels,
                why_not: None,
            }];
        }
        if self.routes.is_empty() {
            let is_loud = incident.severity >= Severity::Warning;
            let why = "it is info, and without routes channels are told of warnings and errors";
            return vec![RouteVerdict {
                number: 0,
                channels: all(),
                why_not: (!is_loud).then(|| why.to_owned()),
            }];
        }
        let team = self.owner(incident);
        let routes = (1..).zip(&self.routes);
        routes
            .map(|(number, route)| RouteVerdict {
                number,
                channels: route.channels.clone(),
                why_not: route.why_not(incident, team),
            })
            .collect()
    }

    /// The receivers that are told of an incident.
    pub fn ways_of(&self, incident: &Incident) -> Vec<&Way> {
        let said = self.explain(incident);
        let told: BTreeSet<&str> = said
            .iter()
            .filter(|it| it.why_not.is_none())
            .flat_map(|it| it.channels.iter().map(String::as_str))
            .collect();
        self.ways
            .iter()
            .filter(|it| told.contains(&*it.channel))
            .collect()
    }
}

/// What a cluster is that nobody is told of; none where people are.
fn untold(cluster: &str, simulated: bool) -> Option<&'static str> {
    let is = |whole: &str, end: &str| cluster == whole || cluster.ends_with(end);
    match () {
        () if is("recorded", "-recorded") => Some("recorded"),
        () if is("demo", "-simulated") && !simulated => Some("simulated"),
        () => None,
    }
}

/// Whether one of the patterns matches; no pattern asks for nothing.
fn any(patterns: &[String], text: Option<&str>) -> bool {
    patterns.is_empty() || text.is_some_and(|text| patterns.iter().any(|it| matches(it, text)))
}

/// Whether a text is what a pattern says, where `*` is any text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut left) = text.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::digest::Digested;
    use crate::notify::fixture::{incident, settings};
    use crate::notify::settings::Kind;

    #[test]
    fn a_star_is_any_text_and_nothing_else_is() {
        for (pattern, text, expected) in [
            ("prod", "prod", true),
            ("prod", "prod-2", false),
            ("prod*", "prod-2", true),
            ("*", "", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("research/*", "research/llama/1", true),
            ("*7", "node-7", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn every_route_that_matches_adds_its_channels_and_says_why_when_it_does_not() {
        let mut settings = settings(&[("pager", Kind::Pagerduty), ("chat", Kind::Slack)]);
        let mut gpu = incident(1);
        let route = |channel: &str, change: fn(&mut Route)| {
            let mut route = Route {
                channels: vec![channel.to_owned()],
                severity: "info".to_owned(),
                families: Vec::new(),
                clusters: Vec::new(),
                teams: Vec::new(),
            };
            change(&mut route);
            route
        };
        settings.teams = vec![Team {
            name: "research".to_owned(),
            clusters: vec!["prod".to_owned()],
            nodes: vec!["node-*".to_owned()],
            runs: Vec::new(),
        }];
        settings.routes = vec![
            route("pager", |it| it.severity = "error".to_owned()),
            route("chat", |it| it.teams = vec!["research".to_owned()]),
            route("chat", |it| it.families = vec!["heat".to_owned()]),
        ];
        let names = |settings: &Settings, incident: &Incident| -> Vec<String> {
            let ways = settings.ways_of(incident);
            ways.iter().map(|it| it.name.to_string()).collect()
        };
        assert_eq!(names(&settings, &gpu), ["pager", "chat"]);
        let said = settings.explain(&gpu);
        assert!(
            said[2]
                .why_not
                .as_deref()
                .is_some_and(|it| it.contains("gpu_fault") && it.contains("heat"))
        );
        gpu.severity = Severity::Warning;
        assert_eq!(names(&settings, &gpu), ["chat"]);
        gpu.place.node = Some("other".to_owned());
        assert_eq!(names(&settings, &gpu), Vec::<String>::new());
        assert!(
            settings.explain(&gpu)[1]
                .why_not
                .as_deref()
                .is_some_and(|it| it.contains("nobody's"))
        );
        settings.routes.clear();
        assert_eq!(names(&settings, &gpu), ["pager", "chat"]);
        gpu.severity = Severity::Info;
        assert_eq!(names(&settings, &gpu), Vec::<String>::new());
    }

    #[test]
    fn a_route_for_a_team_that_nobody_is_known_to_be_is_named() {
        let mut settings = settings(&[("pager", Kind::Pagerduty)]);
        settings.teams = vec![Team {
            name: "research".to_owned(),
            clusters: Vec::new(),
            nodes: Vec::new(),
            runs: Vec::new(),
        }];
        let route = |teams: &[&str]| Route {
            channels: vec!["pager".to_owned()],
            severity: "info".to_owned(),
            families: Vec::new(),
            clusters: Vec::new(),
            teams: teams.iter().map(|it| (*it).to_owned()).collect(),
        };
        settings.routes = vec![route(&[]), route(&["research", "batch", "reserch"])];
        let rules = "from,until,kind,key,value,team\n2026-01-01,,queue,,night,batch\n";
        let fixed = Owners::read(rules).expect("a table");
        let now = crate::notify::fixture::START;
        let said: Vec<String> = settings
            .strangers(&fixed, now)
            .iter()
            .map(Stranger::words)
            .collect();
        assert_eq!(said.len(), 1, "{said:?}");
        for word in ["number 2", "\"reserch\"", "nobody is told"] {
            assert!(said[0].contains(word), "{said:?}");
        }
        settings.digests = vec![Digested {
            channels: vec!["chat".to_owned()],
            teams: ["batch", "unowned", "nobody", "rsearch"]
                .map(str::to_owned)
                .into(),
        }];
        let of_digests = settings.strangers(&fixed, now);
        let of_digests: Vec<_> = of_digests.iter().filter(|it| it.is_of_digest).collect();
        let [one] = of_digests.as_slice() else {
            panic!("{of_digests:?}");
        };
        assert!(one.words().contains("notify.digests, number 1") && one.team == "rsearch");
        settings.digests.clear();
        let labels = format!("{rules}2026-01-01,,pod_label,team,*,\n");
        let by_label = Owners::read(&labels).expect("a table");
        let said = settings.strangers(&by_label, now)[0].words();
        assert!(
            said.contains("reserch") && said.contains("only what a label"),
            "{said}"
        );
    }

    #[test]
    fn nobody_is_paged_for_recorded_or_simulated_gpus_unless_asked_for() {
        let mut settings = settings(&[("pager", Kind::Pagerduty)]);
        for (cluster, by_default, when_asked) in [
            ("prod", 1, 1),
            ("demo", 0, 1),
            ("x-simulated", 0, 1),
            ("recorded", 0, 0),
            ("x-recorded", 0, 0),
        ] {
            let mut one = incident(1);
            one.place.cluster = cluster.to_owned();
            settings.simulated = false;
            assert_eq!(settings.ways_of(&one).len(), by_default, "{cluster}");
            settings.simulated = true;
            assert_eq!(settings.ways_of(&one).len(), when_asked, "{cluster}");
        }
    }

    #[test]
    fn own_blindness_goes_its_own_way_and_a_channel_that_fails_is_told_by_others() {
        let mut settings = settings(&[
            ("pager", Kind::Pagerduty),
            ("chat", Kind::Slack),
            ("ops", Kind::Webhook),
        ]);
        let names = |settings: &Settings, incident: &Incident| -> Vec<String> {
            let ways = settings.ways_of(incident);
            ways.iter().map(|it| it.name.to_string()).collect()
        };
        let mut blind = incident(1);
        blind.family = Family::Blind;
        settings.own_channels = vec!["ops".to_owned()];
        assert_eq!(names(&settings, &blind), ["ops"]);
        blind.place = own::place(&own::channel_fails("pager"));
        assert_eq!(names(&settings, &blind), ["ops"]);
        blind.place = own::place(&own::channel_fails("ops"));
        assert_eq!(names(&settings, &blind), ["pager", "chat"]);
    }
}
