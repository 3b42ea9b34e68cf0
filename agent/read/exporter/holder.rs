//! Which pod holds a GPU, as the labels of an exporter's series say it: which labels these are, and what one series says.
//!
//! What stands in a label is text of others: only what Kubernetes lets a pod be called is one. A label that is there and
//! empty says that no pod holds the GPU; a series without it says nothing, because exporters leave it out now and then.
//!
//! Limits: [`MAX_PLACES`], [`MAX_PODS`].

use std::collections::BTreeSet;

use gpufleet_telemetry::identity::ResourceKind;
use serde::Deserialize;

use super::text::Series;

/// Most labels that one thing may stand in: what dcgm-exporter calls it, called it before, and both renamed, twice.
pub const MAX_PLACES: usize = 8;

/// Most pods that are kept of one GPU: GKE lets 48 share one. None of two has it, so the rest changes nothing.
pub const MAX_PODS: usize = 48;

/// What a Prometheus puts in front of an exporter's label where it has one of that name itself.
const RENAMED: &str = "exported_";

/// The label that a Prometheus puts beside those of everything it scrapes.
const SCRAPED: &str = "instance";

/// Longest name of a namespace or container, and of a pod, in Kubernetes.
const MAX_LABEL_BYTES: usize = 63;
const MAX_SUBDOMAIN_BYTES: usize = 253;

/// Which labels name the pod that holds a GPU. The first of `pod` that a series has counts, with those of the same place
/// in the other lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HolderLabels {
    /// Labels with the pod's name, 1 to 8.
    pub pod: Vec<String>,
    /// Labels with its namespace, as many as of `pod`.
    pub namespace: Vec<String>,
    /// Labels with the container that the GPU was given to, as many; none where the exporter names no container.
    pub container: Vec<String>,
    /// Labels with the number of the replica, of GPUs that are held by turns; the first that is there counts.
    pub replica: Vec<String>,
}

/// What the series of a GPU or share say of its holder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Said {
    /// None of them has the label.
    #[default]
    Nothing,
    /// No pod holds it: the label is there and empty.
    Nobody,
    /// These pods hold it, one at least.
    Pods(BTreeSet<Pod>),
    /// What stands there can be no pod's.
    Unreadable,
}

/// A pod that a series names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The container that the GPU was given to; empty where none is named.
    pub container: String,
    /// Which replica of the GPU it has, where it has not the whole.
    pub replica: Option<u32>,
}

impl HolderLabels {
    /// The same, if a table about these resources can have it; what is wrong with it otherwise.
    pub(super) fn checked(self, resource: ResourceKind) -> Result<Self, String> {
        if resource != ResourceKind::Gpu {
            return Err("holder: only a table about a gpu has one".to_owned());
        }
        let places = self.pod.len();
        if !(1..=MAX_PLACES).contains(&places) {
            let why = format!("holder.pod: {places} labels, it must be 1 to {MAX_PLACES}");
            return Err(why);
        }
        let are_beside = |it: &[String]| it.len() == places;
        if !are_beside(&self.namespace) {
            let why =
                format!("holder.namespace: it must have one label for each of the {places} of pod");
            return Err(why);
        }
        if !self.container.is_empty() && !are_beside(&self.container) {
            let why = format!(
                "holder.container: it must have none, or one for each of the {places} of pod"
            );
            return Err(why);
        }
        if self.replica.len() > MAX_PLACES {
            return Err(format!("holder.replica: at most {MAX_PLACES} labels"));
        }
        let all = [&self.pod, &self.namespace, &self.container, &self.replica];
        if all.into_iter().flatten().any(String::is_empty) {
            return Err("holder: a label without a name".to_owned());
        }
        Ok(self)
    }

    /// What a series says.
    pub(super) fn said(&self, series: &Series<'_>) -> Said {
        // Unlike Prometheus it tells an empty label from an absent one.
        let label = |name: &String| {
            let mut labels = series.labels.iter();
            labels.find(|it| it.0 == name).map(|it| &*it.1)
        };
        // What came through a Prometheus has the exporter's own pod in `pod`.
        let is_scraped = series.label(SCRAPED).is_some();
        let places = self.pod.iter().enumerate();
        let mut places = places.filter(|(_, name)| !is_scraped || name.starts_with(RENAMED));
        let Some((place, pod)) = places.find_map(|(place, name)| Some((place, label(name)?)))
        else {
            return Said::Nothing;
        };
        if pod.is_empty() {
            return Said::Nobody;
        }
        let namespace = self.namespace.get(place).and_then(label);
        let namespace = namespace.filter(|it| is_label(it));
        let container = self.container.get(place).and_then(label);
        let replica = self.replica.iter().find_map(label);
        let replica = replica.filter(|it| !it.is_empty()).map(str::parse::<u32>);
        match (namespace, replica.transpose()) {
            (Some(namespace), Ok(replica)) if is_subdomain(pod) => {
                Said::Pods(BTreeSet::from([Pod {
                    namespace: namespace.to_owned(),
                    name: pod.to_owned(),
                    container: container
                        .filter(|it| is_label(it))
                        .unwrap_or_default()
                        .to_owned(),
                    replica,
                }]))
            }
            _ => Said::Unreadable,
        }
    }
}

impl Said {
    /// Takes in what another series, or another exporter, says of the same GPU. Who names a pod is believed before who
    /// says that there is none, and what cannot be read leaves all of it unknown.
    pub fn join(&mut self, other: Self) {
        match other {
            Self::Nobody if *self == Self::Nothing => *self = Self::Nobody,
            Self::Nothing | Self::Nobody => {}
            Self::Pods(pods) => match self {
                Self::Unreadable => {}
                Self::Nothing | Self::Nobody => *self = Self::Pods(pods),
                Self::Pods(all) => {
                    for pod in pods {
                        if all.len() < MAX_PODS {
                            all.insert(pod);
                        }
                    }
                }
            },
            Self::Unreadable => *self = Self::Unreadable,
        }
    }
}

/// Whether a namespace or container may be called so.
fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES && is_word(text)
}

/// Whether a pod may be called so.
fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_BYTES && text.split('.').all(is_word)
}

/// Lower-case letters, digits and, between them, hyphens.
fn is_word(text: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    ends.is_some_and(|(first, last)| is_plain(*first) && is_plain(*last))
        && bytes.iter().all(|it| is_plain(*it) || *it == b'-')
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::super::text::parse;
    use super::*;

    fn labels(all: &[&str]) -> Vec<String> {
        all.iter().map(|it| (*it).to_owned()).collect()
    }

    fn dcgm() -> HolderLabels {
        HolderLabels {
            pod: labels(&["exported_pod", "pod", "pod_name"]),
            namespace: labels(&["exported_namespace", "namespace", "pod_namespace"]),
            container: labels(&["exported_container", "container", "container_name"]),
            replica: labels(&["vgpu"]),
        }
    }

    /// What a series with these labels says.
    fn said(labels: &str) -> Said {
        let text = format!("m{{{labels}}} 1");
        let body = parse(&text);
        assert_eq!(body.refused, 0, "{labels}");
        dcgm().said(&body.series[0])
    }

    fn pod(namespace: &str, name: &str, container: &str, replica: Option<u32>) -> Said {
        Said::Pods(BTreeSet::from([Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            container: container.to_owned(),
            replica,
        }]))
    }

    #[test]
    fn a_label_names_a_pod_or_says_that_there_is_none_and_its_absence_says_nothing() {
        let check = |labels: &str, expected: Said| assert_eq!(said(labels), expected, "{labels}");
        let held = pod("ml", "train-0", "main", None);
        check(
            r#"pod="train-0",namespace="ml",container="main""#,
            held.clone(),
        );
        check(
            r#"pod_name="train-0",pod_namespace="ml",container_name="main""#,
            held.clone(),
        );
        check(
            r#"pod="a.b-0",namespace="ml""#,
            pod("ml", "a.b-0", "", None),
        );
        check(r#"pod="",namespace="",container="""#, Said::Nobody);
        check(r#"gpu="0",namespace="ml""#, Said::Nothing);
        check("", Said::Nothing);
        let shared = r#"pod="train-0",namespace="ml",container="main",vgpu="3""#;
        check(shared, pod("ml", "train-0", "main", Some(3)));
        // Behind a Prometheus `pod` is the exporter's own.
        let scraped = r#"instance="n:9400",pod="dcgm-exporter-x",namespace="gpu-operator""#;
        check(scraped, Said::Nothing);
        let renamed = r#"exported_pod="train-0",exported_namespace="ml",exported_container="main""#;
        check(&format!("{scraped},{renamed}"), held);
    }

    #[test]
    fn what_kubernetes_lets_no_pod_be_called_is_no_pod_and_not_nobody() {
        let long = "a".repeat(254);
        for name in [
            "Train-0", "-train", "train-", "a..b", "a b", "a/b", "tr\\\"in", "<b>", "träin", ".",
            &long,
        ] {
            let labels = format!(r#"pod="{name}",namespace="ml""#);
            assert_eq!(said(&labels), Said::Unreadable, "{name}");
        }
        let long = "a".repeat(64);
        for namespace in ["", "a.b", "M", &long] {
            let labels = format!(r#"pod="p",namespace="{namespace}""#);
            assert_eq!(said(&labels), Said::Unreadable, "{namespace}");
        }
        assert_eq!(
            said(r#"pod="p""#),
            Said::Unreadable,
            "a namespace is missing"
        );
        let replica = r#"pod="p",namespace="n",vgpu="x""#;
        assert_eq!(said(replica), Said::Unreadable);
        // A container is an addition, and is left out.
        let container = r#"pod="p",namespace="n",container="a b""#;
        assert_eq!(said(container), pod("n", "p", "", None));
        let longest = ["a".repeat(253), "a".repeat(63)];
        let [name, namespace] = &longest;
        let labels = format!(r#"pod="{name}",namespace="{namespace}""#);
        assert_eq!(said(&labels), pod(namespace, name, "", None));
    }

    #[test]
    fn series_of_one_gpu_are_laid_together_and_pods_of_it_are_bounded() {
        let joined = |all: &[Said]| {
            let mut joined = Said::default();
            all.iter().for_each(|it| joined.join(it.clone()));
            joined
        };
        let (a, b) = (pod("n", "a", "", None), pod("n", "b", "", None));
        assert_eq!(joined(&[Said::Nothing, a.clone(), Said::Nothing]), a);
        assert_eq!(joined(&[Said::Nobody, a.clone(), Said::Nobody]), a);
        assert_eq!(joined(&[Said::Nothing, Said::Nobody]), Said::Nobody);
        assert_eq!(
            joined(&[a.clone(), Said::Unreadable, b.clone()]),
            Said::Unreadable
        );
        let Said::Pods(both) = joined(&[a.clone(), b, a]) else {
            panic!("two pods")
        };
        assert_eq!(both.len(), 2);
        let many: Vec<Said> = (0..MAX_PODS + 9)
            .map(|it| pod("n", &format!("p{it}"), "", None))
            .collect();
        let Said::Pods(many) = joined(&many) else {
            panic!("many pods")
        };
        assert_eq!(many.len(), MAX_PODS);
    }

    #[test]
    fn a_table_whose_holder_cannot_be_used_is_refused_with_line_and_key() {
        let check = |resource: &str, holder: &str, why: &str| {
            let text = format!("name = \"x\"\nresource = \"{resource}\"\n[holder]\n{holder}\n");
            let error = Table::parse("mine.toml", &text).expect_err(&text);
            assert!(error.why.contains(why), "{error} for {why}");
            error.line
        };
        let right = "pod = [\"pod\"]\nnamespace = [\"namespace\"]";
        let text = format!("name = \"x\"\nresource = \"gpu\"\n[holder]\n{right}\n");
        let table = Table::parse("mine.toml", &text).expect("it is right");
        assert_eq!(table.holder.expect("it has one").pod, ["pod"]);
        for (holder, why) in [
            ("", "holder.pod: 0 labels"),
            ("namespace = [\"n\"]", "holder.pod: 0 labels"),
            (
                "pod = [\"p\"]",
                "holder.namespace: it must have one label for each",
            ),
            (
                "pod = [\"p\", \"q\"]\nnamespace = [\"n\"]",
                "holder.namespace: it must have one label for each of the 2",
            ),
            (
                "pod = [\"p\"]\nnamespace = [\"n\"]\ncontainer = [\"c\", \"d\"]",
                "holder.container",
            ),
            (
                "pod = [\"\"]\nnamespace = [\"n\"]",
                "a label without a name",
            ),
        ] {
            assert_eq!(check("gpu", holder, why), 3, "{holder}");
        }
        let nine = format!("{:?}", ["l"; MAX_PLACES + 1]);
        check("gpu", &format!("pod = {nine}"), "holder.pod: 9 labels");
        check(
            "gpu",
            &format!("{right}\nreplica = {nine}"),
            "holder.replica",
        );
        check("gpu", "pods = [\"p\"]", "unknown field `pods`");
        check("gpu", "pod = \"p\"", "");
        check("endpoint", right, "only a table about a gpu");
    }
}
