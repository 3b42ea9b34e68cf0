//! What the live view takes.

use super::*;
use crate::fleet::fold::GROWS_BY;

#[test]
fn there_is_hardly_more_room_for_readings_than_there_are() {
    let fleet = fleet();
    let is_gauge = |it: &Metric| it.kind == catalog::Kind::Gauge && it.part.is_none();
    let gauges = gpu::ALL.iter().copied().filter(is_gauge);
    let points: Vec<_> = gauges.map(|it| (it, None, watts(1.0))).collect();
    for (seq, many) in (1..).zip(1..=points.len()) {
        let mut tick = sent(seq, T + seq as i64 * 10);
        tick.points = points[..many].to_vec();
        folded(tick.offer(&fleet));
        let room = fleet.look(&key(), |it| (it.values.len(), it.values.capacity()));
        let (values, room) = room.expect("it is live");
        assert_eq!(values, many);
        assert!(room < many + GROWS_BY, "{room} for {many}");
    }
}

#[test]
fn the_greatest_sample_is_that_of_the_newest_tick_and_goes_with_it() {
    let fleet = fleet();
    for (seq, max) in (1..).zip([None, Some(310.0), Some(305.0), None]) {
        let mut tick = sent(seq, T + seq as i64 * 10);
        tick.points = vec![(gpu::POWER, None, PointValue::Gauge { value: 300.0, max })];
        folded(tick.offer(&fleet));
        let live = fleet.get(&key()).expect("it is live");
        let power = live.value(gpu::POWER.id).expect("it was told");
        assert_eq!(power.max.as_deref().copied(), max);
    }
}
