//! Who leads, for how long, and what a server knows when it begins.

use std::sync::Arc;

use gpufleet_telemetry::event::EventKind;
use gpufleet_telemetry::time::Clock;

use super::*;
use crate::auth::Access;
use crate::config::Config;
use crate::hand::Hand;
use crate::health::StoreSeen;
use crate::store::model::Commit;
use crate::store::tests::{event, key, known};
use crate::store::{Store, StoreConfig};

async fn server(folder: &Path, clock: &Arc<Hand>) -> App {
    let store = Store::open(&StoreConfig::for_tests(folder)).await;
    let (config, access) = (Config::for_tests(), Access::default());
    App::new(config, store.unwrap(), access, Arc::clone(clock) as _)
}

/// A server that has just taken the right to write, and what another one with its database shares with it.
struct First {
    app: App,
    right: Leased,
    stop: CancellationToken,
    clock: Arc<Hand>,
    folder: tempfile::TempDir,
}

async fn first() -> First {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Hand::at(Timestamp::from_seconds(1_790_000_000)));
    let app = server(folder.path(), &clock).await;
    let stop = CancellationToken::new();
    let right = take(&app, "first", &stop).await.unwrap().unwrap();
    First {
        app,
        right,
        stop,
        clock,
        folder,
    }
}

impl First {
    /// Another server with the same database and the same time.
    async fn second(&self) -> App {
        server(self.folder.path(), &self.clock).await
    }

    /// Does work by the right, which is renewed every millisecond.
    async fn holds(&self, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let every = Duration::from_millis(1);
        hold_at(&self.app, self.right.token, every, &self.stop, work).await
    }
}

#[tokio::test]
async fn a_database_that_goes_before_the_first_renewal_took_things_until_the_right_was_taken() {
    let first = first().await;
    let (app, clock) = (&first.app, &first.clock);
    let taken = clock.now();
    app.store.close().await;
    let work = async {
        while !StoreSeen::of(app).is_failing {
            clock.pass(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.stop.cancel();
        Ok(())
    };
    first.holds(work).await.unwrap();
    let seen = StoreSeen::of(app).taken.expect("it took the right");
    assert!(seen >= taken && seen < clock.now(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_gets_no_lease_from_a_server_that_restores_for_longer_than_it_is_good() {
    let first = first().await;
    let (second, clock) = (first.second().await, &first.clock);
    let renewed = first.app.jobs.of(JOB);
    let work = async {
        // Twice as long as the lease is good, in steps that are shorter than it.
        for _ in 0..6 {
            clock.pass(Duration::from_secs(10));
            let known = clock.now().millis();
            while renewed.succeeded_ms() < Some(known) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let asked = second
            .store
            .acquire_lease("second", clock.now(), LEASE)
            .await;
        assert!(matches!(asked, Err(LeaseError::Held { .. })), "{asked:?}");
        first.stop.cancel();
        Ok(())
    };
    let held = tokio::time::timeout(Duration::from_secs(60), first.holds(work)).await;
    held.expect("the lease is renewed beside the work").unwrap();
    release(&first.app, first.right.token).await;
    assert!(
        take(&second, "second", &CancellationToken::new())
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_server_that_was_replaced_ends_its_work() {
    let first = first().await;
    first.clock.pass(Duration::from_secs(3_600));
    let second = first.second().await;
    take(&second, "second", &first.stop).await.unwrap().unwrap();
    let error = first.holds(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("taken over"), "{error}");
}

#[test]
fn a_server_keeps_its_name_with_its_folder_and_another_folder_has_another() {
    let [mine, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let first = holder(mine.path()).unwrap();
    assert_eq!(holder(mine.path()).unwrap(), first);
    assert_ne!(
        holder(theirs.path()).unwrap(),
        first,
        "the same machine name"
    );
    std::fs::write(mine.path().join(ID_FILE), "spoilt").unwrap();
    let anew = holder(mine.path()).unwrap();
    assert_ne!(anew, first);
    assert_eq!(holder(mine.path()).unwrap(), anew);
}

#[tokio::test]
async fn what_waits_for_the_lead_begins_when_it_comes_and_ends_when_told_to_stop() {
    let (lead, stop) = (Lead::default(), CancellationToken::new());
    assert!(lead.waits().is_some());
    assert_eq!(lead.waits_since(), None, "it has not asked yet");
    let at = Timestamp::from_seconds;
    assert!(lead.because("standby", at(100)));
    assert!(!lead.because("standby", at(102)), "no news");
    assert_eq!(lead.waits_since(), Some(at(100)));
    assert!(lead.because("the database is away", at(104)));
    assert_eq!(lead.waits_since(), Some(at(104)));
    let (began, ()) = tokio::join!(lead.wait(&stop), async { lead.begin() });
    assert!(began);
    assert_eq!(lead.waits(), None);
    assert_eq!(lead.waits_since(), None);
    let other = Lead::default();
    stop.cancel();
    assert!(!other.wait(&stop).await);
}

#[tokio::test]
async fn a_gpu_that_was_taken_out_is_known_to_be_after_a_start() {
    let first = first().await;
    let now = first.clock.now();
    let gpus = ["GPU-0", "GPU-1"];
    let commit = Commit {
        number: 1,
        resources: gpus.map(|id| known(&key(id), now.minute())).into(),
        events: vec![event(EventKind::GpuRemoved, "GPU-0", now)],
        ..Commit::default()
    };
    let token = first.right.token;
    first.app.store.commit(&commit, token).await.unwrap();
    let second = first.second().await;
    assert!(restore(&second, &first.stop).await.unwrap());
    let is_removed = |id| {
        let live = second.fleet.get(&key(id)).expect("it is known");
        live.told.is_removed(live.last_point)
    };
    assert_eq!(gpus.map(is_removed), [true, false]);
}
