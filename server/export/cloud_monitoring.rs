//! Google Cloud Monitoring: minutes of the record as time series of a project, through Google's own client.
//!
//! Its rules, and where they are kept: a series has one point a minute, written in the order of time, also when many
//! are due at least [`CloudMonitoring::LEAST_BETWEEN`] apart ([`super::push`]); the descriptor of a metric is made from
//! the catalog before the first point ([`descriptor`]); a counter keeps its start until it is reset ([`streams`]); which
//! resource a series is of ([`place`]), in a place that it knows ([`location`]). Of a request that is taken in part
//! what breaks a rule is counted by reason and dropped, and what failed for now is sent again, so often ([`again`]).
//! When no answer came the same points are sent again: it refuses those it has, so nothing counts twice.
//!
//! Limits: [`CloudMonitoring::MOST`] series a request, [`CloudMonitoring::AT_ONCE`] requests at once within
//! [`target::WITHIN`], [`again::MOST_TIMES`], [`MAX_AGE_HOURS`], [`streams::MAX_STREAMS`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpufleet_program::section;
use gpufleet_telemetry::catalog::{Kind, Metric, MetricId};
use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};
use gpufleet_telemetry::time::Timestamp;
use tokio_util::sync::CancellationToken;

use super::push::{self, Labelled, Piece, Plan, Sent, Way};
use super::samples::{LABEL_BYTES, Sample, Selection};
use crate::App;
use crate::fleet::Fleet;
use crate::store::model::{KnownResource, ResourceKey};

pub mod cost;

pub mod containers;

pub mod place;

pub mod location;

pub mod descriptor;

pub mod streams;

pub mod target;

pub mod again;

pub mod told;

use again::{Again, Over};
use containers::Containers;
use cost::Month;
use place::Monitored;
use streams::Streams;
use target::{Partly, Reason, Target, Verdict};
pub use told::Told;

/// Oldest minute that may be asked for. Cloud Monitoring takes points of the last 25 hours; the hour between
/// is for a minute that is under way.
const MAX_AGE_HOURS: u64 = 24;

section! {
    /// Minutes of the record, written to Google Cloud Monitoring; docs/cloud-monitoring.md has what it costs.
    pub struct CloudMonitoringConfig {
        /// The project that is written to; empty: none. It is billed for every point.
        pub project: String = String::new(),
        /// What stands before the metrics' names: custom.googleapis.com or workload.googleapis.com.
        pub prefix: String = "custom.googleapis.com".to_owned(),
        /// Which metrics: names, or beginnings of names followed by `*` (docs/metrics.md).
        pub metrics: Vec<String> = [
            "gpufleet_gpu_sm_active_ratio",
            "gpufleet_gpu_tensor_active_ratio",
            "gpufleet_gpu_memory_used_bytes",
            "gpufleet_gpu_power_watts",
            "gpufleet_gpu_temperature_celsius",
            "gpufleet_gpu_throttle_thermal_seconds_total",
            "gpufleet_gpu_ecc_uncorrected_volatile_total",
            "gpufleet_gpu_energy_joules_total",
        ].map(str::to_owned).to_vec(),
        /// A point each so many minutes, those of minutes that end at a multiple of it; 1 to 60.
        pub every_minutes: u64 = 1,
        /// What series are of: k8s_node, k8s_container (the pod that holds the GPU), gce_instance or generic. What
        /// is not known to be in such a place is generic.
        pub resource: Monitored = Monitored::K8sNode,
        /// The location of k8s_node, k8s_container and generic, that of a regional cluster is a region; empty: the
        /// node's zone, where it is one of Google's.
        pub location: String = String::new(),
        /// The label `writer` of every series, which no other writer to the project may have; empty: store.lease.
        pub writer: String = String::new(),
        /// A key file or another file with credentials (JSON); empty: Google's default chain, which finds the
        /// service account of the pod or the machine.
        pub credentials_file: PathBuf = PathBuf::new(),
        /// Write without credentials, for a proxy that adds them.
        pub anonymous: bool = false,
        /// Another address than Google's, `https://monitoring.example.com`; empty: Google's.
        pub endpoint: String = String::new(),
        /// What a MiB costs in dollars; 0: not known. Google's list price of metrics billed by bytes, for the first
        /// 100,000 MiB a month (cloud.google.com/stackdriver/pricing, as of 2025).
        pub price_usd_per_mib: f64 = 0.258,
        /// The same from 100,000 MiB of a month on; 0: as before.
        pub price_from_100000_mib_usd_per_mib: f64 = 0.151,
        /// The same from 250,000 MiB of a month on; 0: as before.
        pub price_from_250000_mib_usd_per_mib: f64 = 0.061,
        /// How long after its end a minute is written, seconds; data that comes later is not.
        pub delay_s: u64 = 60,
        /// Minutes older than this are skipped when Cloud Monitoring was away, hours; 1 to 24.
        pub max_age_h: u64 = 12,
    }
}

/// One point of one series.
#[derive(Debug, Clone)]
pub struct Point {
    /// The metric.
    pub metric: &'static Metric,
    /// The metric's labels.
    pub labels: Arc<HashMap<String, String>>,
    /// What the series is of.
    pub place: Arc<place::Place>,
    /// Of a counter: since when it counts.
    pub start: Option<Timestamp>,
    /// The end of its minute.
    pub end: Timestamp,
    /// Its value, in the metric's base unit.
    pub value: f64,
}

/// What is known of a piece that is not through.
#[derive(Debug, Default)]
pub struct Sending {
    again: Again,
    /// Points that left it because what their metric is was refused.
    unwanted: u64,
    /// Some of it may have been taken: a request had no answer.
    is_in_doubt: bool,
}

/// Cloud Monitoring as it is configured.
pub struct CloudMonitoring {
    plan: Plan,
    target: Target,
    prefix: String,
    resource: Monitored,
    location: String,
    writer: String,
    told: Arc<Told>,
    fleet: Option<Arc<Fleet>>,
    /// The nodes of this minute, by cluster and name.
    nodes: HashMap<(Arc<str>, String), Option<Arc<Resource>>>,
    streams: Streams,
    containers: Arc<Mutex<Containers>>,
    /// Metrics whose descriptors are still to be made.
    undescribed: Vec<&'static Metric>,
    /// Metrics that it does not take as they are.
    unwanted: HashSet<MetricId>,
    /// Points of the minute that is under way, by metric, and its end.
    series: BTreeMap<MetricId, u64>,
    series_of: Option<Timestamp>,
    /// The end of the newest minute that was written whole.
    whole: Option<Timestamp>,
    /// The last server may have died in the first minute that this one sends.
    is_first_minute: bool,
    month: Option<Month>,
    settings: CloudMonitoringConfig,
}

impl CloudMonitoring {
    /// Cloud Monitoring as it is configured; none where no project is.
    ///
    /// # Errors
    /// Names the key and what is wrong with it.
    pub fn new(config: &CloudMonitoringConfig, lease: &str) -> Result<Option<Self>, String> {
        if config.project.is_empty() {
            return Ok(None);
        }
        let of = |key: &'static str| move |why: String| format!("cloud_monitoring.{key}{why}");
        descriptor::check_prefix(&config.prefix).map_err(of("prefix"))?;
        if !(1..=60).contains(&config.every_minutes) {
            let why = format!(" = {}: 1 to 60", config.every_minutes);
            return Err(of("every_minutes")(why));
        }
        if !(1..=MAX_AGE_HOURS).contains(&config.max_age_h) {
            let why = format!(
                " = {}: 1 to {MAX_AGE_HOURS}, because it takes nothing older than 25 hours",
                config.max_age_h
            );
            return Err(of("max_age_h")(why));
        }
        for (key, price) in cost::prices(config) {
            if !(price.is_finite() && price >= 0.0) {
                return Err(of(key)(": a price, or 0 where it is not known".to_owned()));
            }
        }
        let writer = match config.writer.is_empty() {
            true => lease,
            false => &config.writer,
        };
        if writer.len() > LABEL_BYTES || writer.chars().any(char::is_control) {
            let why = format!(": at most {LABEL_BYTES} bytes and no control characters");
            return Err(of("writer")(why));
        }
        if !config.location.is_empty() && !location::is_known(&config.location) {
            let why = format!(
                " = {:?}: a region or zone of Google (us-central1), one of AWS (aws:us-east-1) or global; points of others are discarded",
                config.location
            );
            return Err(of("location")(why));
        }
        let selection = Selection::read(&config.metrics);
        let selection = selection.map_err(|why| of("metrics")(format!(": {why}")))?;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX / 1_000);
        Ok(Some(Self {
            undescribed: selection.metrics().collect(),
            plan: Plan {
                selection,
                delay_s: number(config.delay_s),
                max_age_minutes: number(config.max_age_h.saturating_mul(60)),
                every_minutes: number(config.every_minutes),
            },
            target: Target::new(config)?,
            prefix: config.prefix.clone(),
            resource: config.resource,
            location: config.location.clone(),
            writer: writer.to_owned(),
            told: Arc::default(),
            fleet: None,
            nodes: HashMap::new(),
            streams: Streams::default(),
            containers: Arc::default(),
            unwanted: HashSet::new(),
            series: BTreeMap::new(),
            series_of: None,
            whole: None,
            is_first_minute: true,
            month: None,
            settings: config.clone(),
        }))
    }

    /// The same, which tells how it goes and looks up nodes.
    #[must_use]
    pub fn of(mut self, app: &App) -> Self {
        self.told = Arc::clone(&app.cloud_monitoring);
        self.fleet = Some(Arc::clone(&app.fleet));
        self
    }

    /// What is chosen and what it costs, for the log.
    pub fn selection(&self) -> String {
        let metrics = || self.plan.selection.metrics();
        let of_gpu = metrics().filter(|it| it.resource == ResourceKind::Gpu);
        let month = Month::of(of_gpu.count() as u64, &self.settings);
        format!(
            "{} metrics are written to Cloud Monitoring; of one GPU that is {month}",
            metrics().count()
        )
    }

    /// Counts the points of the minute that ends then: those of one that was given up, because it became too old, are of
    /// none that was written.
    fn counts(&mut self, end: Timestamp) {
        if self.series_of.replace(end) != Some(end) {
            self.series.clear();
        }
    }

    /// The node that a resource is on, as far as it is known.
    fn node(&mut self, known: &KnownResource) -> Option<Arc<Resource>> {
        let name = known.resource.attribute(attribute::NODE)?;
        let at = (Arc::clone(&known.key.cluster), name.to_owned());
        let fleet = self.fleet.as_ref();
        let look = || {
            let key = ResourceKey {
                cluster: Arc::clone(&known.key.cluster),
                kind: ResourceKind::Node,
                id: name.into(),
            };
            Some(fleet?.get(&key)?.resource)
        };
        self.nodes.entry(at).or_insert_with(look).clone()
    }

    /// Makes the descriptors that are not made yet. Later when it did not get through.
    async fn describe(&mut self) -> Result<(), Sent> {
        while let Some(metric) = self.undescribed.last() {
            let made = descriptor::descriptor(metric, &self.prefix);
            match self.target.describe(made).await {
                Verdict::Taken => {}
                Verdict::Refused { why, .. } => {
                    let name = metric.name;
                    tracing::error!(
                        name,
                        why,
                        "Cloud Monitoring does not take what the metric is: it is not written until the server is started anew"
                    );
                    self.unwanted.insert(metric.id);
                }
                Verdict::Later { why, after, .. } | Verdict::Partly(Partly { why, after, .. }) => {
                    return Err(Sent::Later { why, after });
                }
            }
            self.undescribed.pop();
        }
        Ok(())
    }

    /// Takes points out of a piece whose metrics are not taken as they are, and counts them.
    fn leave_out_unwanted(&self, piece: &mut Piece<Self>) {
        let before = piece.points.len();
        let unwanted = &self.unwanted;
        piece.points.retain(|it| !unwanted.contains(&it.metric.id));
        let left = (before - piece.points.len()) as u64;
        piece.state.unwanted += left;
        self.told.count(Reason::Descriptor, left);
    }

    /// What a verdict makes of a piece, some of which may be there already where that is in doubt; counts what is left out.
    fn judged(&self, piece: &mut Piece<Self>, verdict: &Verdict, is_in_doubt: bool) -> Sent {
        let Piece { points, state } = piece;
        state.is_in_doubt = is_in_doubt;
        let (why, after) = match verdict {
            Verdict::Later { why, after, .. } => (why.clone(), *after),
            Verdict::Partly(it) => (it.why.clone(), it.after),
            Verdict::Refused { why, .. } => (why.clone(), None),
            Verdict::Taken => (String::new(), None),
        };
        let Some(Over { taken, lost }) = state.again.hear(points, verdict) else {
            return Sent::Later { why, after };
        };
        let mut refused = state.unwanted;
        for (reason, count) in lost {
            let reason = match reason {
                Reason::Refused if is_in_doubt || self.is_first_minute => Reason::SentAgain,
                other => other,
            };
            self.told.count(reason, count);
            refused += count;
        }
        Sent::Done {
            taken,
            refused,
            why,
        }
    }
}

impl Way for CloudMonitoring {
    const NAME: &'static str = "cloud_monitoring";
    /// What one request may have.
    const MOST: usize = 200;
    /// At 100 ms for a request that is 440,000 series a minute; its quota of requests is far above.
    const AT_ONCE: usize = 4;
    /// A point of a series each five seconds is what it takes (cloud.google.com/monitoring/quotas).
    const LEAST_BETWEEN: Duration = Duration::from_secs(5);
    type Point = Point;
    type State = Sending;

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn points(&mut self, of: &Labelled<'_>, samples: &[Sample], end: Timestamp) -> Vec<Point> {
        self.counts(end);
        let node = self.node(of.known);
        let container = match self.resource {
            Monitored::K8sContainer => {
                containers::lock(&self.containers).held(of.known, of.holder, end)
            }
            _ => None,
        };
        let place = place::place(
            self.resource,
            &self.location,
            of.known,
            node.as_deref(),
            container.as_ref(),
        );
        let place = Arc::new(place);
        let labels = of.labels.iter();
        let labels: HashMap<String, String> = labels
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .chain([(descriptor::WRITER.to_owned(), self.writer.clone())])
            .collect();
        let labels = Arc::new(labels);
        let mut points = Vec::with_capacity(samples.len());
        for sample in samples {
            let metric = sample.metric;
            if !descriptor::fits(metric, of.known.key.kind) {
                self.told.count(Reason::Kind, 1);
                continue;
            }
            let (start, value) = match metric.kind {
                Kind::Counter => {
                    let series = (&of.known.key, metric.id, &*place);
                    match self.streams.next(series, sample.value, end) {
                        Ok(Some((start, value))) => (Some(start), value),
                        Ok(None) => continue,
                        Err(streams::Full) => {
                            self.told.count(Reason::TooMany, 1);
                            continue;
                        }
                    }
                }
                Kind::Gauge | Kind::Last | Kind::SecondBits => (None, sample.value),
            };
            points.push(Point {
                metric,
                labels: Arc::clone(&labels),
                place: Arc::clone(&place),
                start,
                end,
                value,
            });
        }
        for point in &points {
            *self.series.entry(point.metric.id).or_default() += 1;
        }
        points
    }

    async fn send(&mut self, pieces: &mut [Piece<Self>]) -> Vec<Sent> {
        if let Err(later) = self.describe().await {
            return vec![later];
        }
        let mut requests = Vec::with_capacity(pieces.len());
        let mut doubts = Vec::with_capacity(pieces.len());
        for piece in pieces.iter_mut() {
            self.leave_out_unwanted(piece);
            if !piece.points.is_empty() {
                let series = |it| descriptor::series(it, &self.prefix);
                requests.push(piece.points.iter().map(series).collect());
            }
            // A round that takes too long is given up in the middle of its requests.
            doubts.push(std::mem::replace(&mut piece.state.is_in_doubt, true));
        }
        let mut written = self.target.write(requests).await.into_iter();
        let mut sent = Vec::with_capacity(pieces.len());
        for (piece, was_in_doubt) in pieces.iter_mut().zip(doubts) {
            let verdict = match piece.points.is_empty() {
                true => Verdict::Taken,
                false => written.next().expect("each request has a verdict"),
            };
            let is_unanswered = matches!(
                verdict,
                Verdict::Later {
                    is_in_doubt: true,
                    ..
                }
            );
            sent.push(self.judged(piece, &verdict, was_in_doubt || is_unanswered));
        }
        sent
    }

    fn went_whole(&mut self, end: Timestamp) {
        // Its cursor could not be kept: the same minute again, of which all was sent.
        if self.whole == Some(end) {
            return;
        }
        self.whole = Some(end);
        self.is_first_minute = false;
        self.nodes.clear();
        self.streams.forget_before(end);
        containers::lock(&self.containers).forget_before(end);
        self.counts(end);
        let of_metrics = std::mem::take(&mut self.series);
        let series = of_metrics.values().sum();
        self.told.wrote(of_metrics);
        let month = Month::of(series, &self.settings);
        if series > 0 && self.month.is_none_or(|it| it.is_other_than(&month)) {
            tracing::info!(series, "written to Cloud Monitoring: {month}");
            self.month = Some(month);
        }
    }
}

/// Writes until it is told to stop; waits for that where no project is configured.
pub async fn run(app: App, target: Option<CloudMonitoring>, stop: CancellationToken) {
    match target {
        None => stop.cancelled().await,
        Some(target) => {
            tracing::info!("{}", target.selection());
            let target = target.of(&app);
            let told = Arc::clone(&app.cloud_monitoring);
            let fleet = Arc::clone(&app.fleet);
            let containers = (target.resource == Monitored::K8sContainer)
                .then(|| Arc::clone(&target.containers));
            let watching = async {
                if let Some(containers) = &containers {
                    containers::watch(&fleet, containers, &stop).await;
                }
            };
            let pushing = push::run(app, &told.pushed, target, stop.clone());
            tokio::join!(pushing, watching);
        }
    }
}

#[cfg(test)]
mod tests;
