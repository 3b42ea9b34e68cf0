//! What has no price or no owner now, and the line that mends it.
//!
//! Limit: [`MAX_ROWS`] of each; how many more there are is said, with their GPUs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::MAX_ROWS;
use crate::money::now::MoneySnapshot;
use crate::money::rule::NO_RULE;
use crate::words::text::{Name, TITLE_CHARACTERS, counted, harmless};

/// All of a kind.
pub(super) struct Notices {
    pub(super) lines: Vec<Notice>,
    /// `And 3 more, of 12 GPUs`; empty where all are there.
    pub(super) more: String,
}

/// Something that has no price or no owner, and what mends it.
pub(super) struct Notice {
    pub(super) what: Name,
    pub(super) fix: String,
}

/// What has no price now, and what gives it one.
pub(super) fn unpriced(found: &MoneySnapshot) -> Notices {
    notices(found.unpriced.iter().map(|(it, cards)| {
        let gpus = counted(cards.len(), "GPU", "GPUs");
        let model = match it.model.is_empty() {
            true => "of a model that is not known",
            false => &it.model,
        };
        let notice = Notice {
            what: Name::new(&format!("{gpus} in {}: {model}", it.cluster)),
            fix: it.why.clone(),
        };
        (notice, cards)
    }))
}

/// Whose owner is not known, and the line that says whose it is.
pub(super) fn unowned(found: &MoneySnapshot) -> Notices {
    let columns = found.rule_columns();
    notices(found.unowned.iter().map(|((cluster, job), it)| {
        let gpus = counted(it.cards.len(), "GPU", "GPUs");
        let notice = Notice {
            what: Name::new(&format!("{job} in {cluster}: {gpus}")),
            fix: match &it.rule {
                Some(rule) => format!("{columns}: {}", harmless(rule, TITLE_CHARACTERS)),
                None => NO_RULE.to_owned(),
            },
        };
        (notice, &it.cards)
    }))
}

fn notices<'a>(mut all: impl Iterator<Item = (Notice, &'a BTreeSet<Arc<str>>)>) -> Notices {
    let lines = all.by_ref().take(MAX_ROWS).map(|it| it.0).collect();
    let mut count = 0_usize;
    // Several jobs may share one.
    let mut cards: BTreeSet<&Arc<str>> = BTreeSet::new();
    for (_, its) in all {
        count += 1;
        cards.extend(its);
    }
    let gpus = counted(cards.len(), "GPU", "GPUs");
    Notices {
        lines,
        more: match count {
            0 => String::new(),
            _ => format!("And {count} more, of {gpus}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::now::{Unowned, Unpriced};

    #[test]
    fn what_is_beyond_the_list_is_counted_with_its_gpus() {
        let cards = |first: usize| -> BTreeSet<Arc<str>> {
            let both = [first, first + 1].into_iter();
            both.map(|it| format!("GPU-{it}").into()).collect()
        };
        let of = |count: usize| {
            let cluster: Arc<str> = "prod".into();
            let unpriced = (0..count).map(|it| {
                let unpriced = Unpriced {
                    cluster: Arc::clone(&cluster),
                    model: format!("card {it:02}"),
                    why: String::new(),
                };
                (unpriced, cards(2 * it))
            });
            let unowned = (0..count).map(|it| {
                let unowned = Unowned {
                    // One of two is that of the job before.
                    cards: cards(it),
                    rule: None,
                };
                ((Arc::clone(&cluster), format!("job:{it:02}")), unowned)
            });
            let found = MoneySnapshot {
                unpriced: unpriced.collect(),
                unowned: unowned.collect(),
                ..MoneySnapshot::default()
            };
            [super::unpriced(&found), super::unowned(&found)].map(|it| (it.lines.len(), it.more))
        };
        assert_eq!(of(MAX_ROWS), ["", ""].map(|it| (MAX_ROWS, it.to_owned())));
        let more = ["And 2 more, of 4 GPUs", "And 2 more, of 3 GPUs"];
        let more = more.map(|it| (MAX_ROWS, it.to_owned()));
        assert_eq!(of(MAX_ROWS + 2), more);
    }
}
