//! How those are doing who know who holds what: the events of it, and what the node says of itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Metric, own};
use gpufleet_telemetry::event::{Event, EventKind, Severity};
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind};
use gpufleet_telemetry::sample::{ResourceSamples, Sample};

use super::answers::Answers;
use super::held::Found;
use super::labels::Facts;
use super::node;
use super::standing::{Source, Standing};
use super::{Attribution, SOURCE};
use crate::read::Turn;

impl Attribution {
    /// How everyone is doing who was asked.
    pub(super) fn sources(&self, answers: &Answers) -> Vec<(Source, Standing)> {
        let is_asked = self.has_kubelet && !self.config.kubelet_socket.as_os_str().is_empty();
        let kubelet = is_asked.then(|| self.kubelet.clone());
        let cluster = answers.cluster.as_ref().map(|it| it.standing.clone());
        let was_asked = |it: &Standing| (*it != Standing::default()).then(|| it.clone());
        [
            (Source::Kubelet, kubelet),
            (Source::Kubernetes, cluster),
            (Source::Claims, was_asked(&answers.claims_standing)),
            (Source::Slurm, was_asked(&answers.slurm)),
            (Source::Allocations, was_asked(&answers.allocations)),
        ]
        .into_iter()
        .filter_map(|(source, standing)| Some((source, standing?)))
        .collect()
    }

    /// Who began to fail, and who works again.
    pub(super) fn events(&mut self, sources: &[(Source, Standing)], turn: &Turn) -> Vec<Event> {
        let mut events = Vec::new();
        for (source, standing) in sources {
            let name = source.name();
            let (kind, severity, message) = match standing.error() {
                Some(error) if self.failing.insert(*source) => (
                    EventKind::ReaderFailed,
                    Severity::Warning,
                    format!("who holds GPUs may be unknown: {error}"),
                ),
                None if self.failing.remove(source) => (
                    EventKind::ReaderRecovered,
                    Severity::Info,
                    format!("{name} tells again who holds GPUs"),
                ),
                _ => continue,
            };
            events.push(Event {
                at: turn.at,
                kind,
                severity,
                resource_kind: ResourceKind::Node,
                resource_id: turn.node.node.as_str().into(),
                message,
                attributes: BTreeMap::from([("reader".to_owned(), name.to_owned())]),
            });
        }
        events
    }

    /// The node with what it is, and how this goes.
    pub(super) fn node(
        &self,
        turn: &Turn,
        answers: &Answers,
        in_cloud: Option<&Facts>,
        sources: &[(Source, Standing)],
        found: &Found,
    ) -> ResourceSamples {
        let id = turn.node.node.as_str();
        let mut resource = turn
            .node
            .resource(ResourceKind::Node, id, Origin::Live, SOURCE);
        let of_cluster = answers.cluster.as_ref().map(|it| it.node.as_ref());
        let mut facts = self.said.clone();
        for (name, value) in of_cluster.into_iter().chain(in_cloud).flatten() {
            node::add(&mut facts, name, value);
        }
        resource.attributes.extend(facts);
        let sample = |metric: &Metric, part, value: f64| Sample {
            metric: metric.id,
            part,
            reading: Ok(value),
        };
        let mut samples = Vec::new();
        for (source, standing) in sources {
            let part = || Some(Part::new(PartKind::Reader, source.name()));
            let answers = f64::from(u8::from(standing.error().is_none()));
            samples.push(sample(&own::HOLDERS_ANSWER, part(), answers));
            let age = standing.age().map(|it| it.as_secs_f64());
            samples.extend(age.map(|age| sample(&own::HOLDERS_AGE, part(), age)));
        }
        for (reason, count) in &found.unknown {
            let part = Some(Part::new(PartKind::Reason, *reason));
            samples.push(sample(&own::HOLDERS_UNKNOWN, part, *count as f64));
        }
        let strangers = found.strangers.len() as f64;
        samples.push(sample(&own::HOLDERS_STRANGE_DEVICES, None, strangers));
        if let Some(cluster) = &answers.cluster {
            let left_out = cluster.pods.left_out() as f64;
            samples.push(sample(&own::HOLDERS_PODS_LEFT_OUT, None, left_out));
        }
        ResourceSamples {
            resource: Arc::new(resource),
            samples,
        }
    }
}
