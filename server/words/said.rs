//! Words of which some leave something open: whoever makes them says which, and which line of the page Health mends it.
//!
//! What others wrote stands in the same sentences: it is not looked through for words that sound like it.

use std::fmt;

use super::{leaves_open, text};

/// What a page says, in pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// In their order, none of them empty.
    pub pieces: Vec<Piece>,
}

/// A piece that is open as a whole, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The words.
    pub text: String,
    /// The line of the page Health that mends it; none where nothing is open, or the monitor cannot be mended for it.
    pub anchor: Option<&'static str>,
}

impl Said {
    /// Words that leave something open, with the line that mends it.
    pub fn open(anchor: &'static str, text: impl Into<String>) -> Self {
        let mut said = Self::default();
        said.push(Some(anchor), text.into());
        said
    }

    /// Words of ours alone, open where they say so.
    pub fn ours(anchor: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        let mut said = Self::default();
        said.push(leaves_open(&text).then_some(anchor), text);
        said
    }

    /// The same with these behind it.
    pub fn and(mut self, more: impl Into<Self>) -> Self {
        for piece in more.into().pieces {
            self.push(piece.anchor, piece.text);
        }
        self
    }

    /// The same harmless, cut to `limit` characters.
    pub fn shown(&self, limit: usize) -> Self {
        let (mut shown, mut left) = (Self::default(), limit);
        for piece in &self.pieces {
            let length = piece.text.chars().count();
            shown.push(piece.anchor, text::harmless(&piece.text, left));
            if length > left {
                break;
            }
            left -= length;
        }
        shown
    }

    /// The same with one name in place of another.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        for piece in &mut self.pieces {
            piece.text = piece.text.replace(from, to);
        }
        self
    }

    /// The line of the page Health that mends the first that is open.
    pub fn anchor(&self) -> Option<&'static str> {
        self.pieces.iter().find_map(|it| it.anchor)
    }

    fn push(&mut self, anchor: Option<&'static str>, text: String) {
        if !text.is_empty() {
            self.pieces.push(Piece { text, anchor });
        }
    }
}

impl From<String> for Said {
    /// Words that leave nothing open.
    fn from(text: String) -> Self {
        let mut said = Self::default();
        said.push(None, text);
        said
    }
}

impl From<&str> for Said {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|it| f.write_str(&it.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_cut_as_a_whole_and_stays_open_where_it_was() {
        let said = Said::from("node\u{202e} ").and(Said::open("hooks", "is not known"));
        let all = said.and("; why");
        let whole = all.to_string();
        for limit in 0..=whole.chars().count() {
            let shown = all.shown(limit);
            assert_eq!(shown.to_string(), text::harmless(&whole, limit));
            let anchor = (limit >= 6).then_some("hooks");
            assert_eq!(shown.anchor(), anchor, "{limit}: {shown}");
        }
    }

    #[test]
    fn words_of_ours_are_open_where_they_say_so_and_those_of_others_never() {
        for (said, anchor) in [
            (
                Said::ours("prices", "8 GPUs without a price"),
                Some("prices"),
            ),
            (Said::ours("prices", "$1.00"), None),
            (Said::from("no price"), None),
            (Said::from("no price").and("–"), None),
        ] {
            assert_eq!(said.anchor(), anchor, "{said}");
        }
        assert!(Said::from("").pieces.is_empty(), "nothing is no piece");
    }
}
