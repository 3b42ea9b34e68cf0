//! Pushing against a target that takes, fails and refuses as it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use gpufleet_telemetry::catalog::{gpu, own};
use gpufleet_telemetry::identity::{Origin, Resource, ResourceKind, attribute};
use gpufleet_telemetry::minute::{Aggregate, MinuteRow};
use gpufleet_telemetry::time::Minute;

use super::halves::MOST_SPLITS;
use super::*;
use crate::auth::{Access, AuthConfig};
use crate::commit::{CommitTo as _, Leased};
use crate::config::Config;
use crate::export::backlog::HELD_FOR;
use crate::export::late::Watched;
use crate::export::message::{STALE, read_for_tests};
use crate::export::push::{FIRST_PAUSE, MAX_PAUSE, Progress, RoundError};
use crate::fleet::live::LiveValue;
use crate::hand::Hand;
use crate::store::model::{Commit, KnownResource, MinuteDelta, ResourceKey};
use crate::store::{Store, StoreConfig};
use crate::view::fixture;

mod address;

mod outage;

/// The first minute of which something is known.
const FIRST: Minute = Minute(29_833_334);

/// More than one page, and more than one message.
const GPUS: usize = 1_200;

/// Five minutes after [`FIRST`] began.
const NOW: Timestamp = Minute(FIRST.0 + 5).start();

/// A target: what it answers next (200 when nothing is said), and what it was sent.
#[derive(Default)]
struct Told {
    answers: VecDeque<StatusCode>,
    /// In which words.
    says: &'static str,
    /// Parts of the labels of samples that it refuses.
    bad: Vec<&'static str>,
    messages: usize,
    taken: Vec<Taken>,
    /// Time and value of the last sample of each series.
    newest: BTreeMap<String, (i64, u64)>,
    headers: HeaderMap,
}

/// Labels, time and the value's bits of a sample.
type Taken = (String, i64, u64);

impl Told {
    /// Whether it takes nothing of a message with this sample: it is one of the bad, at the time of another or before
    /// it, or the end of a series that is not there.
    fn refuses(&self, (labels, at_ms, value): &Taken) -> bool {
        let last = self.newest.get(labels);
        let is_late = |it: &(i64, u64)| *at_ms <= it.0 && (*at_ms, *value) != *it;
        let has_ended = |it: &(i64, u64)| it.1 == STALE.to_bits();
        let ends_nothing = *value == STALE.to_bits() && last.is_none_or(has_ended);
        let is_bad = self.bad.iter().any(|it| labels.contains(it));
        is_bad || ends_nothing || last.is_some_and(is_late)
    }
}

type Shared = Arc<Mutex<Told>>;

async fn take(
    State(told): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let mut told = told.lock().unwrap();
    told.messages += 1;
    let samples = read_for_tests(&body);
    let usual = match samples.iter().any(|it| told.refuses(it)) {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::NO_CONTENT,
    };
    let answer = told.answers.pop_front().unwrap_or(usual);
    if answer.is_success() {
        assert!(samples.len() <= RemoteWrite::MOST);
        for (labels, at_ms, value) in &samples {
            told.newest.insert(labels.clone(), (*at_ms, *value));
        }
        told.taken.extend(samples);
    }
    told.headers = headers;
    (answer, told.says)
}

struct Bench {
    app: App,
    told: Shared,
    target: RemoteWrite,
    /// For how long the server leads.
    led: Duration,
    folder: tempfile::TempDir,
}

async fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreConfig::for_tests(folder.path()))
        .await
        .unwrap();
    let told = Shared::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api/v1/write", listener.local_addr().unwrap());
    let router = axum::Router::new()
        .route("/api/v1/write", axum::routing::post(take))
        .with_state(Arc::clone(&told));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let token = folder.path().join("token");
    std::fs::write(&token, "a-secret\n").unwrap();
    let config = RemoteWriteConfig {
        url,
        token_file: token,
        metrics: vec![gpu::POWER.name.to_owned(), gpu::TEMPERATURE.name.to_owned()],
        max_age_h: 1,
        ..RemoteWriteConfig::default()
    };
    let clock: Arc<dyn Clock> = Arc::new(Hand::at(NOW));
    let target = RemoteWrite::new(&config, &clock).unwrap().unwrap();
    let access = Access::load(&AuthConfig::default()).unwrap();
    let app = App::new(Config::for_tests(), store, access, clock);
    Bench {
        app,
        told,
        target,
        led: HELD_FOR,
        folder,
    }
}

fn key(place: usize) -> ResourceKey {
    ResourceKey {
        cluster: "prod".into(),
        kind: ResourceKind::Gpu,
        id: format!("GPU-{place:04}").into(),
    }
}

impl Bench {
    /// Three minutes of [`GPUS`] GPUs.
    async fn filled(self) -> Self {
        let minutes: &[i64] = &[0, 1, 2];
        let all: Vec<_> = (0..GPUS).map(|place| (place, minutes)).collect();
        self.commit(1, &all).await;
        self
    }

    /// Puts GPUs into the record, each with these minutes since [`FIRST`].
    async fn commit(&self, number: u64, gpus: &[(usize, &[i64])]) {
        let length = Duration::from_secs(15);
        let lease = self
            .app
            .store
            .acquire_lease("test", self.app.clock.now(), length);
        let token = lease.await.unwrap().token;
        let mut commit = Commit {
            number,
            ..Commit::default()
        };
        for (place, minutes) in gpus {
            let key = key(*place);
            let resource =
                Resource::new(ResourceKind::Gpu, &*key.id).with(attribute::NODE, "node-1");
            commit.resources.push(KnownResource {
                key: key.clone(),
                resource: Arc::new(resource),
                agent: None,
                first_seen: FIRST.start(),
                last_seen: Minute(FIRST.0 + 3).start(),
            });
            for minute in *minutes {
                let mut row = MinuteRow::default();
                for metric in [gpu::POWER, gpu::TEMPERATURE, gpu::UTILIZATION] {
                    row.add(metric.id, Aggregate::of_gauge(50.0, None).unwrap());
                }
                commit.minutes.push(MinuteDelta {
                    key: key.clone(),
                    minute: Minute(FIRST.0 + minute),
                    row,
                });
            }
        }
        let to = &Leased {
            store: self.app.store.clone(),
            token,
        };
        let ways = [&*self.app.pushed, &self.app.cloud_monitoring.pushed];
        Watched { to, ways }.commit(&commit).await.unwrap();
    }

    /// Puts an agent into the live view which tells that its spool is so old, or has told nothing yet.
    fn hears(&self, spool_age_s: Option<f64>) {
        let mut live = fixture::machine("prod", "node-1", Origin::Live);
        live.last_point = self.app.clock.now();
        live.values.retain(|_| spool_age_s.is_some());
        let of_spool = |it: &&mut LiveValue| it.metric == own::SPOOL_AGE.id;
        for value in live.values.iter_mut().filter(of_spool) {
            value.reading = Ok(spool_age_s.unwrap_or_default());
        }
        self.app.fleet.put_for_tests(live);
    }

    async fn starts_at(&self, minute: Minute) {
        let kept = self.app.store.keep_export_cursor(RemoteWrite::NAME, minute);
        kept.await.unwrap();
    }

    async fn round(&mut self, kept: &mut Option<Progress<RemoteWrite>>) -> Result<(), RoundError> {
        let pushed = &self.app.pushed;
        push::round(&self.app, pushed, &mut self.target, kept, self.led).await
    }

    fn answers(&self, answers: &[StatusCode]) {
        self.told.lock().unwrap().answers.extend(answers);
    }

    /// Samples that were taken, and how many different ones.
    fn taken(&self) -> (usize, usize) {
        let told = self.told.lock().unwrap();
        let different: BTreeSet<_> = told.taken.iter().collect();
        (told.taken.len(), different.len())
    }

    fn count(&self, of: &AtomicU64) -> u64 {
        of.load(Ordering::Relaxed)
    }
}

const ALL: usize = GPUS * 2 * 3;

#[tokio::test]
async fn each_minute_is_pushed_once_in_messages_of_bounded_size_and_the_cursor_stays() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL), "of the selected metrics alone");
    let first = bench.told.lock().unwrap().taken[0].0.clone();
    let labels = "cluster=prod,from=record,gpu=GPU-0000,node=node-1,origin=live";
    assert!(
        first.ends_with(labels),
        "sorted, and apart from what is scraped: {first}"
    );
    let headers = bench.told.lock().unwrap().headers.clone();
    assert_eq!(headers["content-encoding"], "snappy");
    assert_eq!(headers["x-prometheus-remote-write-version"], "0.1.0");
    assert_eq!(headers["authorization"], "Bearer a-secret");
    // Another server, or this one after a crash, goes on from the cursor.
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, ALL);
    assert_eq!(bench.count(&bench.app.pushed.taken), ALL as u64);
}

#[tokio::test]
async fn a_target_of_several_is_told_whose_the_samples_are_and_a_user_with_the_password() {
    let bench = bench().await;
    let clock: Arc<dyn Clock> = Arc::new(Hand::at(NOW));
    let config = RemoteWriteConfig {
        url: "http://127.0.0.1:1/api/v1/write".to_owned(),
        token_file: bench.folder.path().join("token"),
        user: "123456".to_owned(),
        tenant: "team-a".to_owned(),
        ..RemoteWriteConfig::default()
    };
    let target = RemoteWrite::new(&config, &clock).unwrap().unwrap();
    let headers: http::HeaderMap = target.headers().unwrap().into_iter().collect();
    assert_eq!(headers["authorization"], "Basic MTIzNDU2OmEtc2VjcmV0");
    assert!(headers["authorization"].is_sensitive());
    assert_eq!(headers["x-scope-orgid"], "team-a");
    let refused = |change: &dyn Fn(&mut RemoteWriteConfig)| {
        let mut config = config.clone();
        change(&mut config);
        RemoteWrite::new(&config, &clock)
            .err()
            .expect("it is refused")
    };
    assert!(refused(&|it| it.user = "a:b".to_owned()).starts_with("remote_write.user holds a `:`"));
    assert!(refused(&|it| it.tenant = "a\nb".to_owned()).starts_with("remote_write.tenant"));
    assert!(
        refused(&|it| it.token_file = PathBuf::new()).contains("without remote_write.token_file")
    );
}

#[tokio::test]
async fn without_a_cursor_it_begins_now_and_not_with_the_whole_past() {
    let mut bench = bench().await.filled().await;
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, 0);
}

#[tokio::test]
async fn a_cursor_of_a_clock_that_was_ahead_is_not_waited_for() {
    let mut bench = bench().await.filled().await;
    let ahead = FIRST.0 + 1_000_000;
    bench.starts_at(Minute(ahead)).await;
    let mut kept = None;
    bench.round(&mut kept).await.unwrap();
    let newest = bench.app.pushed.newest.load(Ordering::Relaxed);
    assert!((FIRST.0..ahead).contains(&newest), "{newest}");
}

#[tokio::test]
async fn a_target_that_took_nothing_since_the_start_is_as_far_behind_as_the_last_minute_before_it()
{
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.answers(&[StatusCode::SERVICE_UNAVAILABLE]);
    bench.round(&mut None).await.expect_err("the target failed");
    let newest = bench.app.pushed.newest.load(Ordering::Relaxed);
    assert_eq!(newest, FIRST.0 - 1);
}

#[tokio::test]
async fn what_was_not_taken_is_sent_again_in_the_same_place_and_nothing_twice() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    let mut kept = None;
    for answer in [
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::UNAUTHORIZED,
    ] {
        bench.answers(&[StatusCode::OK, answer]);
        let error = bench.round(&mut kept).await;
        let error = error.expect_err("the target failed").to_string();
        assert!(
            error.contains(answer.as_str()) && !error.contains("a-secret"),
            "{error}"
        );
        let pause = kept.as_ref().map(|it| it.pause);
        assert!(
            pause > Some(FIRST_PAUSE) && pause <= Some(MAX_PAUSE),
            "{pause:?}"
        );
    }
    bench.round(&mut kept).await.unwrap();
    assert_eq!(bench.taken(), (ALL, ALL));
    assert_eq!(bench.count(&bench.app.pushed.failed), 3);
}

#[tokio::test]
async fn what_the_target_refuses_is_counted_and_never_sent_again() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.answers(&[StatusCode::UNSUPPORTED_MEDIA_TYPE]);
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, ALL - RemoteWrite::MOST);
    assert_eq!(
        bench.count(&bench.app.pushed.refused),
        RemoteWrite::MOST as u64
    );
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, ALL - RemoteWrite::MOST);
}

#[tokio::test]
async fn one_bad_sample_is_lost_alone_and_what_is_under_way_when_the_target_fails_goes_on_from_there()
 {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    let bad = "gpufleet_gpu_power_watts,cluster=prod,from=record,gpu=GPU-0007,";
    bench.told.lock().unwrap().bad.push(bad);
    // The first message of all, its first half, and the second of them at a bad time.
    bench.answers(&[
        StatusCode::BAD_REQUEST,
        StatusCode::BAD_REQUEST,
        StatusCode::SERVICE_UNAVAILABLE,
    ]);
    let mut kept = None;
    bench.round(&mut kept).await.expect_err("the target failed");
    bench.round(&mut kept).await.unwrap();
    assert_eq!(bench.taken(), (ALL - 3, ALL - 3), "one of each minute");
    let pushed = &bench.app.pushed;
    assert_eq!(bench.count(&pushed.refused), 3);
    assert_eq!(bench.count(&pushed.taken), ALL as u64 - 3);
}

#[tokio::test]
async fn a_target_that_refuses_everything_is_not_asked_for_each_sample() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    bench.told.lock().unwrap().bad.push("cluster=prod");
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, 0);
    assert_eq!(bench.count(&bench.app.pushed.refused), ALL as u64);
    // Two pieces a minute.
    let most = 3 * 2 * (2 * MOST_SPLITS as usize + 1);
    let messages = bench.told.lock().unwrap().messages;
    assert!(messages <= most, "{messages}");
}

#[tokio::test]
async fn a_series_that_has_ended_is_marked_behind_its_last_sample_and_one_that_was_late_is_not() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1)).await;
    let (gone, late) = (GPUS, GPUS + 1);
    bench.commit(2, &[(gone, &[0]), (late, &[0, 2])]).await;
    // The target is away when it is to be told.
    bench.answers(&[
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::SERVICE_UNAVAILABLE,
    ]);
    let mut kept = None;
    bench.round(&mut kept).await.expect_err("it is away");
    bench.round(&mut kept).await.unwrap();
    let taken = bench.told.lock().unwrap().taken.clone();
    let ends: Vec<_> = taken
        .iter()
        .filter(|it| it.2 == STALE.to_bits())
        .map(|(labels, at_ms, _)| {
            let is_of_gone = labels.contains(&*key(gone).id);
            (is_of_gone, *at_ms)
        })
        .collect();
    let end = (true, Minute(FIRST.0 + 2).start().millis());
    assert_eq!(ends, [end; 2], "power and temperature");
    assert_eq!(taken.len(), ALL + 2 * (1 + 2) + ends.len());
    assert_eq!(bench.count(&bench.app.pushed.refused), 0);
}

#[tokio::test]
async fn minutes_that_are_too_old_are_skipped_and_counted() {
    let mut bench = bench().await.filled().await;
    bench.starts_at(Minute(FIRST.0 - 1_000)).await;
    bench.round(&mut None).await.unwrap();
    assert_eq!(bench.taken().0, ALL);
    // Due are four minutes; the oldest of the hour before them is the first that goes.
    let skipped = bench.count(&bench.app.pushed.skipped);
    assert_eq!(skipped, 1_000 - 1 + 4 - 60);
}

#[test]
fn a_configuration_that_cannot_be_meant_is_refused_by_name() {
    let clock: Arc<dyn Clock> = Arc::new(Hand::at(NOW));
    let refused = |change: fn(&mut RemoteWriteConfig), words: &[&str]| {
        let mut config = RemoteWriteConfig {
            url: "http://127.0.0.1:9/api/v1/write".to_owned(),
            ..RemoteWriteConfig::default()
        };
        change(&mut config);
        let error = RemoteWrite::new(&config, &clock).err().expect("refused");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(|it| it.url = "metrics".to_owned(), &["remote_write.url"]);
    refused(
        |it| it.url = "http://ada:secret@host/".to_owned(),
        &["remote_write.url", "token_file"],
    );
    refused(
        |it| it.metrics = vec!["watts".to_owned()],
        &["remote_write.metrics", "`watts`"],
    );
    refused(|it| it.max_age_h = 0, &["remote_write.max_age_h"]);
    refused(
        |it| it.token_file = "/nowhere".into(),
        &["remote_write.token_file"],
    );
}
