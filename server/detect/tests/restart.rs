//! A server that starts anew while something is wrong: it is, and it ends when it is mended.

use gpufleet_analysis::states::Recent;
use gpufleet_telemetry::catalog::node;
use gpufleet_telemetry::identity::ResourceKind;

use super::*;

impl World {
    /// The server starts anew, with what the store has.
    async fn restarts(&mut self) {
        self.app.incidents.write_all_open();
        let written = self.app.incidents.write(&self.app.store).await;
        written.expect("it has the right to write");
        self.app.store.close().await;
        self.app = app(&self.folder, &self.hand).await;
        restore(&self.app).await.expect("the store answers");
        let (open, now) = (self.open(), self.hand.now());
        self.detectors = Detectors::new(&self.app.config.detect);
        self.detectors.resume(&open, now);
        for live in &mut self.lives {
            live.recent = Recent::default();
        }
    }

    fn ids(&self) -> Vec<Uuid> {
        let mut ids: Vec<Uuid> = self.open().iter().map(|it| it.id).collect();
        ids.sort_unstable();
        ids
    }
}

#[tokio::test]
async fn a_server_that_starts_anew_goes_on_with_its_incidents() {
    let mut world = World::new().await;
    let at = NOW;
    let broken = breaks("node-1", 0, at);
    world.ticks(3, &broken);
    let before = world.open();
    world.restarts().await;
    assert_eq!(world.open()[0].id, before[0].id);
    // Of what broke it only the reason is known after a start.
    world.ticks(2, |live| {
        broken(live);
        live.told.xids.clear();
    });
    let open = world.open();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].id, &*open[0].what), (before[0].id, "XID 79"));
    let written = world.app.incidents.write(&world.app.store).await;
    written.expect("the token is the new one");
}

/// An NVLink and half of the lanes of two GPUs are down, and a third has made an error, as long as it is `ill`.
fn reads(ill: bool) -> impl Fn(&mut Live) {
    move |live| {
        let read = |wrong: f64, well: f64| if ill { wrong } else { well };
        if live.key.kind == ResourceKind::Node {
            set(live, &node::UPTIME, 1e6);
        } else if is_gpu(live, "node-1", 3) {
            set(live, &gpu::NVLINKS_ACTIVE, read(17.0, 18.0));
        } else if is_gpu(live, "node-2", 1) {
            set(live, &gpu::PCIE_GENERATION, 5.0);
            set(live, &gpu::PCIE_WIDTH, read(8.0, 16.0));
        } else if is_gpu(live, "node-2", 5) {
            set(live, &gpu::ECC_UNCORRECTED_VOLATILE, read(1.0, 0.0));
        }
    }
}

#[tokio::test]
async fn links_and_errors_of_before_a_restart_are_wrong_until_they_are_mended() {
    let mut world = World::new().await;
    world.ticks(8, reads(false));
    world.ticks(12, reads(true));
    let before = world.ids();
    assert_eq!(before.len(), 3, "{:#?}", world.open());
    world.restarts().await;
    assert_eq!(world.ids(), before, "as the store has them");
    for _ in 0..60 {
        world.ticks(1, reads(true));
        assert_eq!(world.ids(), before);
    }
    let heard = world.open();
    assert!(
        heard.iter().all(|it| it.unheard_since.is_none()),
        "{heard:#?}"
    );
    world.ticks(45, reads(false));
    assert_eq!(
        world.open(),
        [],
        "lanes and link are back, the card was reset"
    );
}

#[tokio::test]
async fn gpus_that_were_idle_before_a_restart_are_until_they_work() {
    let mut world = World::new().await;
    let idle = |live: &mut Live| live.bits.active = 0;
    world.ticks(362, idle);
    let before = world.ids();
    assert_eq!(before.len(), 1);
    world.restarts().await;
    for _ in 0..60 {
        world.ticks(1, idle);
        assert_eq!(world.ids(), before);
    }
    let told = world.open();
    assert_eq!(told[0].losing.milli_gpus, 16_000, "it costs what it did");
    world.ticks(3, |live| live.bits.active = live.bits.observed);
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn after_a_start_agents_have_the_time_to_come_back_before_their_nodes_are_silent() {
    let mut world = World::new().await;
    let one = |live: &mut Live| {
        if &*live.node != "node-1" {
            live.node = "".into();
        }
    };
    let none = |live: &mut Live| live.node = "".into();
    world.lives.push(fixture::without_readers("prod", "node-3"));
    world.ticks(3, |_| {});
    world.ticks(8, |live| {
        if &*live.node == "node-3" {
            live.node = "".into();
        }
    });
    let before = world.ids();
    assert_eq!(before.len(), 1, "{:#?}", world.open());
    // The server is away for five minutes. Of what it knows it has then what the store has.
    world.ticks += 30;
    let now = NOW.shifted(world.ticks * 10 * NANOS_PER_SECOND);
    world.hand.put(now);
    world.restarts().await;
    for live in &mut world.lives {
        live.received = Timestamp::default();
    }
    for _ in 0..6 {
        world.ticks(1, none);
        let open = world.open();
        assert_eq!(world.ids(), before, "{open:#?}");
        assert_eq!(open[0].unheard_since, None, "it was silent before");
    }
    world.ticks(4, one);
    assert_eq!(world.ids(), before, "{:#?}", world.open());
    world.ticks(2, one);
    let places: Vec<_> = world.open().into_iter().map(|it| it.place.node).collect();
    let expected = ["node-3", "node-2"].map(|it| Some(it.to_owned()));
    assert_eq!(places, expected);
}
