//! A run that became slower: what changed with it.

use super::*;

/// What happens to all ranks and machines of the run.
#[derive(Clone, Copy)]
struct Trouble {
    cause: Cause,
    data_wait_ms: u64,
    collectives_ms: u64,
    change: fn(&mut Live),
}

fn machine(live: &mut Live, [cpu, memory, io, steal]: [f64; 4]) {
    if live.key.kind == ResourceKind::Node {
        set(live, &node::PSI_CPU, cpu);
        set(live, &node::PSI_MEMORY_SOME, memory);
        set(live, &node::PSI_IO_SOME, io);
        set(live, &node::CPU_STEAL, steal);
    }
}

fn clocks(live: &mut Live, clock: f64, heat: f64) {
    if live.key.id.starts_with("GPU") {
        set(live, &gpu::SM_CLOCK, clock);
        grow(live, &gpu::THROTTLE_THERMAL, heat);
        grow(live, &gpu::THROTTLE_BOARD_LIMIT, 0.0);
        grow(live, &gpu::THROTTLE_POWER, 0.0);
    }
}

fn well(live: &mut Live) {
    machine(live, [0.02, 0.0, 0.03, 0.0]);
    clocks(live, 1.98e9, 0.0);
}

impl Training {
    /// So many ticks of steps of which all ranks wait so much longer than before.
    async fn longer(&mut self, count: usize, of: Trouble) {
        self.longer_ms = of.data_wait_ms + of.collectives_ms;
        let does = move |_| Does {
            data_wait_ms: 20 + of.data_wait_ms,
            ..WELL
        };
        self.ticks(count, does, of.change).await;
    }
}

#[tokio::test]
async fn a_run_that_became_slower_says_by_its_waits_and_machines_why() {
    let quiet = Trouble {
        cause: Cause::Unknown,
        data_wait_ms: 0,
        collectives_ms: 0,
        change: well,
    };
    let troubles = [
        Trouble {
            cause: Cause::Storage,
            data_wait_ms: 150,
            change: |live| {
                clocks(live, 1.98e9, 0.0);
                machine(live, [0.02, 0.0, 0.5, 0.0]);
            },
            ..quiet
        },
        Trouble {
            cause: Cause::Data,
            data_wait_ms: 150,
            ..quiet
        },
        Trouble {
            cause: Cause::HostCpu,
            data_wait_ms: 100,
            change: |live| {
                clocks(live, 1.98e9, 0.0);
                machine(live, [0.02, 0.0, 0.03, 0.3]);
            },
            ..quiet
        },
        Trouble {
            cause: Cause::Network,
            collectives_ms: 150,
            ..quiet
        },
    ];
    for trouble in troubles {
        let mut training = Training::without_steps().await;
        training.ticks(30, |_| WELL, well).await;
        assert_eq!(training.world.open(), [], "{:?}", trouble.cause);
        let began = training.world.hand.now();
        training.longer(20, trouble).await;
        let told = training.one();
        let late = told.since.since(began).abs();
        assert!(
            late <= 10 * NANOS_PER_SECOND,
            "not only since it is sure: {late}"
        );
        assert_eq!((told.family, told.cause), (Family::Slower, trouble.cause));
        let shown = told.evidence[0].readings.iter();
        let changed = shown.filter(|it| it.unit == "ratio");
        assert!(
            changed.clone().count() > 0 && changed.clone().all(|it| Some(it.value) > it.usual),
            "{:?}",
            told.evidence
        );
    }
}

#[tokio::test]
async fn a_run_that_became_slower_for_nothing_that_is_read_says_what_is_not_read() {
    let mut training = Training::without_steps().await;
    training.ticks(30, |_| WELL, well).await;
    let nothing = |_: &mut Live| {};
    // They compute longer, all of them.
    training.longer_ms = 150;
    let does = |_| Does {
        busy_ms: Some(850),
        ..WELL
    };
    training.ticks(12, does, well).await;
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Slower, Cause::Unknown));
    assert!(
        told.action.contains("Nothing that is read"),
        "{}",
        told.action
    );
    let mut training = Training::without_steps().await;
    training.ticks(30, |_| WELL, nothing).await;
    training.longer_ms = 150;
    training.ticks(12, does, nothing).await;
    let told = training.one();
    assert_eq!((told.family, told.cause), (Family::Slower, Cause::Unknown));
    assert!(told.action.contains("CPU time stolen"), "{}", told.action);
}

/// Ranks that say how many they are, and where they sit.
fn seated(ranks: u32, mesh: impl Fn(u32) -> String + 'static) -> Option<Says> {
    Some(Box::new(move |rank, live| {
        let resource = (*live.resource).clone();
        live.resource = resource
            .with(attribute::WORLD, ranks.to_string())
            .with(attribute::MESH, mesh(rank))
            .into();
    }))
}

#[tokio::test]
async fn a_run_whose_ranks_have_no_peers_and_that_became_slower_is_an_incident_with_its_price() {
    // One rank, and one on each stage.
    for ranks in [1, RANKS] {
        let mut training = Training::without_steps().await;
        training.says = seated(ranks, move |rank| format!("dp=0/1 pp={rank}/{ranks}"));
        let does = move |busy_ms: u64| {
            move |rank: u32| Does {
                is_heard: rank < ranks,
                busy_ms: Some(busy_ms),
                ..WELL
            }
        };
        training.ticks(10, does(700), |_| {}).await;
        assert_eq!(training.world.open(), [], "{ranks} ranks");
        training.longer_ms = 150;
        training.ticks(6, does(850), |_| {}).await;
        let told = training.one();
        assert_eq!((told.family, told.place.rank), (Family::Slower, None));
        // 150 of each 1,150 ms of all its GPUs.
        let lost = told.losing.milli_gpus / u64::from(ranks);
        assert!((125..135).contains(&lost), "{ranks} ranks: {lost}");
        assert!(told.losing.nano_usd_per_hour().is_some());
        training.longer_ms = 0;
        training.ticks(14, does(700), |_| {}).await;
        assert_eq!(training.world.open(), [], "{ranks} ranks");
    }
}

#[tokio::test]
async fn a_run_in_which_many_are_slow_and_whose_stages_are_not_told_is_slower_and_names_nobody() {
    let mut training = Training::without_steps().await;
    training.says = seated(RANKS, |rank| format!("dp={rank}/{RANKS}"));
    training.ticks(10, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
    training.longer_ms = 200;
    let slow = |rank: u32| Does {
        busy_ms: Some(if (8..12).contains(&rank) { 910 } else { 700 }),
        ..WELL
    };
    training.ticks(6, slow, |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Slower, None));
    let lost = told.losing.milli_gpus;
    assert!((2_600..2_750).contains(&lost), "a sixth of 16 GPUs: {lost}");
}

#[tokio::test]
async fn of_two_slow_ranks_the_slower_one_has_what_the_run_lost_and_it_is_counted_once() {
    let mut training = Training::without_steps().await;
    training.ticks(10, |_| WELL, well).await;
    training.longer_ms = 350;
    let slow = |rank: u32| Does {
        busy_ms: Some(match rank {
            3 => 910,
            12 => 1_050,
            _ => 700,
        }),
        ..WELL
    };
    training.ticks(20, slow, well).await;
    let open = training.world.open();
    let losing = |rank: u32| {
        let of_rank = open.iter().find(|it| it.place.rank == Some(rank));
        of_rank.map(|it| it.losing.milli_gpus)
    };
    assert_eq!(losing(3), Some(0), "without it they wait for the other");
    // 350 of each 1,350 ms of 16 GPUs.
    let slower = losing(12).expect("it makes the others wait");
    assert!(slower.abs_diff(4_148) < 100, "{slower}");
    let all: u64 = open.iter().map(|it| it.losing.milli_gpus).sum();
    assert_eq!(all, slower, "{open:#?}");
}

#[tokio::test]
async fn a_run_that_became_slower_twice_costs_what_both_take_until_it_is_as_fast_as_before_both() {
    let mut training = Training::without_steps().await;
    training.ticks(10, |_| WELL, well).await;
    let mut first = None;
    // By how much longer than a second a step takes, and what 16 GPUs lose of it.
    for (longer_ms, lost) in [(200, 2_667), (320, 3_879), (200, 2_667)] {
        training.longer_ms = longer_ms;
        training.ticks(8, |_| WELL, well).await;
        let told = training.one();
        assert_eq!(*first.get_or_insert(told.id), told.id, "one of the run");
        let losing = told.losing.milli_gpus;
        assert!(losing.abs_diff(lost) < 20, "{longer_ms} ms: {losing}");
    }
    training.longer_ms = 0;
    training.ticks(14, |_| WELL, well).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_whose_rises_come_back_costs_nothing_between_them_and_stays_one_incident() {
    let mut training = Training::without_steps().await;
    training.ticks(10, |_| WELL, well).await;
    training.longer_ms = 200;
    training.ticks(3, |_| WELL, well).await;
    let before = training.one();
    assert!(before.losing.milli_gpus > 0);
    let id = RankId::parse(&format!("{RUN}/0")).expect("an id");
    let key = RunKey::of(&"prod".into(), &id);
    let runs = training.world.app.fleet.runs();
    let judged = runs.look(&key, |run| run.judged.clone()).flatten();
    let mut judged = judged.expect("it was judged");
    let slower = judged.slower.as_mut().expect("it became slower");
    (slower.every, slower.rests) = (Some(1_000), true);
    runs.judge(&key, Some(judged));
    training.world.ticks(1, well);
    let told = training.one();
    assert_eq!((told.id, told.losing.milli_gpus), (before.id, 0));
}
