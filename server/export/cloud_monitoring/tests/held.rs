//! Series of containers: each minute is of the one that held its GPU then.

use gpufleet_analysis::owner::Holder;

use super::*;
use crate::fleet::Restored;

/// Every second of a minute.
const WHOLE: u64 = (1 << 60) - 1;

/// A GPU of [`Bench::filled`] that was last seen so many seconds after the first minute began, held by a pod of this
/// job; by nobody where there is none.
fn seen(id: &str, job: Option<&str>, seconds: i64) -> KnownResource {
    let mut resource = Resource::new(ResourceKind::Gpu, id).with(attribute::NODE, "node-1");
    if let Some(job) = job {
        let pod = format!("{job}-0");
        resource = resource
            .with(attribute::HOLDER, format!("pod:ml/{pod}"))
            .with(attribute::WORKLOAD, job)
            .with(attribute::NAMESPACE, "ml")
            .with(attribute::POD, pod)
            .with(attribute::CONTAINER, "main");
    }
    KnownResource {
        key: ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Gpu,
            id: id.into(),
        },
        resource: Arc::new(resource),
        agent: None,
        first_seen: FIRST.start(),
        last_seen: Timestamp::from_seconds(FIRST.start().seconds() + seconds),
    }
}

impl Bench {
    /// What is told of GPUs now, and looked at.
    fn tells(&self, gpus: &[KnownResource]) {
        let told = Restored {
            resources: gpus.to_vec(),
            ..Restored::default()
        };
        self.app.fleet.restore(told, self.app.clock.now());
        containers::look(&self.app.fleet, &self.target.containers);
    }
}

#[tokio::test]
async fn a_minute_is_of_the_container_that_held_it_and_is_gone_when_it_is_written() {
    let mut bench = bench().await.filled().await;
    bench.target.resource = Monitored::K8sContainer;
    bench.target.location = "us-central1".to_owned();
    let (gone, other) = ("GPU-0001", "GPU-0002");
    // Ten seconds before the second minute ends nobody holds the first any more.
    for seconds in (0..110).step_by(10) {
        bench.tells(&[
            seen(gone, Some("a"), seconds),
            seen(other, Some("b"), seconds),
        ]);
    }
    let now = [seen(gone, None, 110), seen(other, Some("b"), 110)];
    bench.tells(&now);
    let job = seen(gone, Some("a"), 0).resource;
    let job = Holder::told_by(&job).expect("a pod").number();
    // The record has that the first job held both, the first GPU for two minutes.
    let minutes = [(gone, 0), (gone, 1), (other, 0), (other, 1), (other, 2)];
    let minutes = minutes.map(|(id, minute)| {
        let mut row = MinuteRow::default();
        row.hold(job, WHOLE);
        MinuteDelta {
            key: seen(id, None, 0).key,
            minute: Minute(FIRST.0 + minute),
            row,
        }
    });
    let commit = Commit {
        number: 2,
        minutes: minutes.into(),
        resources: now.into(),
        ..Commit::default()
    };
    let length = Duration::from_secs(15);
    let now = bench.app.clock.now();
    let lease = bench.app.store.acquire_lease("test", now, length);
    let token = lease.await.unwrap().token;
    bench.app.store.commit(&commit, token).await.unwrap();
    bench.round(&mut None).await.unwrap();
    let of = |id: &str| -> Vec<String> {
        let all = bench.series().into_iter().filter(|it| {
            it["metric"]["type"] == type_of(&gpu::POWER) && it["metric"]["labels"]["gpu"] == id
        });
        let mut all: Vec<_> = all
            .map(|it| {
                let end = it["points"][0]["interval"]["endTime"].to_string();
                let place = &it["resource"];
                let pod = place["labels"]["pod_name"].as_str().unwrap_or_default();
                (
                    end,
                    format!("{} {pod}", place["type"].as_str().unwrap_or_default()),
                )
            })
            .collect();
        all.sort();
        all.into_iter().map(|it| it.1).collect()
    };
    let (node, container) = ("k8s_node ", "k8s_container a-0");
    assert_eq!(of(gone), [container, container, node]);
    assert_eq!(of(other), [node; 3], "of another job's container it is not");
    assert_eq!(of("GPU-0003"), [node; 3], "of nobody");
}
