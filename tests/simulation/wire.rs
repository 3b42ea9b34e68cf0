//! A simulated network: messages are late, lost and doubled, each with a named probability.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufleet_spool::sim::Random;

/// What the network does to a message.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// One message in so many is lost; 0 means none.
    pub lost_one_in: u64,
    /// One message in so many arrives twice; 0 means none.
    pub doubled_one_in: u64,
    /// Longest time under way.
    pub delay: Duration,
}

/// Messages under way.
#[derive(Debug)]
pub struct Wire<M> {
    under_way: BTreeMap<(Duration, u64), M>,
    count: u64,
}

impl Weather {
    /// Nothing is lost, all is quick.
    pub const FAIR: Self = Self {
        lost_one_in: 0,
        doubled_one_in: 0,
        delay: Duration::from_millis(20),
    };

    /// A bad day, chosen by the seed.
    pub fn bad(random: &mut Random) -> Self {
        Self {
            lost_one_in: 3 + random.below(30),
            doubled_one_in: 5 + random.below(30),
            delay: Duration::from_millis(1 + random.below(3_000)),
        }
    }
}

impl<M: Clone> Wire<M> {
    /// Sends a message into the weather.
    pub fn send(&mut self, message: M, now: Duration, weather: Weather, random: &mut Random) {
        if weather.lost_one_in > 0 && random.one_in(weather.lost_one_in) {
            return;
        }
        let copies = if weather.doubled_one_in > 0 && random.one_in(weather.doubled_one_in) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let most = u64::try_from(weather.delay.as_millis()).unwrap_or(u64::MAX);
            let delay = Duration::from_millis(random.below(most + 1));
            self.count += 1;
            self.under_way
                .insert((now + delay, self.count), message.clone());
        }
    }

    /// What has arrived by now, in the order of arrival.
    pub fn arrived(&mut self, now: Duration) -> Vec<M> {
        let later = self.under_way.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.under_way, later)
            .into_values()
            .collect()
    }

    /// Cuts connections: what is under way and matches is gone.
    pub fn cut(&mut self, is_cut: impl Fn(&M) -> bool) {
        self.under_way.retain(|_, message| !is_cut(message));
    }
}

impl<M> Default for Wire<M> {
    fn default() -> Self {
        Self {
            under_way: BTreeMap::new(),
            count: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_weather_delivers_everything_once_and_bad_weather_does_not() {
        let mut random = Random::new(3);
        let bad = Weather {
            lost_one_in: 4,
            doubled_one_in: 4,
            delay: Duration::from_secs(3),
        };
        for (weather, is_fair) in [(Weather::FAIR, true), (bad, false)] {
            let mut wire = Wire::default();
            for number in 0..1_000 {
                wire.send(number, Duration::ZERO, weather, &mut random);
            }
            let mut arrived = wire.arrived(weather.delay);
            arrived.sort_unstable();
            assert_eq!(arrived == (0..1_000).collect::<Vec<_>>(), is_fair);
            assert!(arrived.len() > 700);
        }
    }
}
