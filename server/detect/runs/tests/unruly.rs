//! Reports as they come when something is wrong with the reporting: clocks that are off, steps told again and out of
//! order, ranks that come and go, numbers that begin anew. Nobody is accused for it, and who is slow is found in it.

use super::*;

/// Who is accused, and of what.
fn accused(training: &Training) -> Vec<(Family, Option<u32>)> {
    let open = training.world.open().into_iter();
    open.map(|it| (it.family, it.place.rank)).collect()
}

/// The clocks of the second node's agents are off by so many seconds, for GPUs and ranks alike.
fn off(seconds: i64) -> impl Fn(&mut Live) + Copy {
    move |live| {
        if &*live.node == "node-2" {
            let by = seconds * NANOS_PER_SECOND;
            live.last_point = live.last_point.shifted(by);
            live.bits_start = live.bits_start.shifted(by);
            live.values
                .iter_mut()
                .for_each(|it| it.at = it.at.shifted(by));
        }
    }
}

#[tokio::test]
async fn clocks_that_are_off_by_seconds_to_minutes_accuse_nobody_and_hide_nobody() {
    for seconds in [4, 45, 180, -4, -45, -180] {
        let mut training = Training::without_steps().await;
        let ahead = |rank: u32| Does {
            ahead_s: if rank < 8 { 0 } else { seconds },
            ..WELL
        };
        training.ticks(40, ahead, off(seconds)).await;
        assert_eq!(accused(&training), [], "off by {seconds} s");
        let slow = |rank: u32| Does {
            busy_ms: Some(if rank == 11 { 910 } else { 700 }),
            ..ahead(rank)
        };
        training.ticks(6, slow, off(seconds)).await;
        let expected = [(Family::Straggler, Some(11))];
        assert_eq!(accused(&training), expected, "off by {seconds} s");
    }
}

#[tokio::test]
async fn steps_that_are_told_again_and_out_of_order_accuse_nobody_and_hide_nobody() {
    let mut training = Training::new().await;
    let again = |rank: u32| Does {
        again: rank.is_multiple_of(3),
        ..WELL
    };
    training.ticks(30, again, |_| {}).await;
    assert_eq!(accused(&training), []);
    let slow = |rank: u32| Does {
        busy_ms: Some(if rank == 6 { 910 } else { 700 }),
        ..again(rank)
    };
    training.ticks(6, slow, |_| {}).await;
    assert_eq!(accused(&training), [(Family::Straggler, Some(6))]);
}

#[tokio::test]
async fn ranks_that_come_and_go_and_half_that_stay_away_accuse_nobody() {
    let mut training = Training::without_steps().await;
    let of = |is_there: fn(u32) -> bool| {
        move |rank: u32| Does {
            is_heard: is_there(rank),
            ..WELL
        }
    };
    let parts: [fn(u32) -> bool; 6] = [
        |rank| rank < 3,
        |rank| rank < 12,
        |rank| rank.is_multiple_of(2),
        |rank| rank >= 8,
        |_| true,
        |rank| rank < 8,
    ];
    for is_there in parts {
        training.ticks(10, of(is_there), |_| {}).await;
        assert_eq!(accused(&training), []);
    }
    training.ticks(30, of(|rank| rank < 8), |_| {}).await;
    assert_eq!(
        accused(&training),
        [],
        "half of them are missing for minutes"
    );
}

#[tokio::test]
async fn a_restart_that_begins_its_numbers_anew_accuses_nobody_and_hides_nobody() {
    let mut training = Training::new().await;
    for again in [0, 5, 40] {
        training.step = 20 + again;
        training.ticks(12, |_| WELL, |_| {}).await;
        assert_eq!(accused(&training), [], "from step {again}");
    }
    training.ticks(6, slow(4), |_| {}).await;
    assert_eq!(accused(&training), [(Family::Straggler, Some(4))]);
}

#[tokio::test]
async fn a_rank_that_is_slow_after_a_restart_is_so_since_then_and_not_since_before_the_crash() {
    let mut training = Training::new().await;
    training.ticks(12, |_| WELL, |_| {}).await;
    let crashed = |_: u32| Does {
        is_heard: false,
        ..WELL
    };
    let resumes_at = training.step - 80;
    training.ticks(120, crashed, |_| {}).await;
    assert_eq!(accused(&training), []);
    let restarted = training.world.hand.now();
    training.step = resumes_at;
    training.ticks(5, slow(4), |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(4)));
    assert!(told.since >= restarted, "{:?}", told.since);
    // 16 GPUs wait a fifth of the time since then, and not of the twenty minutes before.
    let lost = told.lost.gpu_seconds();
    assert!(lost < 16.0 * 50.0 / 4.0, "{lost}");
}

#[tokio::test]
async fn one_rank_and_ranks_that_are_all_slow_accuse_nobody() {
    let mut training = Training::without_steps().await;
    let alone = |rank: u32| Does {
        is_heard: rank == 0,
        busy_ms: Some(910),
        ..WELL
    };
    training.ticks(30, alone, |_| {}).await;
    assert_eq!(accused(&training), []);
    let mut training = Training::new().await;
    let all = |_: u32| Does {
        busy_ms: Some(950),
        ..WELL
    };
    training.ticks(30, all, |_| {}).await;
    assert_eq!(accused(&training), []);
}
