//! What a run is made of, as attributes of an event: lines of `key=value`.
//!
//! A process can say 8 KiB, about 150 keys; an event's attribute has 4 KiB. So the lines are spread
//! over up to [`MAX_FINGERPRINT_PARTS`] attributes, and what does not fit is counted.

use std::collections::BTreeMap;

use super::attribute;

/// Longest text of one attribute of a fingerprint; an event's attribute may have 4,096 bytes.
pub const MAX_FINGERPRINT_BYTES: usize = 4_000;

/// Most attributes of a fingerprint: 12,000 bytes, one and a half times what the process can say.
pub const MAX_FINGERPRINT_PARTS: usize = 3;

/// A fingerprint as attributes of an event: lines of `key=value` by key. Pairs that do not fit or
/// have a line end in them are left out; how many comes beside it.
pub fn fingerprint_attributes(
    fingerprint: &BTreeMap<String, String>,
) -> (Vec<(String, String)>, usize) {
    let mut texts = vec![String::new()];
    let mut left_out = 0;
    for (key, value) in fingerprint {
        let line = format!("{key}={value}\n");
        let is_line = !key.contains(['=', '\n']) && !value.contains('\n');
        let is_full = texts
            .last()
            .is_some_and(|text| text.len() + line.len() > MAX_FINGERPRINT_BYTES);
        let has_room = !is_full || texts.len() < MAX_FINGERPRINT_PARTS;
        if !is_line || !has_room || line.len() > MAX_FINGERPRINT_BYTES {
            left_out += 1;
        } else if is_full {
            texts.push(line);
        } else if let Some(text) = texts.last_mut() {
            text.push_str(&line);
        }
    }
    let named = texts.into_iter().enumerate().map(|(place, text)| {
        let name = match place {
            0 => attribute::FINGERPRINT.to_owned(),
            _ => format!("{}.{}", attribute::FINGERPRINT, place + 1),
        };
        (name, text)
    });
    (named.collect(), left_out)
}

/// The fingerprint that an event's attributes carry.
pub fn fingerprint_of(attributes: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    attributes
        .iter()
        .filter(|(name, _)| {
            let rest = name.strip_prefix(attribute::FINGERPRINT);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
