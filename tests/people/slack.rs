//! Slack's incoming webhook as its documentation has it: Block Kit's lengths and types, and the body `ok`.
//! It knows no keys: what comes twice is shown twice.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Reply;

/// Most blocks.
const BLOCKS: usize = 50;
/// Longest header, characters.
const HEADER: usize = 150;
/// Longest text of a section, characters.
const SECTION: usize = 3_000;
/// Most elements of a context block.
const ELEMENTS: usize = 10;
/// About the longest message, characters.
const TOTAL: usize = 13_000;

/// A channel that a webhook posts to.
#[derive(Debug, Clone, Default)]
pub struct Slack {
    /// How often each message was shown, by the key in its last line.
    pub messages: BTreeMap<String, u64>,
    /// What was shown, in order: the plain texts.
    pub texts: Vec<String>,
}

impl Slack {
    /// Takes one message.
    pub fn take(&mut self, body: &[u8]) -> Reply {
        match self.check(body) {
            Ok(()) => (200, "ok".to_owned()),
            Err(why) => (400, why),
        }
    }

    fn check(&mut self, body: &[u8]) -> Result<(), String> {
        let message: Value =
            serde_json::from_slice(body).map_err(|error| format!("invalid_payload: {error}"))?;
        let text = message["text"]
            .as_str()
            .filter(|it| !it.is_empty())
            .ok_or("no_text")?;
        let blocks = message["blocks"].as_array().ok_or("invalid_blocks: none")?;
        if blocks.is_empty() || blocks.len() > BLOCKS {
            return Err(format!("invalid_blocks: {} of them", blocks.len()));
        }
        let mut total = text.chars().count();
        let mut last = String::new();
        for block in blocks {
            let texts: Vec<&Value> = match block["type"].as_str() {
                Some("header") => vec![&block["text"]],
                Some("section") => match block["fields"].as_array() {
                    Some(_) => return Err("invalid_blocks: fields are not checked here".to_owned()),
                    None => vec![&block["text"]],
                },
                Some("context") => {
                    let elements = block["elements"]
                        .as_array()
                        .ok_or("invalid_blocks: no elements")?;
                    if elements.is_empty() || elements.len() > ELEMENTS {
                        return Err(format!("invalid_blocks: {} elements", elements.len()));
                    }
                    elements.iter().collect()
                }
                other => return Err(format!("invalid_blocks: type {other:?}")),
            };
            for part in texts {
                let is_header = block["type"] == "header";
                last = check_text(part, is_header)?;
                total += last.chars().count();
            }
        }
        if total > TOTAL {
            return Err(format!("msg_too_long: {total}"));
        }
        let key = last.rsplit(' ').next().unwrap_or_default();
        if !key.starts_with("gpufleet/") {
            return Err(format!("no key in the last line: {last}"));
        }
        *self.messages.entry(key.to_owned()).or_default() += 1;
        self.texts.push(text.to_owned());
        Ok(())
    }
}

fn check_text(part: &Value, is_header: bool) -> Result<String, String> {
    let (kind, most) = match is_header {
        true => ("plain_text", HEADER),
        false => ("mrkdwn", SECTION),
    };
    if part["type"] != kind {
        return Err(format!("invalid_blocks: text of type {}", part["type"]));
    }
    let text = part["text"].as_str().unwrap_or_default();
    let characters = text.chars().count();
    if !(1..=most).contains(&characters) {
        return Err(format!("invalid_blocks: {kind} of {characters} characters"));
    }
    // Outside of a header `&` begins an escape, `<` a link.
    let is_escaped = text.split('&').skip(1).all(|it| {
        ["amp;", "lt;", "gt;"]
            .iter()
            .any(|escape| it.starts_with(escape))
    });
    if !is_header && (text.contains('<') || text.contains('>') || !is_escaped) {
        return Err(format!("invalid_blocks: not escaped: {text}"));
    }
    Ok(text.to_owned())
}
