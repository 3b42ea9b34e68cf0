#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used)]
mod fixture {
    include!("fixture.inc");
}
use gpufleet_analysis::ledger::*;
use gpufleet_server::store::model::*;
use gpufleet_server::*;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::event::*;
use gpufleet_telemetry::identity::*;
use gpufleet_telemetry::minute::*;
use gpufleet_telemetry::time::*;
use std::sync::Arc;
struct Fixed;
impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        fixture::NOW
    }
    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}
#[tokio::main]
async fn main() {
    let many: usize = std::env::args()
        .nth(1)
        .and_then(|it| it.parse().ok())
        .unwrap_or(0);
    let _ = std::fs::remove_dir_all("/tmp/look");
    std::fs::create_dir_all("/tmp/look").unwrap();
    let store = store::Store::open(&store::StoreConfig::for_tests(std::path::Path::new(
        "/tmp/look",
    )))
    .await
    .unwrap();
    let fleet = Arc::new(fleet::Fleet::new(Default::default()));
    let lives = if many > 0 {
        (0..many / 8)
            .flat_map(|n| {
                (0..8).map(move |i| {
                    let d = match (n * 7 + i) % 23 {
                        0 => fixture::Does::Pause,
                        1..4 => fixture::Does::Nothing,
                        5 => fixture::Does::Unknown,
                        _ => fixture::Does::Work,
                    };
                    let d = if n % 97 == 13 {
                        fixture::Does::Silent
                    } else if n * 8 + i == 777 {
                        fixture::Does::Lost
                    } else {
                        d
                    };
                    let mut l = fixture::gpu(
                        "prod",
                        &format!("gke-prod-a3-mega-pool-7f3d{:04x}-x{n:04}", n * 7919 % 65536),
                        i as u32,
                        d,
                        Origin::Live,
                    );
                    let id: Arc<str> = format!("GPU-{}", uuid::Uuid::now_v7()).into();
                    l.key.id = id.clone();
                    l
                })
            })
            .collect()
    } else {
        fixture::fleet()
    };
    let lease = store
        .acquire_lease("look", fixture::NOW, std::time::Duration::from_secs(600))
        .await
        .unwrap();
    let mut commit = Commit {
        number: 1,
        ..Default::default()
    };
    if many == 0 {
        for live in lives.iter().filter(|it| {
            it.key.kind == ResourceKind::Gpu && &*it.key.cluster == "prod" && &*it.node == "h100-00"
        }) {
            commit.resources.push(KnownResource {
                key: live.key.clone(),
                resource: live.resource.clone(),
                agent: None,
                first_seen: live.first_seen,
                last_seen: live.last_point,
            });
            let now = fixture::NOW.minute().0;
            for m in now - 1440..now {
                if (m - now) > -200 && (m - now) < -150 {
                    continue;
                }
                let h = m as f64;
                let mut row = MinuteRow::default();
                row.bitmaps = Bitmaps {
                    observed: ALL_SECONDS,
                    active: if (m / 90) % 5 != 0 { ALL_SECONDS } else { 0 },
                    stalled: 0,
                    held: if (m / 90) % 5 != 0 || m % 2 == 0 {
                        ALL_SECONDS
                    } else {
                        0
                    },
                    holder_known: ALL_SECONDS,
                };
                let busy = if (m / 90) % 5 != 0 {
                    0.9 + 0.08 * (h / 7.0).sin()
                } else {
                    0.0
                };
                for (metric, v) in [
                    (gpu::UTILIZATION, busy),
                    (
                        gpu::POWER,
                        80.0 + 600.0 * busy * (0.9 + 0.1 * (h / 3.0).cos()),
                    ),
                    (gpu::TEMPERATURE, 34.0 + 30.0 * busy),
                    (gpu::MEMORY_USED, 2e9 + 70e9 * busy),
                ] {
                    row.metrics.insert(
                        metric.id,
                        Aggregate {
                            count: 6,
                            sum: v * 6.0,
                            min: v * 0.8,
                            max: v * 1.05,
                        },
                    );
                }
                commit.minutes.push(MinuteDelta {
                    key: live.key.clone(),
                    minute: Minute(m),
                    row,
                });
            }
            for (n, kind, sev, msg, attrs) in [
                (
                    1,
                    EventKind::Xid,
                    Severity::Error,
                    "XID 31: GPU memory page fault, process python (pid 4711)",
                    vec![("xid", "31"), ("action", "restart_the_application")],
                ),
                (
                    2,
                    EventKind::GpuAdded,
                    Severity::Info,
                    "GPU 0 appeared",
                    vec![],
                ),
                (
                    3,
                    EventKind::ReaderFailed,
                    Severity::Warning,
                    "reader exporter:dcgm: connection refused at 127.0.0.1:9400; start dcgm-exporter or set exporter.enabled = false",
                    vec![("reader", "exporter:dcgm")],
                ),
            ] {
                let (k, i) = if n == 3 {
                    (ResourceKind::Node, Arc::<str>::from("h100-00"))
                } else {
                    (live.key.kind, live.key.id.clone())
                };
                commit.events.push(StoredEvent {
                    cluster: live.key.cluster.clone(),
                    agent: None,
                    event: Event {
                        at: fixture::NOW.shifted(-n * 3_000_000_000_000),
                        kind,
                        severity: sev,
                        resource_kind: k,
                        resource_id: i,
                        message: msg.to_owned(),
                        attributes: attrs
                            .into_iter()
                            .map(|(a, b): (&str, &str)| (a.to_owned(), b.to_owned()))
                            .collect(),
                    },
                });
            }
            break;
        }
    }
    if many == 0 {
        store.commit(&commit, lease.token).await.unwrap();
        for _ in 0..4 {
            gpufleet_server::ledger::round(&store, &Default::default(), fixture::NOW)
                .await
                .unwrap();
        }
    }
    for live in lives {
        fleet.put_for_tests(live);
    }
    let config = Arc::new(config::Config::for_tests());
    let app = App {
        fleet,
        store,
        config,
        access: Arc::new(auth::Access::default()),
        commits: Default::default(),
        clock: Arc::new(Fixed),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:18081")
        .await
        .unwrap();
    axum::serve(listener, web::router(app)).await.unwrap();
}
