//! What the short words of a page mean, and its names in full where they are cut, in one place that opens: a tooltip
//! is out of reach for who has no mouse.

use crate::words::text::Name;

/// What words mean, and names in full.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Meanings {
    /// Terms with what they mean, each once, in their order.
    pub terms: Vec<(String, String)>,
}

impl Meanings {
    /// Of these words, and of those of these names that are cut.
    pub fn of<'a>(
        words: impl IntoIterator<Item = (&'a str, &'a str)>,
        names: impl IntoIterator<Item = &'a Name>,
    ) -> Self {
        let names = names.into_iter();
        let names = names.filter_map(|it| Some((it.text.as_str(), it.title.as_deref()?)));
        let mut terms: Vec<(String, String)> = Vec::new();
        for (term, meaning) in words.into_iter().chain(names) {
            let is_known = terms.iter().any(|it| it.0 == term && it.1 == meaning);
            if !is_known && !meaning.is_empty() {
                terms.push((term.to_owned(), meaning.to_owned()));
            }
        }
        Self { terms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_stands_once_and_only_names_that_are_cut() {
        let long = Name::new(&"n".repeat(80));
        let words = [("MFU", "of the peak"), ("MFU", "of the peak"), ("loss", "")];
        let found = Meanings::of(words, [&Name::new("short"), &long, &long]);
        let full = format!("{} (80 bytes in all)", "n".repeat(80));
        let expected = [("MFU", "of the peak"), (long.text.as_str(), full.as_str())];
        let expected = expected.map(|it| (it.0.to_owned(), it.1.to_owned()));
        assert_eq!(found.terms, expected);
    }
}
