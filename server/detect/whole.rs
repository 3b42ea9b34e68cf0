//! When a card was last made whole, by its readings and by events: a reset for which its agent was stopped is told by
//! no event.
//!
//! Method: the energy counter begins anew with the card and with its driver; the driver asks for nothing any more after
//! it asked for something; or it has another version. That a card works says nothing of it.
//!
//! Limits: 12 bytes a GPU; times to the millisecond. A counter begins anew where it reads below half of what it did: a
//! reader that comes in another's place may be some readings behind it. What happened while no server ran is known by
//! events alone.

use gpufleet_telemetry::catalog::gpu;
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::time::Timestamp;

use super::watch::reading;
use crate::fleet::Live;

/// What is kept of one GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Whole {
    energy_joules: f32,
    /// Whether the driver asks for something.
    is_asked: bool,
    at: Moment,
}

/// A time to the millisecond, since 1970, the highest part first; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Moment([u16; 3]);

const _: () = assert!(size_of::<Whole>() <= 12);

impl Moment {
    fn of(at: Timestamp) -> Self {
        let millis = at.millis().max(0);
        Self([(millis >> 32) as u16, (millis >> 16) as u16, millis as u16])
    }

    fn timestamp(self) -> Option<Timestamp> {
        let parts = self.0.iter();
        let millis = parts.fold(0_i64, |sum, it| (sum << 16) | i64::from(*it));
        (millis > 0).then(|| Timestamp::from_millis(millis))
    }
}

impl Whole {
    /// Takes in what is live; when it was last made whole.
    pub(super) fn read(&mut self, live: &Live) -> Option<Timestamp> {
        if let Some((joules, at)) = reading(live, &gpu::ENERGY) {
            if joules < f64::from(self.energy_joules) / 2.0 {
                self.made_whole(at);
            }
            self.energy_joules = joules as f32;
        }
        if let Some((code, at)) = reading(live, &gpu::RECOVERY_ACTION) {
            let is_asked = code > 0.0;
            if std::mem::replace(&mut self.is_asked, is_asked) && !is_asked {
                self.made_whole(at);
            }
        }
        self.at.timestamp().max(live.told.whole_at)
    }

    /// Takes in that its resource says something else than before.
    pub(super) fn described(&mut self, before: &Resource, live: &Live) {
        let version = |of: &Resource| {
            let version = of.attribute(attribute::DRIVER_VERSION);
            version.filter(|it| !it.is_empty()).map(str::to_owned)
        };
        let versions = version(before).zip(version(&live.resource));
        if versions.is_some_and(|(before, now)| before != now) {
            self.made_whole(live.last_point);
        }
    }

    /// It was made whole at this moment, or later.
    fn made_whole(&mut self, at: Timestamp) {
        self.at = self.at.max(Moment::of(at));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::catalog::Metric;
    use gpufleet_telemetry::identity::Origin;
    use gpufleet_telemetry::time::NANOS_PER_SECOND;

    use super::*;
    use crate::fleet::LiveValue;
    use crate::view::fixture::{self, Does, NOW};

    fn at(seconds: i64) -> Timestamp {
        NOW.shifted(seconds * NANOS_PER_SECOND)
    }

    /// A GPU that read this, so many seconds later.
    fn live(metric: &Metric, value: f64, seconds: i64) -> Live {
        let mut live = fixture::gpu("prod", "node-1", 0, Does::Work, Origin::Live);
        live.last_point = at(seconds);
        live.values = vec![LiveValue {
            metric: metric.id,
            part: None,
            reading: Ok(value),
            max: None,
            at: at(seconds),
        }];
        live
    }

    #[test]
    fn a_counter_that_begins_anew_tells_of_a_reset_and_one_that_is_a_little_behind_does_not() {
        let mut whole = Whole::default();
        let mut read = |joules: f64, seconds| whole.read(&live(&gpu::ENERGY, joules, seconds));
        assert_eq!(read(9e9, 0), None, "nobody knows what it was before");
        assert_eq!(read(9e9 - 40_000.0, 10), None);
        assert_eq!(read(9.1e9, 20), None);
        assert_eq!(read(500.0, 30), Some(at(30)));
        assert_eq!(read(4_000.0, 40), Some(at(30)));
    }

    #[test]
    fn a_time_is_kept_to_the_millisecond_and_none_is_none() {
        assert_eq!(Whole::default().at.timestamp(), None);
        for at in [
            NOW,
            NOW.shifted(1_999_999),
            Timestamp::from_seconds(1 << 32),
        ] {
            let expected = Timestamp::from_millis(at.millis());
            assert_eq!(Moment::of(at).timestamp(), Some(expected));
        }
        let [early, late] = [255, 256].map(|it| Moment::of(Timestamp::from_millis(it)));
        assert!(early < late, "in the order of time");
    }

    #[test]
    fn a_driver_that_asks_for_nothing_any_more_says_so_and_one_that_never_asked_says_nothing() {
        let mut whole = Whole::default();
        let mut read = |code: f64, seconds| {
            let live = live(&gpu::RECOVERY_ACTION, code, seconds);
            whole.read(&live)
        };
        let told = [(0.0, 0), (1.0, 60), (4.0, 120)].map(|(code, seconds)| read(code, seconds));
        assert_eq!(told, [None; 3]);
        assert_eq!(read(0.0, 180), Some(at(180)));
        assert_eq!(read(0.0, 240), Some(at(180)));
    }

    #[test]
    fn a_driver_of_another_version_was_loaded_anew_and_events_say_it_too() {
        let mut whole = Whole::default();
        let of = |version: &str, seconds: i64| {
            let mut live = live(&gpu::POWER, 300.0, seconds);
            let mut resource = Resource::clone(&live.resource);
            resource.attributes.remove(attribute::DRIVER_VERSION);
            live.resource = resource.with(attribute::DRIVER_VERSION, version).into();
            live
        };
        let first = of("570.1", 0);
        whole.described(&first.resource, &of("", 10));
        whole.described(&first.resource, &of("570.1", 20));
        assert_eq!(whole.read(&first), None);
        whole.described(&first.resource, &of("580.2", 30));
        let mut told = of("580.2", 40);
        assert_eq!(whole.read(&told), Some(at(30)));
        told.told.whole_at = Some(at(35));
        assert_eq!(whole.read(&told), Some(at(35)));
    }
}
