//! The trouble of a day: incidents open, get worse, turn out to be more, become somebody's, are silenced, are over,
//! and come back.

use std::collections::BTreeMap;

use gpufleet_analysis::cause::Cause;
use gpufleet_analysis::incident::{Family, Incident, Place, Remedy, State};
use gpufleet_analysis::lost::{Losing, Lost};
use gpufleet_analysis::price::{Basis, Stake};
use gpufleet_server::notify::settings::Settings;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::{NANOS_PER_SECOND, Timestamp};
use rand::Rng as _;
use uuid::Uuid;

use super::Day;
use crate::people::alertmanager::Labels;

/// What an incident is called by those of its labels that change in a day: severity, GPU and team.
pub(super) type Name = BTreeMap<&'static str, String>;

/// The name of an incident as it is.
pub(super) fn name(incident: &Incident, settings: &Settings) -> Name {
    let severity = match incident.severity {
        Severity::Error => "critical",
        other => other.name(),
    };
    let team = settings.owner_words(incident).to_owned();
    let mut name = BTreeMap::from([("severity", severity.to_owned()), ("team", team)]);
    name.extend(incident.place.gpu.clone().map(|gpu| ("gpu", gpu)));
    name
}

/// The same of an alert that Alertmanager knows.
pub(super) fn name_in(labels: &Labels) -> Name {
    let known = ["severity", "team", "gpu"].into_iter();
    let label = |it: &'static str| Some((it, labels.get(it)?.clone()));
    known.filter_map(label).collect()
}

/// An open incident of a GPU that is broken, since now.
pub fn incident(id: Uuid, family: Family, cluster: &str, now: Timestamp) -> Incident {
    Incident {
        id,
        family,
        place: Place::gpu(cluster, "node-<&>-1", &format!("GPU-{id}")),
        severity: Severity::Warning,
        what: "XID 79".to_owned(),
        action: "Drain & reboot".to_owned(),
        remedy: Some(Remedy::Reboot),
        cause: Cause::GpuFault,
        confidence: None,
        places: 1,
        state: State::Open,
        since: now,
        opened_at: Some(now),
        seen_at: now,
        clear_from: now,
        unheard_since: None,
        resolved_at: None,
        ticks: 1,
        losing: Losing::gpus(1, Some(3_000_000_000)),
        lost: Lost::default(),
        basis: Basis::BrokenGpu,
        is_least: false,
        stake: Stake::default(),
        counted_to: now,
        evidence: Vec::new(),
        more_evidence: 0,
        owner: None,
        standing: BTreeMap::new(),
        acknowledged_by: None,
        silenced_until: None,
        silenced_alone_until: None,
        log: Vec::new(),
    }
}

impl Day {
    pub(super) fn incidents_come_and_go(&mut self) {
        if self.happens(40) {
            let many = if self.happens(10) { 40 } else { 1 };
            for _ in 0..many {
                self.open();
            }
        }
        let open: Vec<Uuid> = self.open_ones();
        if open.is_empty() || !self.happens(15) {
            return;
        }
        let id = open[self.rng.random_range(0..open.len())];
        let (now, kind) = (self.now, self.rng.random_range(0..14));
        let team = self.rng.random_range(0..3);
        self.change(id, |incident| match kind {
            0 => incident.severity = Severity::Error,
            1 => incident.silenced_until = Some(now.shifted(120 * NANOS_PER_SECOND)),
            // It is about the whole node.
            2 | 3 => incident.place.gpu = None,
            4 | 5 => incident.owner = Some(format!("team-{team}")),
            _ => (incident.state, incident.resolved_at) = (State::Resolved, Some(now)),
        });
        let over: Vec<Uuid> = self
            .book
            .values()
            .filter(|it| it.state == State::Resolved)
            .map(|it| it.id)
            .collect();
        if self.happens(3) && !over.is_empty() {
            // It comes back.
            let id = over[self.rng.random_range(0..over.len())];
            self.change(id, |it| (it.state, it.resolved_at) = (State::Open, None));
        }
    }

    pub(super) fn open_ones(&self) -> Vec<Uuid> {
        let open = self.book.values().filter(|it| it.state == State::Open);
        open.map(|it| it.id).collect()
    }

    pub(super) fn open(&mut self) {
        let id = Uuid::from_u128(self.next_id);
        self.next_id += 1;
        self.came.incidents += 1;
        let family = Family::ALL[self.rng.random_range(0..4)];
        let is_silent = self.next_id > 2 && self.happens(10);
        let cluster = format!("cluster-{}", self.rng.random_range(0..3));
        let mut incident = incident(id, family, &cluster, self.now);
        incident.silenced_until = is_silent.then(|| self.now.shifted(90 * NANOS_PER_SECOND));
        self.book.insert(id, incident);
        self.change(id, |_| ());
    }
}
