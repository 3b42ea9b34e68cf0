//! Paths and queries, and lists that come in pages.

use serde_json::Value;

use crate::client::{Client, Refusal};

/// Items of one page: the most that the server gives.
const PAGE: &str = "1000";
/// Most pages of one list: a hundred thousand GPUs. What is left out is said.
pub(crate) const MAX_PAGES: usize = 100;

/// A list, and whether it is whole.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) items: Vec<Value>,
    pub(crate) is_whole: bool,
    /// Since when the detectors stand, or null, of a list that tells it: a list of incidents.
    pub(crate) stand_since: Option<Value>,
}

impl List {
    /// As the API would have said it in one page.
    pub(crate) fn json(&self) -> Value {
        let mut json = serde_json::json!({ "items": self.items, "whole": self.is_whole });
        if let Some(since) = &self.stand_since {
            json["detectors_stand_since"] = since.clone();
        }
        json
    }

    /// A line that says that it is not whole; empty when it is.
    pub(crate) fn note(&self) -> String {
        match self.is_whole {
            true => String::new(),
            false => format!(
                "… and more: only the first {} are shown\n",
                self.items.len()
            ),
        }
    }
}

/// Every item of a list, page after page.
pub(crate) fn all(client: &Client, path: &str, filter: &[(&str, &str)]) -> Result<List, Refusal> {
    let mut list = List::default();
    let mut after: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let mut query = filter.to_vec();
        query.push(("limit", PAGE));
        if let Some(after) = &after {
            query.push(("after", after));
        }
        let mut page = client.get(&with_query(path, &query))?;
        if let Some(found) = page["items"].as_array_mut() {
            list.items.append(found);
        }
        client.waiting().came(list.items.len());
        list.stand_since = page.get("detectors_stand_since").cloned();
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            list.is_whole = true;
            break;
        }
    }
    Ok(list)
}

/// Of these parameters those that have a value.
pub(crate) fn given<'a, const N: usize>(
    asked: [(&'a str, Option<&'a str>); N],
) -> Vec<(&'a str, &'a str)> {
    asked
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// A path with its query.
pub(crate) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let pairs = query.iter();
    let pairs = pairs.map(|(name, value)| format!("{name}={}", encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    match query.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{query}"),
    }
}

/// A text as one part of a path or query.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_not_asked_for() {
        let given = given([("cluster", None), ("node", Some("n-1")), ("state", None)]);
        assert_eq!(given, [("node", "n-1")]);
    }

    #[test]
    fn what_has_a_meaning_in_an_address_is_encoded() {
        assert_eq!(encoded("a/b c%2F"), "a%2Fb%20c%252F");
        assert_eq!(with_query("/jobs", &[]), "/jobs");
        assert_eq!(
            with_query("/gpus", &[("node", "n&1"), ("limit", "10")]),
            "/gpus?node=n%261&limit=10"
        );
    }
}
