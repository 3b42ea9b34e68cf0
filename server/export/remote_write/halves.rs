//! A message that is refused for what is in it goes again in halves, so that one bad sample does not take the others of
//! its message with it: Prometheus takes nothing of a message in which one sample is out of order.
//!
//! Limit: [`MOST_SPLITS`]; what is refused after them is lost as it is.

use std::collections::VecDeque;
use std::ops::Range;

/// How often messages of a piece are parted: eleven times to find one sample of 2,000, with some for others; 31
/// messages in all.
pub const MOST_SPLITS: u32 = 15;

/// What of a piece is still to be sent, and what is refused of the rest.
#[derive(Debug, Default)]
pub struct Halves {
    /// Parts of it, the next one first: the largest, so that parting gets as far with each bad sample. None before it
    /// was sent once.
    parts: Option<VecDeque<Range<usize>>>,
    splits: u32,
    /// Samples that are refused.
    pub refused: u64,
    /// Why, of the first.
    pub why: String,
}

impl Halves {
    /// The samples to send next, of so many; none when all are through.
    pub fn next(&mut self, count: usize) -> Option<Range<usize>> {
        let whole = || std::iter::once(0..count).collect();
        self.parts.get_or_insert_with(whole).front().cloned()
    }

    /// Hears that those were taken.
    pub fn taken(&mut self) {
        self.pop();
    }

    /// Hears that those were refused; where that is for what is in them they go again in halves.
    pub fn refused(&mut self, why: String, is_for_samples: bool) {
        let Some(part) = self.pop() else { return };
        if is_for_samples && part.len() > 1 && self.splits < MOST_SPLITS {
            self.splits += 1;
            let middle = part.start + part.len() / 2;
            let halves = [part.start..middle, middle..part.end];
            self.parts.get_or_insert_default().extend(halves);
            return;
        }
        if self.refused == 0 {
            self.why = why;
        }
        self.refused += part.len() as u64;
    }

    fn pop(&mut self) -> Option<Range<usize>> {
        self.parts.as_mut()?.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many messages a piece of so many samples takes where those are bad, and how many samples are refused.
    fn sent(count: usize, is_bad: impl Fn(usize) -> bool, is_for_samples: bool) -> (u32, u64) {
        let (mut halves, mut messages) = (Halves::default(), 0);
        while let Some(mut part) = halves.next(count) {
            messages += 1;
            match part.any(&is_bad) {
                true => halves.refused(format!("message {messages}"), is_for_samples),
                false => halves.taken(),
            }
        }
        assert_eq!(halves.why.is_empty(), halves.refused == 0, "{halves:?}");
        (messages, halves.refused)
    }

    #[test]
    fn one_bad_sample_is_found_and_lost_alone_wherever_it_is() {
        assert_eq!(sent(2_000, |_| false, true), (1, 0));
        for bad in [0, 1, 999, 1_000, 1_999] {
            let (messages, refused) = sent(2_000, |it| it == bad, true);
            assert_eq!(refused, 1, "{bad}");
            assert!(messages <= 23, "{bad}: {messages}");
        }
        assert_eq!(sent(1, |_| true, true), (1, 1));
    }

    #[test]
    fn what_many_bad_samples_cost_is_bounded_and_each_of_them_takes_few_others_with_it() {
        assert_eq!(sent(2_000, |_| true, true), (31, 2_000));
        let (messages, refused) = sent(2_000, |it| it == 3 || it == 1_700, true);
        assert!(messages <= 31 && refused <= 32, "{messages}, {refused}");
    }

    #[test]
    fn a_message_that_is_refused_for_another_reason_is_not_parted() {
        assert_eq!(sent(2_000, |_| true, false), (1, 2_000));
    }
}
