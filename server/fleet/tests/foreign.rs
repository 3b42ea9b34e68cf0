//! How often strangers send, who do not say it.

use super::*;

#[test]
fn how_often_a_stranger_sends_is_learnt_from_its_points_and_not_from_a_pause_or_a_start() {
    for (ends, expected_s) in [
        (&[0][..], 60),
        (&[0, 60, 120, 180], 60),
        (&[0, 10], 60),
        (&[0, 10, 20], 10),
        (&[0, 10, 20, 80, 140], 60),
        (&[0, 60, 120, 900], 60),
        (&[0, 60, 120, 900, 960], 60),
        (&[0, 60, 120, 135], 60),
        (&[0, 60, 120, 135, 195], 60),
        (&[0, 2, 4, 6], 10),
        (&[0, 600, 1_200, 1_800], 300),
    ] {
        let fleet = fleet();
        for (seq, end) in (1..).zip(ends) {
            // Each says that it measures since ten seconds ago.
            let mut foreign = sent(seq, T + end);
            foreign.agent = FOREIGN_AGENT.0.as_u128();
            folded(foreign.offer(&fleet));
        }
        let interval = fleet.get(&key()).expect("live").interval;
        assert_eq!(interval.as_secs(), expected_s, "{ends:?}");
    }
}

#[test]
fn who_tells_bits_of_seconds_says_with_them_how_long_its_tick_is() {
    let fleet = fleet();
    let mut foreign = sent(1, T + 10);
    foreign.agent = FOREIGN_AGENT.0.as_u128();
    let bits = PointValue::SecondBits(0x3ff);
    foreign.points.push((gpu::OBSERVED, None, bits));
    folded(foreign.offer(&fleet));
    let interval = fleet.get(&key()).expect("live").interval;
    assert_eq!(interval.as_secs(), 10);
}
