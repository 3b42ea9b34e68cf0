//! Runs whose ranks compute on shares of cards: they cost their parts of them, and what breaks is the card.

use super::*;
use crate::detect::tests::breaks;
use crate::detect::tests::shares::share;

/// What 16 ranks on a seventh of a card each have, thousandths of a GPU.
const ALL: u64 = 16 * 143;

/// A run of which four ranks each compute on shares of one card.
async fn on_shares() -> Training {
    let mut training = Training::without_steps().await;
    for rank in 0..RANKS {
        let node = if rank < 8 { "node-1" } else { "node-2" };
        let share = share(&format!("MIG-{rank}"), node, rank % 8 / 4);
        training.world.lives.push(share);
    }
    training.says = Some(Box::new(|rank, live| {
        let resource = (*live.resource).clone();
        let id = format!("MIG-{rank}");
        live.resource = resource.with(attribute::GPU_ID, id).into();
    }));
    training.ticks(6, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
    training
}

#[tokio::test]
async fn a_slow_rank_on_a_share_is_told_at_its_card_and_costs_the_parts_of_the_cards_that_wait() {
    let mut training = on_shares().await;
    training.ticks(5, slow(5), |_| {}).await;
    let told = training.one();
    assert_eq!((told.family, told.place.rank), (Family::Straggler, Some(5)));
    assert_eq!(told.place.gpu.as_deref(), Some("GPU-prod-node-1-0001"));
    // About a fifth of all of it, as of whole GPUs.
    let lost = told.losing.milli_gpus;
    assert!((3_000 / 7..3_600 / 7).contains(&lost), "{lost}");
    assert_eq!(
        told.losing.nano_usd_per_hour(),
        Some(i64::try_from(lost).expect("small") * 36_000_000)
    );
}

#[tokio::test]
async fn a_run_that_stands_because_the_card_of_a_share_broke_is_one_incident_of_that_card() {
    let mut training = on_shares().await;
    let at = training.world.hand.now();
    let stands = |rank: u32| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (!(8..12).contains(&rank)).then_some(150.0),
        ..WELL
    };
    let broken = |live: &mut Live| breaks("node-2", 0, at)(live);
    training.ticks(15, stands, broken).await;
    let told = training.one();
    assert_eq!(told.family, Family::GpuFault);
    assert_eq!(told.place.gpu.as_deref(), Some("GPU-prod-node-2-0000"));
    assert_eq!(told.losing.milli_gpus, ALL, "all of the run stands");
    assert!(told.losing.nano_usd_per_hour().is_some());
}

#[tokio::test]
async fn cards_that_are_cut_and_rest_do_not_show_that_nothing_computes_on_their_shares() {
    let mut training = on_shares().await;
    training.says = Some(Box::new(|rank, live| {
        let resource = (*live.resource).clone();
        let id = format!("MIG-{rank}");
        live.resource = resource.with(attribute::GPU_ID, id).into();
        let told = [
            training::COLLECTIVES_IN_FLIGHT.id,
            training::COLLECTIVE_OLDEST_AGE.id,
        ];
        live.values.retain(|it| !told.contains(&it.metric));
    }));
    let still = |_| Does {
        busy_ms: None,
        phase: 5.0,
        ..WELL
    };
    let rests = |live: &mut Live| {
        if live.key.kind == ResourceKind::Gpu {
            live.bits.active = 0;
            set(live, &gpu::TENSOR_ACTIVE, 0.0);
        }
    };
    training.ticks(15, still, rests).await;
    assert_eq!(training.world.open(), []);
}
