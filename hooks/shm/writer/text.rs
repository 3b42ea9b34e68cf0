//! Texts made fit for the region.

use std::fmt::Write as _;

use crate::MAX_NAME_BYTES;
use crate::cell::fitting;

/// The end of `text` that fits into `bytes`, whole characters only.
pub(super) fn end(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// Lines of `key=value` that fit into `bytes`, and how many pairs did not.
pub(super) fn pairs(pairs: &[(&str, &str)], bytes: usize) -> (String, u64) {
    let mut text = String::new();
    let mut left_out = 0;
    for (key, value) in pairs {
        let key = one_line(key).replace('=', "_");
        let value = one_line(value);
        let before = text.len();
        // Writing to a String cannot fail.
        let _written = writeln!(
            text,
            "{}={}",
            fitting(&key, MAX_NAME_BYTES),
            fitting(&value, MAX_NAME_BYTES)
        );
        if text.len() > bytes || key.is_empty() {
            text.truncate(before);
            left_out += 1;
        }
    }
    (text, left_out)
}

/// The text without line ends and other control characters.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_lines_and_what_does_not_fit_is_counted() {
        let given = [("torch", "2.9\n.1"), ("a=b", "c=d"), ("", "no key")];
        assert_eq!(pairs(&given, 64), ("torch=2.9 .1\na_b=c=d\n".to_owned(), 1));
        assert_eq!(pairs(&given, 20), ("torch=2.9 .1\n".to_owned(), 2));
        let long = "x".repeat(100);
        let (text, left_out) = pairs(&[("long", &long)], 1000);
        assert_eq!((text.len(), left_out), ("long=\n".len() + 64, 0));
    }

    #[test]
    fn the_end_of_a_text_begins_at_a_whole_character() {
        assert_eq!(end("short", 10), "short");
        assert_eq!(end("0123456789", 4), "6789");
        assert_eq!(end("…abc", 4), "abc");
    }
}
