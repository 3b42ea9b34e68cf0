//! Which cause holds over several looks at what is slow: one look reads what was so for seconds, and what is slow is so
//! for minutes.
//!
//! Method: the first look is told. Another cause takes its place that more than half of the last [`LOOKS`] name; unknown
//! is one of them, and gives way to a cause that half of them name.
//!
//! Limits: for each place that is blamed [`LOOKS`] bytes, and the readings of the newest look of each cause in them.

use std::collections::VecDeque;

use super::{Cause, Verdict};

/// Looks that are remembered: two minutes of ticks. A pressure of seconds is then no cause, and one that goes is told after
/// a minute.
pub const LOOKS: usize = 12;

/// The last looks at why one place is slow.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Looks {
    causes: VecDeque<Cause>,
    /// Of each of these causes the newest look that named it.
    newest: Vec<Verdict>,
    told: Cause,
}

impl Looks {
    /// Takes in a look; says what holds, with the readings of the newest look that says so.
    pub fn take(&mut self, look: Verdict) -> Verdict {
        if self.causes.len() >= LOOKS {
            self.causes.pop_front();
        }
        self.causes.push_back(look.cause());
        let causes = &self.causes;
        let is_other = |it: &Verdict| it.cause() != look.cause() && causes.contains(&it.cause());
        self.newest.retain(is_other);
        self.newest.push(look);
        self.tell();
        let told = self.newest.iter().find(|it| it.cause() == self.told);
        told.cloned().unwrap_or_default()
    }

    /// Another cause is told that most looks name.
    fn tell(&mut self) {
        let votes = |cause: Cause| self.causes.iter().filter(|it| **it == cause).count();
        // Of as many the newest.
        let named = self.newest.iter().map(Verdict::cause);
        let Some(most) = named.max_by_key(|it| votes(*it)) else {
            return;
        };
        let (own, all) = (votes(most) * 2, self.causes.len());
        let is_found = own == all && most.is_known() && !self.told.is_known();
        if own > all || is_found || votes(self.told) == 0 {
            self.told = most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::Explains;

    fn look(cause: Cause) -> Verdict {
        let explains = |cause| Explains {
            cause,
            part: 1.0,
            readings: Vec::new(),
        };
        Verdict(
            cause
                .is_known()
                .then(|| explains(cause))
                .into_iter()
                .collect(),
        )
    }

    /// What is told at the end of so many looks each.
    fn told(looks: &[(Cause, usize)]) -> Cause {
        let mut known = Looks::default();
        let mut told = Cause::Unknown;
        for (cause, count) in looks {
            for _ in 0..*count {
                told = known.take(look(*cause)).cause();
            }
        }
        assert!(known.causes.len() <= LOOKS && known.newest.len() <= LOOKS);
        told
    }

    #[test]
    fn the_first_look_is_told_until_most_looks_say_something_else() {
        use Cause::{Data, Heat, HostCpu, Unknown};
        let cases: [(&[(Cause, usize)], Cause); 11] = [
            (&[(Heat, 1)], Heat),
            (&[(HostCpu, 1), (Unknown, 1)], HostCpu),
            (&[(HostCpu, 1), (Unknown, 2)], Unknown),
            (&[(Unknown, 1), (Data, 1)], Data),
            (&[(Unknown, 8), (HostCpu, 1)], Unknown),
            (&[(Unknown, 8), (HostCpu, 1), (Unknown, 2)], Unknown),
            (&[(Heat, 30), (Data, 6)], Heat),
            (&[(Heat, 30), (Data, 7)], Data),
            (&[(Heat, 30), (Unknown, 6)], Heat),
            (&[(Heat, 30), (Unknown, 7)], Unknown),
            (&[(Unknown, 30), (Heat, 6)], Heat),
        ];
        for (looks, expected) in cases {
            assert_eq!(told(looks), expected, "{looks:?}");
        }
        // None has more than half, and what was told is named by no look any more.
        let mut looks = vec![(Heat, LOOKS)];
        looks.extend([(Data, 1), (HostCpu, 1)].repeat(LOOKS / 2));
        assert_eq!(told(&looks), HostCpu);
    }
}
