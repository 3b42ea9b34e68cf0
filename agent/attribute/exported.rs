//! Which pod holds which GPU as exporters' labels say it, noted from their scrapes: who is asked where the kubelet may not
//! be, as on GKE Autopilot. They tell of GPUs that no driver lists, too.
//!
//! What a scrape said counts for [`PERIODS`] of its exporter, and for what the kubelet's word counts at least; then nobody
//! knows who holds the GPU. What does not count and is older than [`FORGET_AFTER`] is forgotten.
//!
//! Limits: those of a scrape, in `read::exporter`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_telemetry::identity::Resource;
use tokio::time::Instant;

use super::KEEP_FOR;
use super::kubelet::Held;
use super::users::Card;
use crate::read::exporter::holder::Said;
use crate::sample::collect::{FORGET_AFTER, key};

/// For so many periods of its exporter counts what a scrape said: one may fail, and the next.
const PERIODS: u32 = 3;

/// What exporters said last, by their readers' names.
#[derive(Debug, Default)]
pub struct Exported(Mutex<BTreeMap<String, Scrape>>);

#[derive(Debug)]
struct Scrape {
    at: Instant,
    counts_for: Duration,
    devices: Vec<Device>,
}

/// A GPU or share, and what its series say of its holder.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// What it is.
    pub resource: Arc<Resource>,
    /// What they say.
    pub said: Said,
}

/// What exporters say of the GPUs and shares of this node, by id.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told(BTreeMap<Arc<str>, Word>);

#[derive(Debug, PartialEq, Eq)]
struct Word {
    /// The pods that hold it, or which replica of it.
    claims: Vec<(Held, Option<u32>)>,
    /// Why it is not known whether one does.
    unsaid: Option<&'static str>,
}

impl Exported {
    /// Notes what a reader's scrape said, which it takes once in a period.
    pub fn note(&self, reader: &str, period: Duration, devices: Vec<Device>) {
        let scrape = Scrape {
            at: Instant::now(),
            counts_for: KEEP_FOR.max(period * PERIODS),
            devices,
        };
        self.lock().insert(reader.to_owned(), scrape);
    }

    /// Of how many GPUs and shares a reader's last scrape said whether a pod holds them, and how many it told of.
    pub(crate) fn count(&self, reader: &str) -> (usize, usize) {
        let scrapes = self.lock();
        let devices = scrapes
            .get(reader)
            .map_or(&[][..], |it| it.devices.as_slice());
        let says = |it: &&Device| matches!(it.said, Said::Nobody | Said::Pods(_));
        (devices.iter().filter(says).count(), devices.len())
    }

    /// What they say, each under the id by which the driver knows the device; those that it does not list are cards
    /// from now on.
    pub(super) fn lay(&self, cards: &mut Vec<Card>) -> Told {
        let known = cards.iter();
        let known = known.map(|it| (key(&it.resource), Arc::clone(&it.resource.id)));
        let mut ids: BTreeMap<_, _> = known.collect();
        // None of those whose every scrape is too old.
        let mut told: BTreeMap<Arc<str>, Option<Said>> = BTreeMap::new();
        let mut scrapes = self.lock();
        scrapes.retain(|_, it| it.at.elapsed() <= it.counts_for.max(FORGET_AFTER));
        for scrape in scrapes.values() {
            let counts = scrape.at.elapsed() <= scrape.counts_for;
            for Device { resource, said } in &scrape.devices {
                let id = ids.entry(key(resource)).or_insert_with(|| {
                    cards.push(Card {
                        resource: Arc::clone(resource),
                        processes: None,
                    });
                    Arc::clone(&resource.id)
                });
                let of = told.entry(Arc::clone(id)).or_default();
                if counts {
                    of.get_or_insert_default().join(said.clone());
                }
            }
        }
        let words = told.into_iter().map(|(id, said)| {
            let word = Word::new(&id, said);
            (id, word)
        });
        Told(words.collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Scrape>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Whether no exporter tells of any GPU.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a pod is named.
    pub(super) fn names_pods(&self) -> bool {
        self.claims().next().is_some()
    }

    /// The devices that pods hold, with the replica where it is not the whole.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&Arc<str>, &Held, Option<u32>)> {
        let words = self.0.iter();
        words.flat_map(|(id, word)| word.claims.iter().map(move |it| (id, &it.0, it.1)))
    }

    /// Why it is not known of a device whether a pod holds it; none where it is.
    pub(super) fn unsaid(&self, id: &str) -> Option<&'static str> {
        match self.0.get(id) {
            Some(word) => word.unsaid,
            None => Some("no exporter tells of it"),
        }
    }
}

impl Word {
    fn new(id: &str, said: Option<Said>) -> Self {
        let unsaid = match &said {
            None => Some("its exporter was not heard for too long"),
            Some(Said::Nothing) => Some("no series of its exporter says which pod holds it"),
            Some(Said::Unreadable) => Some("its exporter names what can be no pod"),
            Some(Said::Nobody | Said::Pods(_)) => None,
        };
        let pods = match said {
            Some(Said::Pods(pods)) => pods,
            _ => BTreeSet::new(),
        };
        let claims = pods.into_iter().map(|pod| {
            let held = Held {
                namespace: pod.namespace,
                pod: pod.name,
                container: pod.container,
                device: id.to_owned(),
                claim: None,
            };
            (held, pod.replica)
        });
        Self {
            claims: claims.collect(),
            unsaid,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::{ResourceKind, attribute};

    use super::*;
    use crate::read::exporter::holder::Pod;

    const PERIOD: Duration = Duration::from_secs(10);

    fn device(kind: ResourceKind, id: &str, place: Option<(&str, &str)>, said: Said) -> Device {
        let (parent, instance) = place.unwrap_or_default();
        let resource = Resource::new(kind, id)
            .with(attribute::PARENT, parent)
            .with(attribute::MIG_GPU_INSTANCE, instance);
        Device {
            resource: Arc::new(resource),
            said,
        }
    }

    fn pods(names: &[&str]) -> Said {
        let pod = |name: &&str| Pod {
            namespace: "a".to_owned(),
            name: (*name).to_owned(),
            container: "c".to_owned(),
            replica: None,
        };
        Said::Pods(names.iter().map(pod).collect())
    }

    /// The devices that pods hold, and the reasons why of others it is not known.
    fn lines(told: &Told) -> Vec<String> {
        let held = told.claims();
        let held = held.map(|(id, held, _)| format!("{id} {}/{}", held.namespace, held.pod));
        let unsaid = told.0.iter().filter_map(|(id, it)| Some((id, it.unsaid?)));
        let unsaid = unsaid.map(|(id, why)| format!("{id}: {why}"));
        held.chain(unsaid).collect()
    }

    #[test]
    fn an_exporter_s_gpus_are_the_driver_s_by_id_or_place_and_others_are_added() {
        let exported = Exported::default();
        let (gpu, share) = (ResourceKind::Gpu, ResourceKind::Share);
        let in_a = Some(("GPU-a", "7"));
        exported.note(
            "exporter:dcgm",
            PERIOD,
            vec![
                device(gpu, "GPU-a", None, Said::Nothing),
                device(share, "GPU-a/gi7", in_a, pods(&["p"])),
                device(gpu, "GPU-b", None, pods(&["q", "r"])),
                device(gpu, "GPU-c", None, Said::Nobody),
            ],
        );
        let card = |kind, id: &str, place| Card {
            resource: device(kind, id, place, Said::Nothing).resource,
            processes: Some(Vec::new()),
        };
        let mut cards = vec![card(gpu, "GPU-a", None), card(share, "MIG-x", in_a)];
        let told = exported.lay(&mut cards);
        let ids: Vec<&str> = cards.iter().map(|it| &*it.resource.id).collect();
        assert_eq!(ids, ["GPU-a", "MIG-x", "GPU-b", "GPU-c"]);
        let silent = "no series of its exporter says which pod holds it";
        let expected = [
            "GPU-b a/q".to_owned(),
            "GPU-b a/r".to_owned(),
            "MIG-x a/p".to_owned(),
            format!("GPU-a: {silent}"),
        ];
        assert_eq!(lines(&told), expected);
        assert_eq!(told.unsaid("GPU-c"), None);
        assert_eq!(told.unsaid("GPU-d"), Some("no exporter tells of it"));
        assert_eq!(exported.count("exporter:dcgm"), (3, 4));
        assert_eq!(exported.count("exporter:else"), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_counts_for_three_periods_and_two_exporters_are_laid_together() {
        let exported = Exported::default();
        let of = |said| vec![device(ResourceKind::Gpu, "GPU-a", None, said)];
        exported.note("one", PERIOD, of(pods(&["p"])));
        exported.note("two", PERIOD * 6, of(pods(&["q"])));
        let look = || lines(&exported.lay(&mut Vec::new()));
        assert_eq!(look(), ["GPU-a a/p", "GPU-a a/q"]);
        tokio::time::advance(PERIOD * 4).await;
        assert_eq!(look(), ["GPU-a a/q"], "the first is too old");
        tokio::time::advance(PERIOD * 15).await;
        assert_eq!(look(), ["GPU-a: its exporter was not heard for too long"]);
        exported.note("one", PERIOD, of(Said::Nobody));
        assert_eq!(look(), [""; 0]);
        exported.note("one", PERIOD, Vec::new());
        tokio::time::advance(FORGET_AFTER).await;
        assert!(exported.lay(&mut Vec::new()).is_empty());
    }
}
