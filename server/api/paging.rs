//! Pages of a list by keyset: a cursor is the key of the last item, so that what comes and goes
//! between two pages moves nothing that stays.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;

/// Items of a page unless asked otherwise.
pub const DEFAULT_LIMIT: usize = 200;

/// Most items of one page: about 1 MB of GPUs.
pub const MAX_LIMIT: usize = 1_000;

/// Which page of a list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Most items of the answer, 1 to 1000.
    #[param(default = 200, minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the answer before; without it the first page.
    pub after: Option<String>,
}

/// A page of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where to go on: the `after` of the next request; none when these were the last.
    pub next: Option<String>,
}

impl Paging {
    /// Most items of the answer.
    ///
    /// # Errors
    /// When more are asked for than one answer holds, or none.
    pub fn limit(&self) -> Result<usize, Problem> {
        match self.limit {
            None => Ok(DEFAULT_LIMIT),
            Some(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
            Some(limit) => Err(Problem::bad(format_args!(
                "limit={limit}: one answer holds 1 to {MAX_LIMIT} items; go on with after=<next>"
            ))),
        }
    }

    /// The page of `all`: from the first on that `is_behind` the key of the item before it, as a cursor is `read`. `all`
    /// is sorted by what `is_behind` goes by, and `write` writes the words of an item's key.
    ///
    /// # Errors
    /// When the limit or the cursor is wrong.
    pub fn page<T, U, K>(
        &self,
        all: impl Iterator<Item = T>,
        read: impl Fn(&[String]) -> Option<K>,
        is_behind: impl Fn(&T, &K) -> bool,
        write: impl Fn(&T) -> Vec<String>,
        show: impl Fn(T) -> U,
    ) -> Result<Page<U>, Problem> {
        let limit = self.limit()?;
        let after = match &self.after {
            None => None,
            Some(cursor) => Some(read_cursor(cursor).and_then(|words| read(&words)).ok_or_else(
                || Problem::bad("after: this is no cursor of this list; use the next of the answer before, as it is"),
            )?),
        };
        let mut rest = all.filter(|item| after.as_ref().is_none_or(|after| is_behind(item, after)));
        let mut items = Vec::new();
        let mut last = None;
        while items.len() < limit {
            let Some(item) = rest.next() else {
                return Ok(Page { items, next: None });
            };
            last = Some(write(&item));
            items.push(show(item));
        }
        let next = rest.next().and(last).map(|words| write_cursor(&words));
        Ok(Page { items, next })
    }
}

/// Words joined by `/`, each percent-encoded.
pub fn write_cursor(words: &[String]) -> String {
    let encoded: Vec<String> = words
        .iter()
        .map(|it| crate::words::text::segment(it))
        .collect();
    encoded.join("/")
}

/// The words of a cursor; none when it is not one.
pub fn read_cursor(cursor: &str) -> Option<Vec<String>> {
    cursor.split('/').map(decoded).collect()
}

fn decoded(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |it: Option<u8>| char::from(it?).to_digit(16);
            let value = digit(rest.next())? * 16 + digit(rest.next())?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(
        all: &[&str],
        limit: Option<usize>,
        after: Option<&str>,
    ) -> Result<Page<String>, Problem> {
        let paging = Paging {
            limit,
            after: after.map(str::to_owned),
        };
        paging.page(
            all.iter().map(|it| (*it).to_owned()),
            |words| words.first().cloned(),
            |item, after: &String| item > after,
            |item| vec![item.clone()],
            |item| item,
        )
    }

    #[test]
    fn pages_hold_every_item_once_even_when_the_last_one_goes_away() {
        let first = page(&["a", "b/%", "c"], Some(2), None).expect("a page");
        assert_eq!(first.items, ["a", "b/%"]);
        let next = first.next.expect("there is more");
        let second = page(&["a", "c", "d"], Some(2), Some(&next)).expect("a page");
        assert_eq!(
            (second.items, second.next),
            (vec!["c".to_owned(), "d".to_owned()], None)
        );
    }

    #[test]
    fn a_limit_outside_its_range_or_a_broken_cursor_is_refused() {
        for (limit, after) in [
            (Some(0), None),
            (Some(1_001), None),
            (None, Some("%zz")),
            (None, Some("%F")),
        ] {
            assert!(page(&["a"], limit, after).is_err(), "{limit:?} {after:?}");
        }
    }

    #[test]
    fn a_cursor_carries_any_name() {
        let words = vec!["a/b".to_owned(), String::new(), "é%\u{0}".to_owned()];
        assert_eq!(read_cursor(&write_cursor(&words)), Some(words));
    }
}
