//! Which nodes are to be drained, and what is written of them: pure, from incidents to Kubernetes' words.
//!
//! A node is to be drained when an open incident of one of its GPUs, or of itself, is of broken hardware and asks for
//! what cannot be done under a running job: a drain, a reset, a reboot, a restart of the machine, a new card
//! ([`Remedy`](gpufleet_analysis::incident::Remedy)). Of one that an older version wrote that is not known until it is
//! told again, and a GPU that is of no use counts. What is wrong with a cluster is no node's; what slows a node down
//! (heat, power, a link) is told and not handed off.

use std::collections::BTreeMap;

use gpufleet_analysis::incident::{Family, Incident, State};
use gpufleet_analysis::price::Basis;
use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::time::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::words::text;

/// The node's condition.
pub const CONDITION: &str = "GpufleetGpuBroken";

/// The taint's key.
pub const TAINT: &str = "gpufleet.io/gpu-broken";

/// Longest message: events take 1,024 characters.
const MAX_MESSAGE: usize = 900;

/// What is asked of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Why, in one word as conditions have it: `Xid79`.
    pub reason: String,
    /// Why, for a person.
    pub message: String,
    /// The incident; nil of one that was found on a node when the server began.
    pub incident: Uuid,
    /// Since when.
    pub since: Timestamp,
    /// Since when the node has the condition; none of one that has only the taint, or nothing yet.
    pub from: Option<Timestamp>,
    /// Whether the node has the taint, as far as is known.
    pub is_tainted: bool,
}

/// Whether a node is to be drained for it.
pub fn is_to_be_drained(incident: &Incident) -> bool {
    let is_hardware = matches!(incident.family, Family::GpuFault | Family::Offender);
    // A card that breaks again and again is only warned of, and asks for its replacement.
    let is_bad = incident.severity == Severity::Error || incident.family == Family::Offender;
    let is_asked = match incident.remedy {
        Some(remedy) => remedy.drains(),
        None => incident.basis == Basis::BrokenGpu,
    };
    incident.state == State::Open
        && is_hardware
        && is_bad
        && is_asked
        && incident.place.node.is_some()
}

/// The nodes of a cluster that are to be drained, each for its oldest incident.
pub fn asks(open: &[Incident], cluster: &str) -> BTreeMap<String, Ask> {
    let mut found: BTreeMap<String, Ask> = BTreeMap::new();
    for incident in open.iter().filter(|it| is_to_be_drained(it)) {
        let Some(node) = incident.place.node.clone() else {
            continue;
        };
        if incident.place.cluster != cluster {
            continue;
        }
        let ask = Ask::of(incident);
        match found.get(&node) {
            Some(known) if known.since <= ask.since => {}
            _ => _ = found.insert(node, ask),
        }
    }
    found
}

impl Ask {
    fn of(incident: &Incident) -> Self {
        let gpu = incident.place.gpu.as_deref();
        let gpu = gpu.map_or(String::new(), |it| format!(" on {it}"));
        // An XID whose sender names no action asks for what its code does, and has no words.
        let action = match incident.action.trim_end_matches('.') {
            "" => String::new(),
            action => format!(": {action}"),
        };
        let (what, id) = (&incident.what, incident.id);
        let message = format!("{what}{gpu}{action} (gpufleet incident {id})");
        Self {
            reason: reason(&incident.what),
            message: text::harmless(&message, MAX_MESSAGE),
            incident: incident.id,
            since: incident.since,
            from: None,
            is_tainted: false,
        }
    }

    /// Of a node on which it was found, with the condition since then.
    pub(super) fn unknown(from: Option<Timestamp>, is_tainted: bool) -> Self {
        Self {
            reason: String::new(),
            message: String::new(),
            incident: Uuid::nil(),
            since: Timestamp::default(),
            from,
            is_tainted,
        }
    }

    /// The condition while it is so.
    pub(super) fn condition(&self, now: Timestamp) -> Value {
        json!({
            "type": CONDITION,
            "status": "True",
            "reason": self.reason,
            "message": self.message,
            "lastHeartbeatTime": moment(now),
            // When it became so, not when it was written: a server that begins anew says the same.
            "lastTransitionTime": moment(self.from.unwrap_or(now)),
        })
    }

    /// The event when it begins.
    pub(super) fn event(&self, node: &str, now: Timestamp) -> Value {
        json!({
            "metadata": {"generateName": "gpufleet-", "namespace": "default"},
            // Of a node the kubelet gives its name for the uid, and so does who lists a node's events.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "reason": self.reason,
            "message": self.message,
            "type": "Warning",
            "source": {"component": "gpufleet-server"},
            "firstTimestamp": moment(now),
            "lastTimestamp": moment(now),
            "count": 1,
        })
    }
}

/// The condition when nothing is wrong any more.
pub(super) fn whole(now: Timestamp) -> Value {
    json!({
        "type": CONDITION,
        "status": "False",
        "reason": "GpusWhole",
        "message": "no incident asks for the node to be drained",
        "lastHeartbeatTime": moment(now),
        "lastTransitionTime": moment(now),
    })
}

/// A node's taints with ours or without; none where that is so already.
pub(super) fn tainted(before: &[Value], is_set: bool) -> Option<Vec<Value>> {
    let is_ours = |it: &&Value| it["key"] == TAINT;
    let has_ours = before.iter().any(|it| is_ours(&it));
    if has_ours == is_set {
        return None;
    }
    let others = before.iter().filter(|it| !is_ours(it)).cloned();
    let ours = json!({"key": TAINT, "effect": "NoSchedule"});
    Some(others.chain(is_set.then_some(ours)).collect())
}

/// What it is in one word: letters and digits, each word with a capital. Kubernetes wants a letter first.
fn reason(what: &str) -> String {
    let words = what.split(|it: char| !it.is_ascii_alphanumeric());
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|it| it.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    let word: String = words.map(capital).collect();
    match word.starts_with(|it: char| it.is_ascii_alphabetic()) {
        true => word.chars().take(64).collect(),
        false => "GpuBroken".to_owned(),
    }
}

/// A moment as Kubernetes has it: whole seconds.
fn moment(at: Timestamp) -> String {
    let text = text::rfc3339(at);
    text.split_once('.')
        .map_or(text.clone(), |(seconds, _)| format!("{seconds}Z"))
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::health::Asks;
    use gpufleet_analysis::incident::{Place, Remedy};

    use super::*;
    use crate::notify::fixture;
    use crate::words::xid;

    fn incident(what: &str, action: &str, remedy: Remedy) -> Incident {
        Incident {
            family: Family::GpuFault,
            severity: Severity::Error,
            what: what.to_owned(),
            action: action.to_owned(),
            remedy: Some(remedy),
            place: Place::gpu("prod", "node-1", "GPU-1"),
            state: State::Open,
            ..fixture::incident(7)
        }
    }

    fn fell() -> Incident {
        incident("XID 79", "Reboot it.", Remedy::Reboot)
    }

    #[test]
    fn broken_hardware_that_asks_for_a_drain_is_handed_off_and_nothing_else_is() {
        for (remedy, expected) in [
            (Remedy::Look, false),
            (Remedy::Repair, false),
            (Remedy::Diagnose, false),
            (Remedy::Drain, true),
            (Remedy::Reset, true),
            (Remedy::Replace, true),
            (Remedy::RestartVm, true),
            (Remedy::Reboot, true),
        ] {
            // Whatever its words name.
            for action in ["", "See which link it is before the GPU is reset."] {
                let broken = incident("XID 48", action, remedy);
                assert_eq!(is_to_be_drained(&broken), expected, "{remedy:?}");
            }
        }
        let mut hot = fell();
        hot.family = Family::Heat;
        assert!(!is_to_be_drained(&hot), "it is slow and not broken");
        let mut over = fell();
        over.state = State::Resolved;
        assert!(!is_to_be_drained(&over));
        let mut of_all = fell();
        of_all.place.node = None;
        assert!(!is_to_be_drained(&of_all), "it is the cluster's");
    }

    #[test]
    fn an_xid_is_handed_off_by_the_name_of_its_action_and_one_of_the_users_own_by_its_code() {
        for (code, name, expected) in [
            (0, "reboot_node", true),
            (0, "reset_gpu", true),
            (0, "restart_vm", true),
            (0, "drain_and_reset", true),
            (0, "drain_peer_to_peer", false),
            (0, "nvlink", false),
            (0, "check_power", false),
            (0, "update_software", false),
            (0, "check_uvm", false),
            (0, "application_error", false),
            (0, "read_recovery_action", false),
            (48, "page_the_night_shift", true),
            (31, "drain_our_queue", false),
        ] {
            let remedy = Asks::of(code, name, Severity::Error).into();
            let incident = incident("XID", &xid::asks(name), remedy);
            assert_eq!(is_to_be_drained(&incident), expected, "{code} {name}");
        }
    }

    #[test]
    fn of_what_an_older_version_wrote_a_gpu_that_is_of_no_use_is_handed_off() {
        let written = serde_json::to_string(&fell()).expect("it is JSON");
        let older = written.replace(r#""remedy":"reboot","#, "");
        assert_ne!(older, written);
        let mut read: Incident = serde_json::from_str(&older).expect("it is read");
        assert_eq!(read.remedy, None);
        assert!(is_to_be_drained(&read));
        read.basis = Basis::GoesOn;
        assert!(!is_to_be_drained(&read), "it may ask for a look alone");
    }

    #[test]
    fn a_node_is_asked_for_once_for_its_oldest_incident_and_only_in_its_cluster() {
        let first = fell();
        let later = Incident {
            id: Uuid::from_u128(9),
            since: first.since.shifted(1),
            ..incident("XID 48", "", Remedy::Reset)
        };
        let mut elsewhere = fell();
        elsewhere.place = Place::gpu("other", "node-2", "GPU-2");
        let without_words = Ask::of(&later).message;
        assert!(
            without_words.starts_with("XID 48 on GPU-1 (gpufleet incident"),
            "{without_words}"
        );
        let found = asks(&[later, first.clone(), elsewhere], "prod");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["node-1"]);
        let ask = &found["node-1"];
        assert_eq!((ask.incident, ask.reason.as_str()), (first.id, "XID79"));
        assert!(
            ask.message.starts_with("XID 79 on GPU-1: Reboot it ("),
            "{}",
            ask.message
        );
    }

    #[test]
    fn a_condition_says_since_when_it_is_so_however_often_it_is_written() {
        let mut ask = Ask::of(&fell());
        let hours = |hours: i64| ask.since.shifted(hours * 3_600_000_000_000);
        let (first, later) = (hours(1), hours(2));
        let times = |it: &Ask, now: Timestamp| {
            let condition = it.condition(now);
            ["lastTransitionTime", "lastHeartbeatTime"].map(|key| condition[key].clone())
        };
        assert_eq!(times(&ask, first), [moment(first), moment(first)]);
        ask.from = Some(first);
        assert_eq!(times(&ask, later), [moment(first), moment(later)]);
    }

    #[test]
    fn reasons_are_words_that_kubernetes_takes() {
        for (what, expected) in [
            ("XID 79", "XID79"),
            ("its readings stopped", "ItsReadingsStopped"),
            ("2 errors", "GpuBroken"),
            ("", "GpuBroken"),
        ] {
            assert_eq!(reason(what), expected);
        }
    }

    #[test]
    fn the_taint_is_added_beside_those_of_others_and_taken_away_alone() {
        let theirs = json!({"key": "nvidia.com/gpu", "effect": "NoSchedule"});
        let ours = json!({"key": TAINT, "effect": "NoSchedule"});
        let both = [theirs.clone(), ours];
        assert_eq!(tainted(&both[..1], true).as_deref(), Some(&both[..]));
        assert_eq!(tainted(&both, true), None);
        assert_eq!(tainted(&both, false), Some(vec![theirs]));
        assert_eq!(tainted(&both[..1], false), None);
    }
}
