//! Series of containers: each minute is of the one that held its GPU then.

use gpufleet_analysis::owner::Holder;

use super::*;

/// Every second of a minute.
const WHOLE: u64 = (1 << 60) - 1;

/// A GPU of [`Bench::filled`], held by a pod of this job.
fn held_by(id: &str, job: &str) -> KnownResource {
    let pod = format!("{job}-0");
    let resource = Resource::new(ResourceKind::Gpu, id)
        .with(attribute::NODE, "node-1")
        .with(attribute::HOLDER, format!("pod:ml/{pod}"))
        .with(attribute::WORKLOAD, job)
        .with(attribute::NAMESPACE, "ml")
        .with(attribute::POD, pod)
        .with(attribute::CONTAINER, "main");
    KnownResource {
        key: ResourceKey {
            cluster: "prod".into(),
            kind: ResourceKind::Gpu,
            id: id.into(),
        },
        resource: Arc::new(resource),
        agent: None,
        first_seen: FIRST.start(),
        last_seen: Minute(FIRST.0 + MINUTES).start(),
    }
}

#[tokio::test]
async fn a_minute_is_of_the_container_that_held_it_and_of_the_node_where_that_is_not_known() {
    let mut bench = bench().await.filled().await;
    bench.target.resource = Monitored::K8sContainer;
    bench.target.location = "us-central1".to_owned();
    let (held, given_on) = (held_by("GPU-0001", "a"), held_by("GPU-0002", "b"));
    let job = Holder::told_by(&held.resource).expect("a pod").number();
    let minutes = (0..MINUTES).flat_map(|minute| {
        [&held, &given_on].map(|known| {
            let mut row = MinuteRow::default();
            // Both were held by the first job; one of them has another holder by now.
            row.hold(job, WHOLE);
            MinuteDelta {
                key: known.key.clone(),
                minute: Minute(FIRST.0 + minute),
                row,
            }
        })
    });
    let commit = Commit {
        number: 2,
        minutes: minutes.collect(),
        resources: vec![held.clone(), given_on.clone()],
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
    // The first of the three minutes is written late, when nothing is remembered.
    let (node, container) = ("k8s_node ", "k8s_container a-0");
    assert_eq!(of("GPU-0001"), [node, container, container]);
    assert_eq!(of("GPU-0002"), [node; 3]);
    assert_eq!(of("GPU-0003"), [node; 3]);
}
