//! What a client's numbers and texts must be like; everything else is refused by name.

use crate::cell::Torn;

use super::Refused;

/// No client wrote before 2024.
const EARLIEST_NS: i64 = 1_704_067_200 * 1_000_000_000;

/// How far ahead of the agent's clock a client's may be: it is the same clock, read a moment later,
/// unless somebody sets it back meanwhile.
const AHEAD_NS: i64 = 60 * 1_000_000_000;

/// Longest single thing: no step, collective or checkpoint takes a week.
const LONGEST_NS: u64 = 7 * 86_400 * 1_000_000_000;

/// Farthest deadline, ten years ahead.
const FARTHEST_NS: i64 = 3_653 * 86_400 * 1_000_000_000;

/// Most FLOPs of one step: a thousand times the largest training step of today.
const MOST_FLOPS: f64 = 1e30;

/// Why something a client wrote is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It was being written whenever it was looked at.
    Torn,
    /// A time before 2024 or in the future.
    Time,
    /// A duration of more than a week.
    Duration,
    /// Parts that are longer than the whole.
    Parts,
    /// A number that cannot be: a rank past the world's end, negative FLOPs.
    Number,
    /// A number that stands for no word this reader knows.
    Word,
    /// A text that is not clean UTF-8; it is kept, cleaned.
    Text,
}

impl Reason {
    /// As a label.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Torn => "torn",
            Self::Time => "time",
            Self::Duration => "duration",
            Self::Parts => "parts",
            Self::Number => "number",
            Self::Word => "word",
            Self::Text => "text",
        }
    }
}

/// Checks one snapshot, and keeps what was refused.
pub(super) struct Check {
    now: i64,
    pub(super) refused: Refused,
}

impl Check {
    pub(super) const fn new(now: i64) -> Self {
        Self {
            now,
            refused: Refused::new(),
        }
    }

    /// Counts a refusal.
    pub(super) fn refuse(&mut self, section: &'static str, reason: Reason) {
        *self.refused.entry((section, reason)).or_default() += 1;
    }

    /// The value, unless it is to be refused.
    pub(super) fn only_if<T>(
        &mut self,
        is_good: bool,
        section: &'static str,
        reason: Reason,
        value: T,
    ) -> Option<T> {
        if !is_good {
            self.refuse(section, reason);
        }
        is_good.then_some(value)
    }

    /// A section that was copied whole.
    pub(super) fn whole<T>(
        &mut self,
        section: &'static str,
        copied: Result<Option<T>, Torn>,
    ) -> Option<T> {
        if copied.is_err() {
            self.refuse(section, Reason::Torn);
        }
        copied.ok().flatten()
    }

    /// A time at which something happened.
    pub(super) fn time(&mut self, section: &'static str, at: i64) -> Option<i64> {
        let is_good = at >= EARLIEST_NS && at <= self.now.saturating_add(AHEAD_NS);
        self.only_if(is_good, section, Reason::Time, at)
    }

    /// A time that may lie ahead; 0 is not said.
    pub(super) fn deadline(&mut self, section: &'static str, at: i64) -> Option<i64> {
        let last = self.now.saturating_add(FARTHEST_NS);
        let is_good = at == 0 || (EARLIEST_NS..=last).contains(&at);
        self.only_if(is_good, section, Reason::Time, at)
    }

    /// How long one thing took.
    pub(super) fn duration(&mut self, section: &'static str, duration_ns: u64) -> Option<u64> {
        let is_good = duration_ns <= LONGEST_NS;
        self.only_if(is_good, section, Reason::Duration, duration_ns)
    }

    /// A count of FLOPs; 0 is not said.
    pub(super) fn flops(&mut self, section: &'static str, flops: f64) -> Option<f64> {
        let is_good = (0.0..=MOST_FLOPS).contains(&flops);
        self.only_if(is_good, section, Reason::Number, flops)
    }

    /// A sum of FLOPs.
    pub(super) fn flops_in_all(&mut self, section: &'static str, flops: f64) -> Option<f64> {
        let is_good = flops >= 0.0 && flops.is_finite();
        self.only_if(is_good, section, Reason::Number, flops)
    }

    /// A text without control characters; `keep` says which of those stay.
    pub(super) fn text(
        &mut self,
        section: &'static str,
        bytes: &[u8],
        keep: impl Fn(char) -> bool,
    ) -> String {
        let text = String::from_utf8_lossy(bytes);
        let clean = text.replace(|it: char| is_unwanted(it) && !keep(it), "");
        if clean.as_bytes() != bytes {
            self.refuse(section, Reason::Text);
        }
        clean
    }
}

/// Control characters, and those that turn the direction of the text around them.
fn is_unwanted(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = EARLIEST_NS + 1_000_000_000;

    #[test]
    fn times_that_cannot_be_are_refused() {
        let check = |at: i64, expected: bool| {
            let mut check = Check::new(NOW);
            assert_eq!(check.time("t", at).is_some(), expected, "{at}");
            assert_eq!(check.refused.is_empty(), expected);
        };
        check(NOW, true);
        check(EARLIEST_NS - 1, false);
        check(NOW + AHEAD_NS, true);
        check(NOW + AHEAD_NS + 1, false);
        for at in [0, -1, i64::MIN, i64::MAX] {
            check(at, false);
        }
    }

    #[test]
    fn flops_that_cannot_be_are_refused() {
        let good = |flops: f64| Check::new(NOW).flops("f", flops).is_some();
        assert!(good(0.0) && good(1e18));
        assert!(!good(-1.0) && !good(f64::NAN) && !good(f64::INFINITY) && !good(1e31));
    }

    #[test]
    fn a_text_is_cleaned_and_said_to_have_been() {
        let check = |bytes: &[u8], expected: &str, is_clean: bool| {
            let mut check = Check::new(NOW);
            assert_eq!(check.text("n", bytes, |it| it == '\n'), expected);
            assert_eq!(check.refused.is_empty(), is_clean, "{bytes:?}");
        };
        check("größer\n".as_bytes(), "größer\n", true);
        check(b"a\x1b[31mb\r", "a[31mb", false);
        check(b"a\xffb", "a\u{fffd}b", false);
        check("a\u{202e}b".as_bytes(), "ab", false);
    }
}
