//! Writing to a target that answers as it is told; the rules of the real one are held by the stand-in of the
//! end-to-end tests.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, ResourceKind};
use gpufleet_telemetry::minute::{Aggregate, Counter, MinuteRow};
use gpufleet_telemetry::time::Minute;
use serde_json::{Value, json};

use super::*;
use crate::auth::{Access, AuthConfig};
use crate::config::Config;
use crate::export::push::{Progress, RoundError};
use crate::hand::Hand;
use crate::store::model::{Commit, MinuteDelta};
use crate::store::{Store, StoreConfig};

mod selection;

mod held;

mod again;

/// The first minute of which something is known.
const FIRST: Minute = Minute(29_833_334);
/// More than one request.
const GPUS: usize = 150;
/// Minutes that are known.
const MINUTES: i64 = 3;
/// Three metrics of each GPU, and of the first minute no counter.
const ALL: usize = GPUS * (3 * MINUTES as usize - 1);

/// Five minutes after [`FIRST`] began.
const NOW: Timestamp = Minute(FIRST.0 + 5).start();

/// What the target answers next to series (200 when nothing is said), and what it was sent.
#[derive(Default)]
struct Heard {
    answers: VecDeque<(u16, Value)>,
    /// What it answers to descriptors of these types.
    descriptors: HashMap<String, u16>,
    described: Vec<String>,
    series: Vec<Value>,
    /// Lets requests with series through when so many are there.
    gate: Option<Arc<tokio::sync::Barrier>>,
}

type Shared = Arc<Mutex<Heard>>;

async fn take(
    State(heard): State<Shared>,
    Path(what): Path<String>,
    axum::Json(body): axum::Json<Value>,
) -> (StatusCode, axum::Json<Value>) {
    let gate = heard.lock().unwrap().gate.clone();
    if let (Some(gate), "timeSeries") = (gate, what.as_str()) {
        gate.wait().await;
    }
    let mut heard = heard.lock().unwrap();
    let (status, said) = if what == "metricDescriptors" {
        let name = body["type"].as_str().unwrap_or_default().to_owned();
        let status = heard.descriptors.get(&name).copied().unwrap_or(200);
        heard.described.push(name);
        let code = match status {
            400 => "INVALID_ARGUMENT",
            _ => "UNAVAILABLE",
        };
        (status, error(status, code))
    } else {
        let series = body["timeSeries"].as_array().cloned().unwrap_or_default();
        // One that is about so many points is for a request of as many.
        let total = |it: &Value| it["error"]["details"][0]["totalPointCount"].as_u64();
        let is_for = |it: &(u16, Value)| total(&it.1).is_none_or(|it| it == series.len() as u64);
        let place = heard.answers.iter().position(is_for);
        let answer = place.and_then(|it| heard.answers.remove(it));
        let answer = answer.unwrap_or((200, json!({})));
        assert!((1..=CloudMonitoring::MOST).contains(&series.len()));
        if answer.0 == 200 {
            heard.series.extend(series);
        }
        answer
    };
    let said = if status == 200 { json!({}) } else { said };
    (StatusCode::from_u16(status).unwrap(), axum::Json(said))
}

fn error(code: u16, status: &str) -> Value {
    json!({"error": {"code": code, "status": status, "message": "told so"}})
}

/// Some of a request is refused.
fn partly(success: usize, lost: usize) -> (u16, Value) {
    let mut said = error(400, "INVALID_ARGUMENT");
    said["error"]["details"] = json!([{
        "@type": "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary",
        "totalPointCount": success + lost, "successPointCount": success,
        "errors": [{"status": {"code": 3}, "pointCount": lost}],
    }]);
    (400, said)
}

struct Bench {
    app: App,
    heard: Shared,
    target: CloudMonitoring,
    _folder: tempfile::TempDir,
}

async fn bench() -> Bench {
    // The client asks for the one that the program has.
    _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig::for_tests(folder.path()))
        .await
        .unwrap();
    let heard = Shared::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/v3/projects/p-1/{what}", axum::routing::post(take))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(Arc::clone(&heard));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let metrics = [gpu::POWER, gpu::THROTTLE_REASONS, gpu::ENERGY];
    let mut config = Config::for_tests();
    config.cloud_monitoring = CloudMonitoringConfig {
        project: "p-1".to_owned(),
        metrics: metrics.iter().map(|it| it.name.to_owned()).collect(),
        endpoint,
        anonymous: true,
        max_age_h: 1,
        ..CloudMonitoringConfig::default()
    };
    let target = CloudMonitoring::new(&config.cloud_monitoring, "lease-1");
    let access = Access::load(&AuthConfig::default()).unwrap();
    let app = App::new(config, store, access, Arc::new(Hand::at(NOW)));
    Bench {
        target: target.unwrap().unwrap().of(&app),
        app,
        heard,
        _folder: folder,
    }
}

impl Bench {
    /// [`MINUTES`] of [`GPUS`] GPUs, and the cursor before them.
    async fn filled(self) -> Self {
        let length = Duration::from_secs(15);
        let lease = self
            .app
            .store
            .acquire_lease("test", self.app.clock.now(), length);
        let token = lease.await.unwrap().token;
        let mut commit = Commit {
            number: 1,
            ..Commit::default()
        };
        for place in 0..GPUS {
            let key = ResourceKey {
                cluster: "prod".into(),
                kind: ResourceKind::Gpu,
                id: format!("GPU-{place:04}").into(),
            };
            let resource =
                Resource::new(ResourceKind::Gpu, &*key.id).with(attribute::NODE, "node-1");
            commit.resources.push(KnownResource {
                key: key.clone(),
                resource: Arc::new(resource),
                agent: None,
                first_seen: FIRST.start(),
                last_seen: Minute(FIRST.0 + MINUTES).start(),
            });
            for minute in 0..MINUTES {
                let mut row = MinuteRow::default();
                row.add(gpu::POWER.id, Aggregate::of_gauge(50.0, None).unwrap());
                let throttled = Aggregate::of_gauge(4.0, None).unwrap();
                row.add(gpu::THROTTLE_REASONS.id, throttled);
                let joules = 1e6 + 3_000.0 * minute as f64;
                let joules = Counter::point(joules, 0, 60_000).unwrap();
                row.add_counter(gpu::ENERGY.id, &joules);
                commit.minutes.push(MinuteDelta {
                    key: key.clone(),
                    minute: Minute(FIRST.0 + minute),
                    row,
                });
            }
        }
        self.app.store.commit(&commit, token).await.unwrap();
        let before = Minute(FIRST.0 - 1);
        let kept = self
            .app
            .store
            .keep_export_cursor(CloudMonitoring::NAME, before);
        kept.await.unwrap();
        self
    }

    async fn round(
        &mut self,
        kept: &mut Option<Progress<CloudMonitoring>>,
    ) -> Result<(), RoundError> {
        while self.newest() < FIRST.0 + 3 {
            self.one_minute(kept).await?;
        }
        Ok(())
    }

    /// One round, which writes one minute.
    async fn one_minute(
        &mut self,
        kept: &mut Option<Progress<CloudMonitoring>>,
    ) -> Result<(), RoundError> {
        let pushed = &self.app.cloud_monitoring.pushed;
        push::round(&self.app, pushed, &mut self.target, kept, Duration::MAX).await
    }

    /// The newest minute that went whole.
    fn newest(&self) -> i64 {
        let pushed = &self.app.cloud_monitoring.pushed;
        pushed.newest.load(Ordering::Relaxed)
    }

    fn answers(&self, answers: impl IntoIterator<Item = (u16, Value)>) {
        self.heard.lock().unwrap().answers.extend(answers);
    }

    fn lets_through(&self, at_once: usize) {
        let gate = Arc::new(tokio::sync::Barrier::new(at_once));
        self.heard.lock().unwrap().gate = Some(gate);
    }

    fn series(&self) -> Vec<Value> {
        self.heard.lock().unwrap().series.clone()
    }

    /// Points that were taken, and how many different ones.
    fn taken(&self) -> (usize, usize) {
        let series = self.series();
        let different: HashSet<String> = series.iter().map(Value::to_string).collect();
        (series.len(), different.len())
    }

    fn left_out(&self) -> Vec<(&'static str, f64)> {
        let counts = self.app.cloud_monitoring.left_out();
        counts.filter(|it| it.1 > 0.0).collect()
    }
}

#[tokio::test]
async fn points_are_what_their_descriptors_say_and_a_counter_keeps_its_start() {
    let mut bench = bench().await.filled().await;
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL));
    let mut described = bench.heard.lock().unwrap().described.clone();
    described.sort();
    let prefix = "custom.googleapis.com/gpufleet_gpu_";
    let expected = [
        "energy_joules_total",
        "power_watts",
        "throttle_reasons_code",
    ];
    assert_eq!(described, expected.map(|it| format!("{prefix}{it}")));
    let of = |metric: &Metric| {
        let name = type_of(metric);
        let all = bench.series().into_iter();
        let all = all.filter(|it| {
            it["metric"]["type"] == name && it["metric"]["labels"]["gpu"] == "GPU-0007"
        });
        all.collect::<Vec<_>>()
    };
    let power = of(&gpu::POWER);
    assert_eq!(power.len(), 3);
    assert_eq!(
        power[0]["metric"]["labels"],
        json!({"cluster": "prod", "gpu": "GPU-0007", "node": "node-1", "origin": "live", "writer": "lease-1"})
    );
    // Nobody said where the node is.
    let place = json!({"type": "generic_node",
        "labels": {"location": "global", "namespace": "prod", "node_id": "node-1"}});
    assert_eq!(power[0]["resource"], place);
    assert_eq!(power[0]["points"][0]["value"], json!({"doubleValue": 50.0}));
    assert!(power[0]["points"][0]["interval"]["startTime"].is_null());
    let code = &of(&gpu::THROTTLE_REASONS)[0]["points"][0]["value"];
    assert_eq!(*code, json!({"int64Value": "4"}));
    let energy = of(&gpu::ENERGY);
    let points: Vec<_> = energy.iter().map(|it| &it["points"][0]).collect();
    let values = points.iter().map(|it| &it["value"]["doubleValue"]);
    assert!(values.eq([&json!(3_000.0), &json!(6_000.0)]), "{points:?}");
    let start = |it: usize| &points[it]["interval"]["startTime"];
    assert_eq!(start(0), start(1));
}

fn type_of(metric: &Metric) -> String {
    descriptor::type_name(metric, "custom.googleapis.com")
}

#[tokio::test]
async fn what_did_not_get_through_is_sent_again_and_nothing_twice() {
    let mut bench = bench().await.filled().await;
    let mut kept = None;
    // What waits fails again, or gets through before one of the next minute fails.
    for (through, code, status, words) in [
        (0, 401, "UNAUTHENTICATED", "credentials"),
        (1, 403, "PERMISSION_DENIED", "roles/monitoring.metricWriter"),
        (0, 429, "RESOURCE_EXHAUSTED", "quota"),
        (1, 503, "UNAVAILABLE", "UNAVAILABLE"),
    ] {
        bench.answers(vec![(200, json!({})); through]);
        bench.answers([(code, error(code, status))]);
        let failed = bench.round(&mut kept).await;
        let said = failed.expect_err("the target failed").to_string();
        assert!(said.contains(words) && said.contains("told so"), "{said}");
        assert!(kept.as_ref().unwrap().pause > push::FIRST_PAUSE);
    }
    bench.round(&mut kept).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL));
    let failed = &bench.app.cloud_monitoring.pushed.failed;
    assert_eq!(failed.load(Ordering::Relaxed), 4);
    assert_eq!(bench.left_out(), []);
}

#[tokio::test]
async fn points_that_are_refused_are_counted_by_reason_and_the_others_go_on() {
    let mut bench = bench().await.filled().await;
    // In the first minute a server that died may have been before; later nobody was.
    bench.answers([partly(197, 3)]);
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.left_out(), [("sent_again", 3.0)]);
    let before = bench.series().len();
    assert_eq!(
        before,
        ALL - 200,
        "the stand-in keeps nothing of what it refuses"
    );
    let pushed = &bench.app.cloud_monitoring.pushed;
    assert_eq!(pushed.refused.load(Ordering::Relaxed), 3);
    assert_eq!(pushed.taken.load(Ordering::Relaxed), ALL as u64 - 3);

    let verdicts = [
        (503, error(503, "UNAVAILABLE")),
        partly(199, 1),
        partly(198, 2),
    ];
    bench.answers(verdicts);
    let points = some_points(&mut bench.target, 0);
    let mut pieces = [piece(points.clone())];
    let sent = bench.target.send(&mut pieces).await;
    assert!(matches!(sent[..], [Sent::Later { .. }]));
    for (refused, expected) in [
        (1, vec![("sent_again", 4.0)]),
        (2, vec![("refused", 2.0), ("sent_again", 4.0)]),
    ] {
        let sent = bench.target.send(&mut pieces).await;
        assert!(matches!(sent[..], [Sent::Done { refused: it, .. }] if it == refused));
        assert_eq!(bench.left_out(), expected, "a doubt ends with its piece");
        pieces = [piece(points.clone())];
    }
}

/// A piece that was not sent yet.
fn piece(points: Vec<Point>) -> Piece<CloudMonitoring> {
    Piece {
        points,
        state: Sending::default(),
    }
}

/// As many points as one request may have, of other GPUs for each number.
fn some_points(target: &mut CloudMonitoring, number: usize) -> Vec<Point> {
    points_at(target, number, Minute(FIRST.0 + 9).start())
}

/// The same in the minute that ends then.
fn points_at(target: &mut CloudMonitoring, number: usize, end: Timestamp) -> Vec<Point> {
    let first = number * CloudMonitoring::MOST;
    let points = (first..first + CloudMonitoring::MOST).flat_map(|place| {
        let id = format!("GPU-{place:04}");
        let known = KnownResource {
            key: ResourceKey {
                cluster: "prod".into(),
                kind: ResourceKind::Gpu,
                id: id.as_str().into(),
            },
            resource: Arc::new(Resource::new(ResourceKind::Gpu, &*id)),
            agent: None,
            first_seen: FIRST.start(),
            last_seen: end,
        };
        let sample = Sample {
            metric: &gpu::POWER,
            value: 1.0,
        };
        let labels = vec![("gpu", id)];
        let of = Labelled {
            known: &known,
            labels,
            holder: None,
        };
        target.points(&of, &[sample], end)
    });
    points.collect()
}

#[tokio::test]
async fn a_minute_that_was_given_up_is_no_part_of_what_a_month_costs() {
    let Bench {
        mut target, app, ..
    } = bench().await;
    for (number, begun, whole, series) in [(0, 7, 7, 1), (1, 8, 9, 0)] {
        let end = |minute: i64| Minute(FIRST.0 + minute).start();
        // One that is given up, and what there is of the one that goes whole.
        points_at(&mut target, number, end(5));
        points_at(&mut target, number, end(begun));
        target.went_whole(end(whole));
        let month = app.cloud_monitoring.month(&app.config.cloud_monitoring);
        let told = month.map(|it| it.series);
        assert_eq!(told, Some(series * CloudMonitoring::MOST as u64));
    }
}

#[tokio::test]
async fn requests_are_under_way_at_once_and_what_one_of_them_lost_waits_on() {
    let mut bench = bench().await;
    let mut pieces: Vec<_> = (0..CloudMonitoring::AT_ONCE)
        .map(|number| piece(some_points(&mut bench.target, number)))
        .collect();
    // None is answered before all are there.
    bench.lets_through(CloudMonitoring::AT_ONCE);
    bench.answers([(503, error(503, "UNAVAILABLE"))]);
    bench.target.is_first_minute = false;
    let sent = bench.target.send(&mut pieces).await;
    let is_lost = |it: &Sent| matches!(it, Sent::Later { .. });
    let lost = sent.iter().filter(|it| is_lost(it)).count();
    assert_eq!((sent.len(), lost), (4, 1), "{sent:?}");
    // What was lost may have been taken, and is alone in that.
    let lost = sent.iter().position(is_lost).unwrap();
    let new = piece(some_points(&mut bench.target, CloudMonitoring::AT_ONCE));
    let mut pieces = [pieces.swap_remove(lost), new];
    bench.lets_through(2);
    bench.answers([partly(199, 1), partly(198, 2)]);
    bench.target.send(&mut pieces).await;
    let left_out = bench.left_out();
    let both = left_out.iter().map(|it| it.1).sum::<f64>();
    assert_eq!((left_out.len(), both), (2, 3.0), "{left_out:?}");
}

#[tokio::test]
async fn a_metric_whose_descriptor_is_refused_is_left_out_and_the_others_go_on() {
    let mut bench = bench().await.filled().await;
    let refused = type_of(&gpu::POWER);
    bench
        .heard
        .lock()
        .unwrap()
        .descriptors
        .insert(refused.clone(), 400);
    bench.round(&mut None).await.unwrap();
    let power = GPUS * MINUTES as usize;
    assert_eq!(bench.taken(), (ALL - power, ALL - power));
    assert_eq!(bench.left_out(), [("descriptor", power as f64)]);
    let is_there = |it: &Value| it["metric"]["type"] == refused.as_str();
    assert!(!bench.series().iter().any(is_there));
}

#[tokio::test]
async fn descriptors_that_did_not_get_through_are_made_before_any_point() {
    let mut bench = bench().await.filled().await;
    let name = type_of(&gpu::POWER);
    let says = |bench: &Bench, status| {
        let mut heard = bench.heard.lock().unwrap();
        heard.descriptors.insert(name.clone(), status);
    };
    says(&bench, 503);
    let mut kept = None;
    assert!(bench.round(&mut kept).await.is_err());
    assert_eq!(bench.taken().0, 0);
    says(&bench, 200);
    bench.round(&mut kept).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL));
}
