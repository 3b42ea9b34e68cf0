//! Who holds a GPU is not known for a while: what was told of its job is neither over nor another incident after.

use gpufleet_telemetry::identity::ResourceKind;

use super::*;

const JOB: &str = "jobset:research/train-7b";
const BYTES: f64 = 85_520_809_984.0;

/// Nobody says who holds the GPUs.
fn unheld(live: &mut Live) {
    if live.key.kind == ResourceKind::Gpu {
        (live.bits.held, live.bits.holder_known) = (0, 0);
        let mut resource = Resource::clone(&live.resource);
        for name in [attribute::HOLDER, attribute::WORKLOAD] {
            resource.attributes.remove(name);
        }
        live.resource = resource.into();
    }
}

/// This pod holds them, of what this started.
fn held_by(live: &mut Live, pod: &str, workload: &str) {
    if live.key.kind == ResourceKind::Gpu {
        let seconds = live.bits.observed;
        (live.bits.held, live.bits.holder_known) = (seconds, seconds);
        let resource = Resource::clone(&live.resource).with(attribute::HOLDER, pod);
        live.resource = resource.with(attribute::WORKLOAD, workload).into();
    }
}

fn held(live: &mut Live) {
    held_by(live, "pod:research/train-7b-0", JOB);
}

fn idle(live: &mut Live) {
    live.bits.active = 0;
}

fn works(live: &mut Live) {
    (live.bits.active, live.bits.stalled) = (live.bits.observed, 0);
}

fn stalls(live: &mut Live) {
    works(live);
    live.bits.stalled = live.bits.observed;
}

/// Its memory fills by 15 % an hour.
fn grows(live: &mut Live) {
    if live.key.kind == ResourceKind::Gpu {
        let hours = live.last_point.since(NOW) as f64 / (3_600 * NANOS_PER_SECOND) as f64;
        set(live, &gpu::MEMORY_USED, BYTES * (0.2 + 0.15 * hours));
    }
}

/// One of them is hotter than the others.
fn hot(live: &mut Live) {
    if live.key.kind == ResourceKind::Gpu {
        let is_it = is_gpu(live, "node-2", 3);
        set(live, &gpu::TEMPERATURE, if is_it { 80.0 } else { 60.0 });
    }
}

impl World {
    /// After so many ticks of this one incident of this family is open, which is heard, or not.
    fn one(
        &mut self,
        count: usize,
        (family, is_heard): (Family, bool),
        does: fn(&mut Live),
    ) -> Uuid {
        self.ticks(count, does);
        let open = self.open();
        assert_eq!(open.len(), 1, "{open:#?}");
        assert_eq!(open[0].family, family);
        assert_eq!(open[0].unheard_since.is_none(), is_heard, "{open:#?}");
        open[0].id
    }
}

/// Idle GPUs, told as such, and then for four ticks without a holder.
async fn idle_and_unheld() -> (World, Uuid) {
    let mut world = World::new().await;
    world.detectors.idle.after_s = 60;
    let id = world.one(45, (Family::Idle, true), |live| {
        held(live);
        idle(live);
    });
    let still = world.one(4, (Family::Idle, false), |live| {
        unheld(live);
        idle(live);
    });
    assert_eq!(still, id);
    (world, id)
}

#[tokio::test]
async fn idle_gpus_whose_holder_is_not_known_for_a_while_are_idle_since_before_if_their_job_has_them()
 {
    let (mut world, id) = idle_and_unheld().await;
    for _ in 0..2 {
        let again = world.one(6, (Family::Idle, true), held);
        assert_eq!(again, id, "no hour begins anew");
        assert_eq!(world.one(4, (Family::Idle, false), unheld), id);
    }
    world.ticks(3, |live| {
        held(live);
        works(live);
    });
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn idle_gpus_whose_holder_is_not_known_are_over_once_they_work_or_another_has_them() {
    let (mut world, _) = idle_and_unheld().await;
    world.ticks(3, works);
    assert_eq!(world.open(), [], "whoever holds them");
    world.ticks(3, |live| {
        held(live);
        idle(live);
    });
    assert_eq!(world.open(), [], "a pause since it worked");
    let (mut world, _) = idle_and_unheld().await;
    let another = |live: &mut Live| held_by(live, "pod:vision/sweep-0", "jobset:vision/sweep");
    world.ticks(3, another);
    assert_eq!(world.open(), [], "another begins anew");
}

#[tokio::test]
async fn a_job_that_is_stalled_is_not_over_while_its_holder_is_not_known_and_until_a_stall_would_show()
 {
    let mut world = World::new().await;
    let id = world.one(33, (Family::Stalled, true), |live| {
        held(live);
        stalls(live);
    });
    assert_eq!(world.one(4, (Family::Stalled, false), unheld), id);
    assert_eq!(world.one(20, (Family::Stalled, false), held), id);
    assert_eq!(world.one(20, (Family::Stalled, true), held), id);
    world.ticks(3, works);
    assert_eq!(world.open(), []);
}

#[tokio::test]
async fn a_leak_is_watched_on_after_its_holder_was_not_known_for_minutes() {
    let mut world = World::new().await;
    let is_one = |it: &Live| &*it.node == "node-1" && !it.key.id.starts_with("GPU");
    world
        .lives
        .retain(|it| is_one(it) || is_gpu(it, "node-1", 0));
    let id = world.one(1_300, (Family::Leak, true), |live| {
        held(live);
        grows(live);
    });
    let still = world.one(35, (Family::Leak, false), |live| {
        unheld(live);
        grows(live);
    });
    assert_eq!(still, id);
    for ticks in [2, 35] {
        let again = world.one(ticks, (Family::Leak, true), |live| {
            held(live);
            grows(live);
        });
        assert_eq!(again, id);
    }
}

#[tokio::test]
async fn a_gpu_hotter_than_those_of_its_job_is_not_over_while_it_is_not_known_which_those_are() {
    let mut world = World::new().await;
    let id = world.one(6, (Family::Heat, true), |live| {
        held(live);
        hot(live);
    });
    assert_eq!(world.one(10, (Family::Heat, false), unheld), id);
    assert_eq!(world.one(2, (Family::Heat, true), held), id);
    world.ticks(8, |live| {
        if live.key.kind == ResourceKind::Gpu {
            set(live, &gpu::TEMPERATURE, 60.0);
        }
    });
    assert_eq!(world.open(), []);
}
