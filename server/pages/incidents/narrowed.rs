//! Which of the incidents stand on their list: the form over it, and the address at which it goes on. What can be asked
//! for is what the API takes, so that an address says the same in both.

use gpufleet_analysis::incident::Family;
use gpufleet_telemetry::event::Severity;

use crate::api::incidents::{IncidentsAsked, cursor};
use crate::api::problem::Problem;
use crate::auth::Grant;
use crate::pages::asked::given;
use crate::store::model::{IncidentFilter, IncidentPlace};
use crate::words::address;

/// What is asked for, as the form shows it again.
pub(super) struct Narrowed {
    asked: IncidentsAsked,
    pub(super) filter: IncidentFilter,
    pub(super) before: Option<IncidentPlace>,
}

/// One line of the form that is written into.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) words: &'static str,
    pub(super) value: String,
}

/// One word to choose: as it is asked for, as it is shown, and whether it is chosen.
type Choice = (&'static str, String, bool);

impl Narrowed {
    /// What an address asks for, of what a reader may see. Lines of the form that were left empty ask for nothing.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub(super) fn of(asked: IncidentsAsked, grant: &Grant) -> Result<Self, Problem> {
        let asked = IncidentsAsked {
            cluster: given(asked.cluster),
            family: given(asked.family),
            // The open ones and the others have their own places on the page.
            state: None,
            severity: given(asked.severity),
            node: given(asked.node),
            gpu: given(asked.gpu),
            run: given(asked.run),
            from: given(asked.from).map(whole),
            to: given(asked.to).map(whole),
            limit: None,
            after: given(asked.after),
        };
        Ok(Self {
            filter: asked.filter(grant)?,
            before: asked.before()?,
            asked,
        })
    }

    /// Whether only some are asked for.
    pub(super) fn is_some(&self) -> bool {
        self.pairs().any(|(_, value)| value.is_some())
    }

    /// Where the list goes on behind this place.
    pub(super) fn address(&self, behind: IncidentPlace) -> String {
        let after = cursor(behind);
        let asked = self.pairs().chain([("after", Some(after.as_str()))]);
        address::with_query("/incidents", asked) + "#over"
    }

    /// Severities, the least first.
    pub(super) fn severities(&self) -> [Choice; 3] {
        let chosen = self.filter.severity;
        [Severity::Info, Severity::Warning, Severity::Error]
            .map(|it| (it.name(), it.name().to_owned(), chosen == Some(it)))
    }

    /// Kinds of trouble.
    pub(super) fn families(&self) -> [Choice; Family::ALL.len()] {
        let chosen = self.filter.family;
        Family::ALL.map(|it| (it.name(), it.name().replace('_', " "), chosen == Some(it)))
    }

    /// What is written.
    pub(super) fn lines(&self) -> [Line; 6] {
        let asked = &self.asked;
        let line = |name, words, value: &Option<String>| Line {
            name,
            words,
            value: value.clone().unwrap_or_default(),
        };
        [
            line("cluster", "Cluster", &asked.cluster),
            line("node", "Node", &asked.node),
            line("gpu", "GPU, by its id", &asked.gpu),
            line("run", "Job or run, by name or id", &asked.run),
            line("from", "From, UTC, like 2026-11-21 07:00", &asked.from),
            line("to", "Until before", &asked.to),
        ]
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, Option<&str>)> {
        let asked = &self.asked;
        let pairs = [
            ("cluster", &asked.cluster),
            ("family", &asked.family),
            ("severity", &asked.severity),
            ("node", &asked.node),
            ("gpu", &asked.gpu),
            ("run", &asked.run),
            ("from", &asked.from),
            ("to", &asked.to),
        ];
        let pairs = pairs.into_iter();
        pairs.map(|(name, value)| (name, value.as_deref()))
    }
}

/// A moment as the API takes it, of one as pages show it: `2026-11-21`, `2026-11-21 07:00`, `2026-11-21 07:00:12`. What
/// is something else stays as it is.
fn whole(shown: String) -> String {
    let is_shown = |it: u8| it.is_ascii_digit() || b"-: T".contains(&it);
    if !shown.bytes().all(is_shown) {
        return shown;
    }
    let rest = match shown.len() {
        10 => "T00:00:00Z",
        16 => ":00Z",
        19 => "Z",
        _ => return shown,
    };
    shown.replace(' ', "T") + rest
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::time::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_moment_as_it_stands_on_a_page_is_one_to_ask_for() {
        for (written, expected) in [
            ("2026-11-21", "2026-11-21T00:00:00Z"),
            ("2026-11-21 07:00", "2026-11-21T07:00:00Z"),
            ("2026-11-21T07:00", "2026-11-21T07:00:00Z"),
            ("2026-11-21 07:00:12", "2026-11-21T07:00:12Z"),
            ("2026-11-21T07:00:12.500Z", "2026-11-21T07:00:12.500Z"),
            ("2026-11-21T07:00:12+02:00", "2026-11-21T07:00:12+02:00"),
            ("yesterday", "yesterday"),
        ] {
            assert_eq!(whole(written.to_owned()), expected);
        }
    }

    #[test]
    fn an_empty_line_asks_for_nothing_and_the_list_goes_on_with_what_is_asked_for() {
        let empty = IncidentsAsked {
            node: some(" "),
            severity: some(""),
            ..IncidentsAsked::default()
        };
        let empty = Narrowed::of(empty, &Grant::default()).expect("it can be asked");
        assert!(!empty.is_some());
        assert_eq!(empty.filter, IncidentFilter::default());
        let asked = IncidentsAsked {
            node: some("node 1"),
            to: some("2026-11-21"),
            after: some("1/00000000-0000-0000-0000-000000000002"),
            ..IncidentsAsked::default()
        };
        let narrowed = Narrowed::of(asked, &Grant::default()).expect("it can be asked");
        assert!(narrowed.is_some());
        let first = IncidentPlace {
            since: Timestamp::from_millis(1),
            id: Uuid::from_u128(2),
        };
        assert_eq!(narrowed.before, Some(first));
        let next = IncidentPlace {
            since: Timestamp::from_millis(3),
            id: Uuid::from_u128(4),
        };
        assert_eq!(
            narrowed.address(next),
            "/incidents?node=node%201&to=2026-11-21T00%3A00%3A00Z&after=3%2F00000000-0000-0000-0000-000000000004#over"
        );
    }
}
