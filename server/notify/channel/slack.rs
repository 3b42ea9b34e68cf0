//! Slack's incoming webhook: Block Kit, with a plain text for notifications.
//!
//! Slack knows no keys: after a crash a message may come twice. Its last line has the message's key, the
//! same in both.
//!
//! Limits are Slack's: [`HEADER`] and [`SECTION`] characters, [`TOTAL`] in all.

use bytes::Bytes;
use http::{StatusCode, Uri};
use serde_json::json;

use super::{Answer, Outcome, Post, Speaks, address, failure, json_headers};
use crate::notify::group::Says;
use crate::notify::message::{Message, cut};
use crate::notify::secret::Secret;

/// Longest header, characters.
pub const HEADER: usize = 150;
/// Longest text of a section, characters.
pub const SECTION: usize = 3_000;
/// Most blocks.
pub const BLOCKS: usize = 50;
/// About the longest message, characters.
pub const TOTAL: usize = 13_000;
/// Sections of text: with header, context and the plain text below the total.
const SECTIONS: usize = 3;

/// A webhook of Slack; its address is the secret.
#[derive(Debug)]
pub struct Slack {
    address: Secret,
}

impl Slack {
    /// The webhook with this address.
    ///
    /// # Errors
    /// When the secret is no address.
    pub fn new(secret: Secret) -> Result<Self, String> {
        let slack = Self { address: secret };
        slack.to().map(|_| slack)
    }
}

/// A text in which nothing means anything to Slack.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A text in pieces of whole lines that fit into a section each; the last one says what is missing.
fn sections(text: &str) -> Vec<String> {
    let mut sections = vec![String::new()];
    for line in text.lines() {
        let line = plain(&cut(line, SECTION / 6));
        let last = sections.last_mut().expect("there is one");
        if last.chars().count() + line.chars().count() + 1 > SECTION {
            sections.push(line);
        } else {
            if !last.is_empty() {
                last.push('\n');
            }
            last.push_str(&line);
        }
    }
    let is_cut = sections.len() > SECTIONS;
    sections.truncate(SECTIONS);
    if is_cut && let Some(last) = sections.last_mut() {
        let kept: String = last.chars().take(SECTION - 80).collect();
        // Not in the middle of an escaped character.
        let end = kept.rfind('\n').unwrap_or(kept.len());
        *last = format!("{}\n… (cut: our page has all of it)", &kept[..end]);
    }
    sections.retain(|it| !it.is_empty());
    sections
}

impl Speaks for Slack {
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String> {
        let mark = match (message.says, message.severity) {
            (Says::Resolved, _) => "✅",
            (Says::Notice, _) => "📊",
            (_, "error") => "🔴",
            (_, "warning") => "🟠",
            _ => "🔵",
        };
        let title = format!("{mark} {}", message.title);
        let mut blocks = vec![json!({
            "type": "header",
            "text": {"type": "plain_text", "text": cut(&title, HEADER)},
        })];
        blocks.extend(
            sections(&message.text)
                .into_iter()
                .map(|text| json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})),
        );
        let context = format!("{} | {}", plain(&message.link), message.message_key);
        blocks.push(json!({
            "type": "context",
            "elements": [{"type": "mrkdwn", "text": cut(&context, SECTION)}],
        }));
        let body = json!({
            "text": plain(&cut(&title, 500)),
            "blocks": blocks,
        });
        Ok(vec![Post {
            to: self.to()?,
            headers: json_headers(),
            body: Bytes::from(body.to_string()),
        }])
    }

    fn to(&self) -> Result<Uri, String> {
        let text = self.address.get().ok_or("there is no address")?;
        address(&text)
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        match answer.status {
            StatusCode::OK if answer.body == "ok" => Outcome::Delivered,
            _ => failure(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_lines_with_a_note_and_never_inside_an_escape() {
        let text = "a <b> & c\n".repeat(5_000);
        let made = sections(&text);
        assert_eq!(made.len(), SECTIONS);
        assert!(made.iter().all(|it| it.chars().count() <= SECTION));
        assert!(made[2].ends_with("(cut: our page has all of it)"));
        for line in made.iter().flat_map(|it| it.lines()).take(300) {
            assert!(
                line == "a &lt;b&gt; &amp; c" || line.starts_with('…'),
                "{line}"
            );
        }
        let one = sections(&"<".repeat(100_000));
        assert!(
            one[0].chars().count() <= SECTION,
            "{}",
            one[0].chars().count()
        );
        assert_eq!(sections(""), Vec::<String>::new());
    }
}
