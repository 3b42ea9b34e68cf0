//! Where the page of a thing is, without the server's own address in front.

use gpufleet_analysis::incident::Place;
use gpufleet_telemetry::identity::Origin;

use super::incident::run_of;
use super::text::segment;
use crate::money::budgets;
use crate::runs::RunKey;

/// The page of a cluster.
pub fn cluster(cluster: &str) -> String {
    format!("/clusters/{}", segment(cluster))
}

/// What could be saved in the clusters of an origin.
pub fn saved(origin: Origin) -> String {
    format!("/cost#saved-{}", origin.name())
}

/// The page of a node.
pub fn node(of: &str, node: &str) -> String {
    format!("{}/nodes/{}", cluster(of), segment(node))
}

/// The page of a GPU or a share of one.
pub fn gpu(of: &str, id: &str) -> String {
    format!("{}/gpus/{}", cluster(of), segment(id))
}

/// The page of a training run.
pub fn run(key: &RunKey) -> String {
    let (cluster, job) = (cluster(&key.cluster), key.run.job.to_string());
    format!("{cluster}/jobs/{}/{}", segment(&job), key.run.attempt)
}

/// The address of the page of a place: of a run of which no node is suspected its own, of a team and its budget that
/// of money.
pub(crate) fn place(place: &Place) -> String {
    match (&place.node, &place.gpu, run_of(place)) {
        (Some(_), Some(id), _) => gpu(&place.cluster, id),
        (Some(_), None, _) if budgets::is_one(place) => "/cost".to_owned(),
        (Some(name), None, _) => node(&place.cluster, name),
        (None, _, Some(key)) => run(&key),
        (None, _, None) => cluster(&place.cluster),
    }
}

/// A page with what is asked of it; what is none is not asked for.
pub(crate) fn with_query<'a>(
    page: &str,
    asked: impl IntoIterator<Item = (&'static str, Option<&'a str>)>,
) -> String {
    let given = asked.into_iter();
    let given = given.filter_map(|(name, value)| Some(format!("{name}={}", segment(value?))));
    let query = given.collect::<Vec<_>>().join("&");
    match query.is_empty() {
        true => page.to_owned(),
        false => format!("{page}?{query}"),
    }
}

/// The list of the incidents at a place, those that are over too: of a GPU, of a node or, of a run, of its job.
pub(crate) fn incidents(place: &Place) -> String {
    let job = run_of(place).map(|it| it.run.job.to_string());
    // A GPU has a name of its own.
    let node = place.node.as_deref().filter(|_| place.gpu.is_none());
    let asked = [
        ("cluster", Some(place.cluster.as_str())),
        ("node", node),
        ("gpu", place.gpu.as_deref()),
        ("run", job.as_deref()),
    ];
    with_query("/incidents", asked)
}

/// The page of a runbook.
pub fn runbook(name: &str) -> String {
    format!("/runbooks/{name}")
}

/// Where a ladder's page is.
pub fn ladder(cluster: &str, name: &str) -> String {
    format!("{}/ladders/{}", self::cluster(cluster), segment(name))
}
