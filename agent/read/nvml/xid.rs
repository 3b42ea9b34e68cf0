//! XIDs: the driver's numbered errors. Each is an event with what to do about it, and is counted
//! per code. Nothing about them is sticky: the newest code is told for [`TOLD_FOR`] and no longer.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use gpufleet_telemetry::event::Severity;
use serde::Deserialize;

pub(crate) mod wait;

/// Most codes counted apart for one GPU; the driver knows some 170, and a card in trouble shows a
/// few. What comes after is counted under [`OTHER_CODES`].
pub const MAX_CODES: usize = 64;

/// The part under which codes beyond [`MAX_CODES`] are counted.
pub const OTHER_CODES: &str = "other";

/// How long the newest code is told after it came: as long as Prometheus looks back for a sample, so
/// that no scraper misses it, and no longer, so that a code of last week alarms nobody.
pub const TOLD_FOR: Duration = Duration::from_secs(300);

/// The table that is shipped.
const SHIPPED: &str = include_str!("xid_actions.toml");

/// What is done about a code that no table has.
const UNKNOWN: Action = Action {
    name: std::borrow::Cow::Borrowed("unknown"),
    severity: Severity::Warning,
};

/// What to do about an XID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The action's name in the table.
    pub name: std::borrow::Cow<'static, str>,
    /// How bad it is.
    pub severity: Severity,
}

/// What to do about each XID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Actions(BTreeMap<u64, Action>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// For people; the program shows the name.
    #[serde(default)]
    #[expect(dead_code, reason = "it documents the table itself")]
    help: String,
    severity: Severity,
    xids: Vec<Codes>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Codes {
    One(u64),
    Range(String),
}

impl Actions {
    /// The shipped table, with a user's own file over it, code by code.
    ///
    /// # Errors
    /// The file cannot be read or is not such a table.
    pub fn load(overrides: &Path) -> anyhow::Result<Self> {
        let mut actions = Self::parse(SHIPPED).context("the shipped table of XID actions")?;
        if !overrides.as_os_str().is_empty() {
            let text = std::fs::read_to_string(overrides).with_context(|| {
                format!("cannot read nvml.xid_actions_path {}", overrides.display())
            })?;
            let own = Self::parse(&text).with_context(|| {
                format!("{} is not a table of XID actions", overrides.display())
            })?;
            actions.0.extend(own.0);
        }
        Ok(actions)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let table: BTreeMap<String, Entry> = toml::from_str(text)?;
        let mut actions = BTreeMap::new();
        for (name, entry) in table {
            for codes in &entry.xids {
                for code in codes.range()? {
                    let action = Action {
                        name: name.clone().into(),
                        severity: entry.severity,
                    };
                    if let Some(other) = actions.insert(code, action) {
                        bail!("XID {code} is in both {} and {name}", other.name);
                    }
                }
            }
        }
        Ok(Self(actions))
    }

    /// What to do about this code.
    pub fn of(&self, code: u64) -> &Action {
        self.0.get(&code).unwrap_or(&UNKNOWN)
    }
}

impl Codes {
    fn range(&self) -> anyhow::Result<std::ops::RangeInclusive<u64>> {
        /// No driver has codes near this; a range beyond is a slip of the pen.
        const MOST: u64 = 10_000;
        let range = match self {
            Self::One(code) => *code..=*code,
            Self::Range(text) => {
                let (first, last) = text.split_once('-').with_context(|| {
                    format!("{text:?} is not a range of codes such as \"39-41\"")
                })?;
                first.trim().parse()?..=last.trim().parse()?
            }
        };
        if range.is_empty() || *range.end() > MOST {
            bail!("the codes {range:?} are not a range of XIDs");
        }
        Ok(range)
    }
}

/// What the driver asks for in field 230, by name; none for 0 and for codes not known yet.
pub fn recovery_action(code: u64) -> Option<&'static str> {
    match code {
        1 => Some("reset_gpu"),
        2 => Some("reboot_node"),
        3 => Some("drain_peer_to_peer"),
        4 => Some("drain_and_reset"),
        _ => None,
    }
}

/// XIDs of one GPU since the agent started, by code.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    by_code: BTreeMap<u64, u64>,
    other: u64,
    /// The newest code, and when it came by the monotonic clock.
    newest: Option<(u64, Duration)>,
}

impl Counts {
    /// One more, at this time of the monotonic clock.
    pub fn add(&mut self, code: u64, at: Duration) {
        self.newest = Some((code, at));
        if self.by_code.len() < MAX_CODES || self.by_code.contains_key(&code) {
            *self.by_code.entry(code).or_insert(0) += 1;
        } else {
            self.other += 1;
        }
    }

    /// The newest code; 0 when none came in the last [`TOLD_FOR`].
    pub fn newest(&self, now: Duration) -> u64 {
        self.newest
            .filter(|(_, at)| now.saturating_sub(*at) < TOLD_FOR)
            .map_or(0, |(code, _)| code)
    }

    /// The GPU was reset: what came before it is over. What was counted stays counted.
    pub fn begin_anew(&mut self) {
        self.newest = None;
    }

    /// Each code's count, by the name of its part.
    pub fn each(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let codes = self
            .by_code
            .iter()
            .map(|(code, count)| (code.to_string(), *count));
        codes.chain((self.other > 0).then(|| (OTHER_CODES.to_owned(), self.other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> Actions {
        Actions::load(Path::new("")).expect("the shipped table")
    }

    /// What is written down of the driver, with its source.
    const FACTS: &str = include_str!("../../../telemetry/catalog/driver_facts.txt");

    /// The lines of a kind: their ids, and what those must be taken for.
    fn facts(kind: &str) -> Vec<(Vec<u64>, &'static str)> {
        let rows = FACTS.lines().filter_map(|line| {
            let (ids, taken_for) = line.strip_prefix(kind)?.trim().rsplit_once(' ')?;
            let each = ids.split(' ').flat_map(|id| {
                let (first, last) = id.split_once('-').unwrap_or((id, id));
                let number = |id: &str| id.parse::<u64>().expect("an id");
                number(first)..=number(last)
            });
            Some((each.collect(), taken_for))
        });
        rows.collect()
    }

    #[test]
    fn the_shipped_table_says_of_every_xid_what_the_facts_say() {
        let actions = shipped();
        let mut known = Vec::new();
        for (codes, name) in facts("xid ") {
            for code in codes {
                assert_eq!(actions.of(code).name, name, "XID {code}");
                known.push(code);
            }
        }
        known.sort_unstable();
        let shipped: Vec<u64> = actions.0.keys().copied().collect();
        assert_eq!(shipped, known, "no code more and none less");
        assert_eq!(actions.of(9_999).name, "unknown");
    }

    #[test]
    fn how_bad_an_xid_is_goes_by_what_is_to_be_done() {
        let actions = shipped();
        for (code, severity) in [
            (13, Severity::Warning),
            (63, Severity::Info),
            (48, Severity::Error),
            (79, Severity::Error),
            (151, Severity::Error),
            (147, Severity::Error),
            (154, Severity::Warning),
            (54, Severity::Error),
            (78, Severity::Error),
            (159, Severity::Warning),
            (9_999, Severity::Warning),
        ] {
            assert_eq!(actions.of(code).severity, severity, "XID {code}");
        }
    }

    #[test]
    fn every_recovery_action_of_the_driver_has_its_name() {
        let rows = facts("action ");
        assert_eq!(rows.len(), 5);
        for (codes, name) in rows {
            let expected = (name != "-").then_some(name);
            assert_eq!(recovery_action(codes[0]), expected, "{codes:?}");
        }
        assert_eq!(recovery_action(5), None, "not known yet");
    }

    #[test]
    fn a_users_file_wins_code_by_code() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("own.toml");
        std::fs::write(&path, "[page_me]\nseverity = \"error\"\nxids = [13]\n").expect("a file");
        let actions = Actions::load(&path).expect("a table");
        assert_eq!(actions.of(13).name, "page_me");
        assert_eq!(actions.of(31).name, "application_error");
    }

    #[test]
    fn a_table_with_a_slip_is_refused_and_says_which() {
        for (text, says) in [
            (
                "[a]\nseverity=\"info\"\nxids=[1]\n[b]\nseverity=\"info\"\nxids=[\"1-2\"]",
                "XID 1",
            ),
            ("[a]\nseverity=\"info\"\nxids=[\"5\"]", "\"5\""),
            ("[a]\nseverity=\"info\"\nxids=[\"9-2\"]", "9..=2"),
            ("[a]\nseverity=\"bad\"\nxids=[]", "bad"),
        ] {
            let error = format!("{:#}", Actions::parse(text).expect_err(text));
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_code_that_comes_twice_counts_twice_and_codes_have_a_limit() {
        let mut counts = Counts::default();
        let now = Duration::from_secs(7);
        counts.add(79, now);
        counts.add(79, now);
        assert_eq!(counts.each().collect::<Vec<_>>(), [("79".to_owned(), 2)]);
        for code in 1_000..1_100 {
            counts.add(code, now);
        }
        assert_eq!(counts.each().count(), MAX_CODES + 1);
        let total: u64 = counts.each().map(|(_, count)| count).sum();
        assert_eq!((total, counts.newest(now)), (102, 1_099));
    }

    #[test]
    fn the_newest_code_is_told_for_a_while_and_its_count_for_ever() {
        let mut counts = Counts::default();
        let came = Duration::from_secs(1_000);
        counts.add(79, came);
        let told = |counts: &Counts, later: u64| counts.newest(came + Duration::from_secs(later));
        assert_eq!([told(&counts, 0), told(&counts, 299)], [79, 79]);
        assert_eq!([told(&counts, 300), told(&counts, 86_400)], [0, 0]);
        counts.add(31, came);
        counts.begin_anew();
        assert_eq!(told(&counts, 0), 0, "a reset ends what came before it");
        assert_eq!(counts.each().count(), 2, "what was counted stays counted");
    }
}
