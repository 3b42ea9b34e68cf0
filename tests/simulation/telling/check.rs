//! What must hold at the end of a day.

use std::collections::BTreeSet;

use gpufleet_analysis::incident::State;
use gpufleet_telemetry::time::NANOS_PER_SECOND;

use super::trouble::{Name, name, name_in};
use super::{Day, MOST_A_MINUTE};
use crate::people::{Service, alertmanager};

impl Day {
    /// Alerts of one incident that Alertmanager did not take for one: each of its names is an alert, and the only one
    /// that is active is the last.
    fn told_apart(&self, receiver: &alertmanager::Alertmanager) -> Vec<String> {
        let mut wrong = Vec::new();
        for (id, incident) in &self.database.incidents {
            let is_its = |it: &&alertmanager::Labels| it["incident_id"] == id.to_string();
            let all: Vec<Name> = receiver.alerts.keys().filter(is_its).map(name_in).collect();
            let names = self.names.get(id).cloned().unwrap_or_default();
            let is_one = |it: &Name| names.contains(it);
            let distinct: BTreeSet<&Name> = all.iter().collect();
            if distinct.len() != all.len() || !all.iter().all(is_one) {
                wrong.push(format!("Alertmanager has {all:?} of {id}, not {names:?}"));
            }
            let active = receiver.active(self.now.seconds()).filter(is_its);
            let active: Vec<Name> = active.map(name_in).collect();
            let expected = Vec::from_iter(
                (incident.state == State::Open).then(|| name(incident, &self.settings)),
            );
            if active != expected {
                wrong.push(format!(
                    "{id} is {expected:?}, and {active:?} to Alertmanager"
                ));
            }
        }
        wrong
    }

    /// Notes everything that must hold in the end and does not.
    pub(super) fn check(&mut self) {
        let mut wrong = Vec::new();
        for (name, receiver) in &self.receivers {
            for (id, incident) in &self.database.incidents {
                let is_open = incident.state == State::Open;
                match receiver.believes(*id, self.now) {
                    Some(believed) if believed == is_open => {}
                    Some(believed) => wrong.push(format!(
                        "{name} believes that {id} is {}",
                        if believed { "open" } else { "over" }
                    )),
                    // Silent all its life.
                    None if !is_open && incident.silenced_until.is_some() => {}
                    None => wrong.push(format!("{name} was never told of {id}")),
                }
            }
            if let Service::Alertmanager(it) = &receiver.service {
                wrong.extend(self.told_apart(it));
            }
            let repeats: u64 = receiver.service.messages().values().map(|it| it - 1).sum();
            if repeats > self.came.deaths + self.came.lost_answers {
                wrong.push(format!("{name} was told {repeats} messages again"));
            }
            let times = &receiver.heard.times;
            let minute = 60 * NANOS_PER_SECOND;
            for (place, at) in times.iter().enumerate() {
                let since = times[..=place].partition_point(|it| at.since(*it) >= minute);
                let deaths = usize::try_from(self.came.deaths).unwrap_or(usize::MAX);
                if place + 1 - since > MOST_A_MINUTE.saturating_add(deaths.saturating_mul(15)) {
                    wrong.push(format!(
                        "{name} was told {} messages in a minute",
                        place + 1 - since
                    ));
                    break;
                }
            }
            if let Service::Pagerduty(pagerduty) = &receiver.service {
                let open = pagerduty.alarms.values().filter(|it| **it).count();
                let groups = self
                    .outbox
                    .groups()
                    .filter(|it| *it.way == **name && it.is_raised)
                    .count();
                if open != groups || pagerduty.strange > 0 {
                    wrong.push(format!(
                        "{open} alarms are open for {groups} groups, {} ends without a beginning",
                        pagerduty.strange
                    ));
                }
            }
        }
        self.wrong.extend(wrong);
    }
}
