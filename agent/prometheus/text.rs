//! The few rules of the Prometheus text format that writing needs.

use std::borrow::Cow;

/// A label's value with backslash, quote and line feed escaped.
pub(super) fn escape_label(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    let mut escaped = String::with_capacity(value.len() + 8);
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    Cow::Owned(escaped)
}

/// A help text with backslash and line feed escaped.
pub(super) fn escape_help(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '\n']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_value_or_a_line_is_escaped() {
        assert_eq!(escape_label("plain é {}"), "plain é {}");
        assert_eq!(escape_label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
        assert_eq!(escape_help("a \"b\" \\ \n"), "a \"b\" \\\\ \\n");
    }
}
