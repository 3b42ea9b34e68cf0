//! What is missing in a report, beside one that is rows alone: a bill in CSV has no place for it, and is read by programs.
//!
//! Limits: [`MAX_BYTES`] of the header of an answer, [`SENTENCE_CHARACTERS`] of a sentence.
//!
//! The header is JSON in ASCII, `{"count":3,"said":["…"]}`: how many sentences there are, and those of the first that fit.

use std::fmt::Write as _;

use crate::words::text::{SENTENCE_CHARACTERS, harmless};

/// The header of an answer that is rows alone.
pub const HEADER: &str = "gpufleet-findings";

/// Most bytes of it: proxies keep 4 KiB for the head of an answer (`proxy_buffer_size` of nginx), and it is not alone there.
pub const MAX_BYTES: usize = 2_000;

/// Most lines at a prompt.
const MAX_LINES: usize = 20;

/// Where all of them are.
const ALL: &str = "--format json has them all";

/// What the header says; none where there is nothing to say.
pub fn header(told: &[String]) -> Option<String> {
    let mut said: Vec<String> = Vec::new();
    let mut header = None;
    for sentence in told {
        said.push(harmless(sentence, SENTENCE_CHARACTERS));
        let next = ascii(&serde_json::json!({ "count": told.len(), "said": said }));
        if next.len() > MAX_BYTES {
            break;
        }
        header = Some(next);
    }
    let none_fits = || ascii(&serde_json::json!({ "count": told.len(), "said": [] }));
    header.or_else(|| (!told.is_empty()).then(none_fits))
}

/// Lines for whoever asked at a prompt; empty where there is nothing to say.
pub fn lines(told: &[String]) -> String {
    let shown = told.iter().take(MAX_LINES);
    let shown = shown.map(|it| harmless(it, SENTENCE_CHARACTERS));
    let more = told.len().saturating_sub(MAX_LINES);
    let more = (more > 0).then(|| format!("and {more} findings more: {ALL}"));
    let line = |it: String| format!("gpufleet-server: {it}\n");
    shown.chain(more).map(line).collect()
}

/// JSON that a header can hold.
fn ascii(value: &serde_json::Value) -> String {
    let mut text = String::new();
    for letter in value.to_string().chars() {
        match letter {
            ' '..='~' => text.push(letter),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("a text takes everything");
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_the_first_sentences_that_fit_and_how_many_there_are() {
        assert_eq!(header(&[]), None);
        let read = |told: &[String]| {
            let header = header(told).expect("there is something to say");
            assert!(header.len() <= MAX_BYTES && header.is_ascii(), "{header}");
            serde_json::from_str::<serde_json::Value>(&header).expect("it is JSON")
        };
        let two = ["prod: a day\u{202e} – of 𝔊".to_owned(), "b\n".to_owned()];
        let first = "prod: a day\u{fffd} – of 𝔊";
        let expected = serde_json::json!({ "count": 2, "said": [first, harmless("b\n", 9)] });
        assert_eq!(read(&two), expected);
        let many = read(&vec!["x".repeat(900); 50]);
        assert_eq!(many["count"], 50);
        let said = many["said"].as_array().map(Vec::len);
        assert_eq!(
            said,
            Some(6),
            "of 300 characters each, and a sign that it goes on"
        );
        let wide = read(&["𝔊".repeat(300)]);
        assert_eq!(wide, serde_json::json!({ "count": 1, "said": [] }));
    }

    #[test]
    fn lines_at_a_prompt_are_some_and_say_how_many_more_there_are() {
        assert_eq!(lines(&[]), "");
        let one = lines(&["prod: nothing is recorded of 2 days".to_owned()]);
        assert_eq!(
            one,
            "gpufleet-server: prod: nothing is recorded of 2 days\n"
        );
        let many = lines(&vec!["a".to_owned(); MAX_LINES + 3]);
        assert_eq!(many.lines().count(), MAX_LINES + 1);
        assert!(many.ends_with("and 3 findings more: --format json has them all\n"));
    }
}
