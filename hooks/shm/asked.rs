//! What an agent asks of the training process: one word, looked at after each step with one load.
//!
//! The word is 0, or the request's number over its steps (8 bits), with a mark once it is begun. The client's
//! thread writes requests, the thread that trains begins and ends them; neither waits for the other. A request
//! that was not begun goes with the agent that made it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::{ASK_NUMBER_BITS, Ask};

/// Bits of the steps.
const STEPS_BITS: u32 = 8;

/// The mark of a request that is begun.
const BEGUN: u64 = 1 << (ASK_NUMBER_BITS + STEPS_BITS);

/// What is asked for now.
#[derive(Debug, Default)]
pub struct Asked {
    word: AtomicU64,
    /// The number of the last that was ended: an agent that has not read so asks again.
    ended: AtomicU64,
}

impl Asked {
    /// Whether anything is asked for, or begun: one relaxed load.
    pub fn is_any(&self) -> bool {
        self.word.load(Ordering::Relaxed) != 0
    }

    /// Begins what is asked for; `None` where nothing is, or it is begun.
    pub fn begin(&self) -> Option<Ask> {
        let now = self.word.load(Ordering::Relaxed);
        if now == 0 || now & BEGUN != 0 {
            return None;
        }
        let begun = self.word.compare_exchange(
            now,
            now | BEGUN,
            Ordering::Relaxed,
            // It was withdrawn, or another took its place: that one after the next step.
            Ordering::Relaxed,
        );
        begun.ok().map(unpacked)
    }

    /// What was begun is over.
    pub fn end(&self) {
        let now = self.word.load(Ordering::Relaxed);
        if now & BEGUN != 0 {
            self.ended.store(unpacked(now).number, Ordering::Relaxed);
            self.word.store(0, Ordering::Release);
        }
    }

    /// An agent asks, or withdraws what it asked for. What is begun stays.
    pub(crate) fn take(&self, ask: Ask) {
        let next = |now: u64| {
            let is_over = self.ended.load(Ordering::Relaxed) == ask.number;
            match ask.steps {
                _ if now & BEGUN != 0 => None,
                0 => (now != 0 && unpacked(now).number == ask.number).then_some(0),
                _ => (!is_over).then(|| packed(ask)),
            }
        };
        // Nothing to change is no error.
        let _changed = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Acquire, next);
    }

    /// The agent is gone: what it asked for and was not begun is so, too.
    pub(crate) fn forget(&self) {
        let unless_begun = |now: u64| (now & BEGUN == 0).then_some(0);
        let _changed = self
            .word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, unless_begun);
    }
}

fn packed(ask: Ask) -> u64 {
    (ask.number << STEPS_BITS | ask.steps) & !BEGUN
}

fn unpacked(word: u64) -> Ask {
    Ask {
        number: (word & !BEGUN) >> STEPS_BITS,
        steps: word & ((1 << STEPS_BITS) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u64 = (1 << ASK_NUMBER_BITS) - 1;

    fn ask(number: u64, steps: u64) -> Ask {
        Ask { number, steps }
    }

    #[test]
    fn what_is_asked_for_is_begun_once_and_ended_once() {
        let asked = Asked::default();
        assert!(!asked.is_any());
        assert_eq!(asked.begin(), None);
        asked.take(ask(LARGEST, 10));
        assert!(asked.is_any());
        assert_eq!(asked.begin(), Some(ask(LARGEST, 10)));
        assert_eq!(asked.begin(), None, "it is begun");
        assert!(asked.is_any(), "its steps are counted");
        asked.end();
        assert!(!asked.is_any());
        asked.take(ask(LARGEST, 10));
        assert!(!asked.is_any(), "it was asked for again and is over");
        asked.take(ask(2, 3));
        assert_eq!(asked.begin(), Some(ask(2, 3)), "that is another one");
    }

    #[test]
    fn what_is_not_begun_can_be_withdrawn_and_goes_with_its_agent() {
        let asked = Asked::default();
        asked.take(ask(1, 3));
        asked.take(ask(2, 0));
        assert!(asked.is_any(), "that was another one");
        asked.take(ask(1, 0));
        assert!(!asked.is_any());
        asked.take(ask(1, 3));
        asked.forget();
        assert!(!asked.is_any());
        asked.take(ask(1, 3));
        assert_eq!(asked.begin(), Some(ask(1, 3)));
        asked.take(ask(1, 0));
        asked.forget();
        asked.take(ask(2, 5));
        assert!(asked.is_any(), "it goes on");
        asked.end();
        assert!(!asked.is_any(), "nothing took its place meanwhile");
    }
}
