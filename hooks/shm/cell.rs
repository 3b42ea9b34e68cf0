//! The three ways words of the region are used together: seqlock, text, sum of doubles.
//!
//! Everything here works on atomics only and never waits: a writer that finds another in its section
//! gives up after [`WRITE_TRIES`], a reader that never finds it still after [`READ_TRIES`].

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::layout::Word;

/// How often a writer looks whether the section is free: it is another thread's for nanoseconds.
const WRITE_TRIES: usize = 256;

/// How often a reader copies a section that changes under it: a client that never stops writing
/// costs the agent so many copies and no more.
const READ_TRIES: usize = 64;

/// A section being written; it is whole again when this is dropped.
pub(crate) struct Writing<'a> {
    sequence: &'a Word,
    odd: u64,
}

/// Takes the section behind `sequence`; `None` when another thread does not let go of it.
pub(crate) fn write(sequence: &Word) -> Option<Writing<'_>> {
    for _ in 0..WRITE_TRIES {
        let even = sequence.load(Ordering::Relaxed);
        let odd = even.wrapping_add(1);
        let is_free = even & 1 == 0;
        if is_free
            && sequence
                .compare_exchange(even, odd, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            // No word of the section may be seen before the odd number.
            fence(Ordering::Release);
            return Some(Writing { sequence, odd });
        }
        spin_loop();
    }
    None
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.sequence
            .store(self.odd.wrapping_add(1), Ordering::Release);
    }
}

/// The section was being written whenever it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Torn;

/// A whole copy of the section behind `sequence`; `None` when it was never written.
pub(crate) fn read<T>(sequence: &Word, copy: impl Fn() -> T) -> Result<Option<T>, Torn> {
    for _ in 0..READ_TRIES {
        let before = sequence.load(Ordering::Acquire);
        if before == 0 {
            return Ok(None);
        }
        if before & 1 == 1 {
            spin_loop();
            continue;
        }
        let copied = copy();
        // Every word of the copy was read before the number is looked at again.
        fence(Ordering::Acquire);
        if sequence.load(Ordering::Relaxed) == before {
            return Ok(Some(copied));
        }
    }
    Err(Torn)
}

/// A word, for which order does not matter: its section's sequence or the reader's doubt keeps it.
pub(crate) fn set(word: &Word, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// The word.
pub(crate) fn get(word: &Word) -> u64 {
    word.load(Ordering::Relaxed)
}

/// The word as a signed number.
pub(crate) fn get_signed(word: &Word) -> i64 {
    get(word) as i64
}

/// The word as a double.
pub(crate) fn get_double(word: &Word) -> f64 {
    f64::from_bits(get(word))
}

/// Adds to a counter.
pub(crate) fn add(word: &Word, value: u64) {
    if value != 0 {
        word.fetch_add(value, Ordering::Relaxed);
    }
}

/// Adds to a sum of doubles.
pub(crate) fn add_double(word: &AtomicU64, value: f64) {
    if value == 0.0 {
        return;
    }
    let mut before = get(word);
    // Ends: whoever makes us try again has added its own.
    loop {
        let sum = (f64::from_bits(before) + value).to_bits();
        match word.compare_exchange_weak(before, sum, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

/// The start of `text` that fits into `bytes`, whole characters only.
pub(crate) fn fitting(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Writes a text, cut where it does not fit.
pub(crate) fn set_text(words: &[Word], text: &str) {
    let bytes = fitting(text, size_of_val(words)).as_bytes();
    for (index, word) in words.iter().enumerate() {
        let from = (index * size_of::<Word>()).min(bytes.len());
        let piece = &bytes[from..(from + size_of::<Word>()).min(bytes.len())];
        let mut padded = [0; size_of::<Word>()];
        padded[..piece.len()].copy_from_slice(piece);
        set(word, u64::from_le_bytes(padded));
    }
}

/// The bytes of a text, up to the first zero byte. Anything may be in them.
pub(crate) fn get_bytes(words: &[Word]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words {
        let piece = get(word).to_le_bytes();
        let length = piece.iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&piece[..length.unwrap_or(piece.len())]);
        if length.is_some() {
            break;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const N: usize>() -> [Word; N] {
        std::array::from_fn(|_| Word::new(u64::MAX))
    }

    #[test]
    fn a_text_comes_back_cut_at_a_whole_character() {
        let check = |text: &str, expected: &str| {
            let words = words::<2>();
            set_text(&words, text);
            assert_eq!(get_bytes(&words), expected.as_bytes(), "{text}");
        };
        check("", "");
        check("short", "short");
        check("sixteen bytes ok", "sixteen bytes ok");
        check("sixteen bytes ok, and more", "sixteen bytes ok");
        check("fourteen_bytes…", "fourteen_bytes");
    }

    #[test]
    fn a_section_that_was_never_written_is_nothing_and_one_being_written_is_torn() {
        let sequence = Word::new(0);
        assert_eq!(read(&sequence, || ()), Ok(None));
        let writing = write(&sequence).expect("nobody writes");
        assert_eq!(read(&sequence, || ()), Err(Torn));
        assert!(write(&sequence).is_none(), "two writers at once");
        drop(writing);
        assert_eq!(read(&sequence, || 7), Ok(Some(7)));
    }

    #[test]
    fn a_copy_during_which_the_section_changed_is_thrown_away() {
        let (sequence, value) = (Word::new(2), Word::new(1));
        let times = Word::new(0);
        let copied = read(&sequence, || {
            let copied = get(&value);
            if times.fetch_add(1, Ordering::Relaxed) == 0 {
                let _writing = write(&sequence).expect("nobody writes");
                set(&value, 2);
            }
            copied
        });
        assert_eq!(copied, Ok(Some(2)));
    }
}
