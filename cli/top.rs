//! `gpufleet top`: who uses how many GPUs and how well, or every GPU, drawn again every few seconds; once
//! where nobody watches.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::Answer;
use crate::ask::{self, List};
use crate::client::Client;
use crate::named;
use crate::table::{self, Table};
use crate::words;

/// Lines and columns of a terminal that does not say how large it is.
const SIZE: (usize, usize) = (24, 80);
/// Erases the screen and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// What is listed, and how often.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gpufleet top                      holders, those with the most GPUs first, every 5 s until Ctrl-C
  gpufleet top --by gpu --sort power   every GPU, the hottest eaters first
  gpufleet top --once               one table, as in a pipe: gpufleet top | head
  gpufleet top --json --cluster prod   the same for programs")]
pub(crate) struct Asked {
    /// One line for each holder, or for each GPU.
    #[arg(long, default_value = "holder")]
    by: By,
    /// What comes first.
    #[arg(long, default_value = "gpus")]
    sort: Sort,
    /// Only of this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// Only `live`, `recorded` or `simulated` ones.
    #[arg(long)]
    origin: Option<String>,
    /// One table, and no other after it.
    #[arg(long)]
    once: bool,
    /// Seconds between two tables.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Holder,
    Gpu,
}

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Whoever has the most; of GPUs their place.
    Gpus,
    /// The busiest.
    Busy,
    /// The least busy.
    Idle,
    /// The most memory.
    Memory,
    /// The most power.
    Power,
}

/// What GPUs of one holder do, or one GPU does.
#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    cluster: String,
    name: String,
    gpus: usize,
    states: BTreeMap<String, usize>,
    busy: Mean,
    memory: Mean,
    power: Mean,
}

/// The sum of what was measured, and of how many GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Mean {
    sum: f64,
    of: usize,
}

impl Mean {
    pub(crate) fn add(&mut self, reading: &Value) {
        if let Some(value) = words::number(reading) {
            self.sum += value;
            self.of += 1;
        }
    }

    /// None when nothing was measured: that is not 0.
    pub(crate) fn mean(self) -> Option<f64> {
        (self.of > 0).then(|| self.sum / self.of as f64)
    }

    pub(crate) fn sum(self) -> Option<f64> {
        (self.of > 0).then_some(self.sum)
    }
}

/// Draws until nobody watches any more, or once. The answer is the last table.
pub(crate) fn answer(client: &Client, asked: &Asked, json: bool) -> anyhow::Result<Answer> {
    let watched = std::io::stdout().is_terminal();
    if asked.once || json || !watched {
        return once(client, asked, None);
    }
    let mut shown = None;
    loop {
        let mut out = std::io::stdout();
        let terminal = rustix::termios::tcgetwinsize(&out).ok();
        let terminal = terminal.map(|it| (it.ws_row, it.ws_col));
        let (lines, columns) = size(terminal, std::env::var("LINES").ok().as_deref());
        let found = once(client, asked, Some(lines));
        client.waiting().is_over();
        let (answer, why_old) = newest(found, shown)?;
        let why_old = why_old.map(|it| stale(&it, asked.every));
        let text = answer.text.clone() + &why_old.unwrap_or_default();
        let text = table::cut(&text, columns);
        let drawn = write!(out, "{CLEAR}{text}").and_then(|()| out.flush());
        if drawn.is_err() {
            return Ok(Answer {
                text: String::new(),
                ..answer
            });
        }
        shown = Some(answer);
        client.pause(Duration::from_secs(asked.every));
    }
}

/// How many lines and columns the terminal has: as it says itself, else as the environment says how tall it is, which
/// shells keep to themselves.
fn size(terminal: Option<(u16, u16)>, lines: Option<&str>) -> (usize, usize) {
    let (rows, columns) = terminal.unwrap_or_default();
    let said = lines.and_then(|it| it.parse().ok());
    let rows = [Some(usize::from(rows)), said];
    let rows = rows.into_iter().flatten().find(|it| *it > 4);
    let columns = Some(usize::from(columns)).filter(|it| *it > 0);
    (rows.unwrap_or(SIZE.0), columns.unwrap_or(SIZE.1))
}

/// The table that is to be shown: what was found, else the one that is shown and why there is no newer. Without any
/// there is nothing to look at meanwhile.
fn newest(
    found: anyhow::Result<Answer>,
    shown: Option<Answer>,
) -> anyhow::Result<(Answer, Option<anyhow::Error>)> {
    match (found, shown) {
        (Ok(found), _) => Ok((found, None)),
        (Err(error), Some(shown)) => Ok((shown, Some(error))),
        (Err(error), None) => Err(error),
    }
}

/// That the table is no longer true, in one line.
fn stale(why: &anyhow::Error, every: u64) -> String {
    let said = format!("from before, asked again every {every} s: {why:#}");
    words::plain(&said) + "\n"
}

fn once(client: &Client, asked: &Asked, lines: Option<usize>) -> anyhow::Result<Answer> {
    let given = ask::given([
        ("cluster", asked.cluster.as_deref()),
        ("origin", asked.origin.as_deref()),
    ]);
    let list = ask::all(client, "/gpus", &given)?;
    if list.items.is_empty() {
        named::known_place(client, asked.cluster.as_deref(), None)?;
    }
    let found = sorted(found(&list.items, asked.by), asked.sort);
    Ok(Answer {
        text: text(&found, &list, asked.by, lines),
        json: json!({"items": found.iter().map(told).collect::<Vec<_>>(), "whole": list.is_whole}),
        is_good: true,
    })
}

fn found(gpus: &[Value], by: By) -> Vec<Line> {
    let mut found: BTreeMap<(String, String), Line> = BTreeMap::new();
    for gpu in gpus {
        let cluster = words::text(&gpu["cluster"]) + &words::origin(&gpu["origin"]);
        let name = match by {
            By::Holder => holder(gpu),
            By::Gpu => {
                let index = gpu["index"].as_u64();
                // Nodes are in the order of their names, and ten comes after nine.
                let index = index.map_or(words::NOTHING.to_owned(), |it| format!("{it:>2}"));
                format!("{} {index}", words::text(&gpu["node"]))
            }
        };
        let line = found.entry((cluster.clone(), name.clone())).or_default();
        (line.cluster, line.name) = (cluster, name);
        line.gpus += 1;
        let state = words::text(&gpu["state"]).replace('_', " ");
        *line.states.entry(state).or_default() += 1;
        let readings = &gpu["readings"];
        line.busy.add(&readings["utilization_ratio"]);
        line.memory.add(&readings["memory_used_bytes"]);
        line.power.add(&readings["power_watts"]);
    }
    found.into_values().collect()
}

/// Who holds a GPU: a name, nobody, or nobody knows.
fn holder(gpu: &Value) -> String {
    match (
        gpu["holder"]["known"].as_bool(),
        gpu["holder"]["name"].as_str(),
    ) {
        (_, Some(name)) => name.to_owned(),
        (Some(true), None) => "nobody".to_owned(),
        _ => "not known".to_owned(),
    }
}

/// What is not measured comes last, whatever is asked for.
fn sorted(mut found: Vec<Line>, sort: Sort) -> Vec<Line> {
    let rank = |it: &Line| match sort {
        Sort::Gpus => Some(it.gpus as f64),
        Sort::Busy => it.busy.mean(),
        Sort::Idle => it.busy.mean().map(|it| -it),
        Sort::Memory => it.memory.sum(),
        Sort::Power => it.power.sum(),
    };
    // The sort keeps the order of the names among equals.
    found.sort_by(|one, other| {
        let (one, other) = (rank(one), rank(other));
        let least = f64::NEG_INFINITY;
        other.unwrap_or(least).total_cmp(&one.unwrap_or(least))
    });
    found
}

fn text(found: &[Line], list: &List, by: By, lines: Option<usize>) -> String {
    let head = match by {
        By::Holder => "HOLDER",
        By::Gpu => "NODE AND GPU",
    };
    let mut table = Table::new(&[
        "CLUSTER", head, ">GPUS", ">BUSY", ">MEMORY", ">POWER", "STATES",
    ]);
    // A line each for the heads, for what is below, and for the prompt.
    let room = lines.map_or(usize::MAX, |it| it.saturating_sub(4));
    for it in found.iter().take(room) {
        let states = it.states.iter();
        let states = states.map(|(state, count)| match it.gpus {
            1 => state.clone(),
            _ => format!("{count} {state}"),
        });
        table.row(vec![
            it.cluster.clone(),
            it.name.clone(),
            it.gpus.to_string(),
            words::percent(&json!(it.busy.mean())),
            words::gib(&json!(it.memory.sum())),
            words::measured(&json!(it.power.sum()), 0, " W"),
            states.collect::<Vec<_>>().join(", "),
        ]);
    }
    let mut text = table.text("no GPU is there; `gpufleet status` says whether any reports");
    let more = found.len().saturating_sub(room);
    if more > 0 {
        text.push_str(&format!("… and {more} more\n"));
    }
    text + &list.note()
}

fn told(it: &Line) -> Value {
    json!({
        "cluster": it.cluster,
        "name": it.name,
        "gpus": it.gpus,
        "states": it.states,
        "busy_ratio": it.busy.mean(),
        "memory_used_bytes": it.memory.sum(),
        "power_watts": it.power.sum(),
        "measured_gpus": it.busy.of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u64, holder: &str, busy: Value) -> Value {
        json!({"cluster": "prod", "node": "n-1", "index": index, "origin": "live", "state": "active_unrated",
            "holder": {"known": true, "name": holder},
            "readings": {"utilization_ratio": {"value": busy, "missing": null},
                "memory_used_bytes": {"value": 1_073_741_824.0, "missing": null},
                "power_watts": {"value": null, "missing": "gpu_lost"}}})
    }

    #[test]
    fn a_holder_is_the_mean_of_what_is_measured_and_what_is_not_is_no_zero() {
        let gpus = [
            gpu(0, "a", json!(0.5)),
            gpu(1, "a", Value::Null),
            gpu(2, "b", json!(0.9)),
        ];
        let lines = sorted(found(&gpus, By::Holder), Sort::Gpus);
        let list = List {
            is_whole: true,
            ..List::default()
        };
        let text = text(&lines, &list, By::Holder, None);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|it| {
                it.split("  ")
                    .map(str::trim)
                    .filter(|it| !it.is_empty())
                    .collect()
            })
            .collect();
        let none = words::NOTHING;
        assert_eq!(
            rows,
            [
                vec![
                    "prod",
                    "a",
                    "2",
                    "50 %",
                    "2.0 GiB",
                    none,
                    "2 active unrated"
                ],
                vec!["prod", "b", "1", "90 %", "1.0 GiB", none, "active unrated"],
            ]
        );
        assert_eq!(told(&lines[0])["power_watts"], Value::Null);
    }

    #[test]
    fn a_terminal_says_itself_how_large_it_is_and_the_environment_speaks_for_one_that_does_not() {
        for (terminal, lines, expected) in [
            (Some((50, 132)), None, (50, 132)),
            (Some((50, 132)), Some("30"), (50, 132)),
            (Some((0, 0)), Some("30"), (30, SIZE.1)),
            (None, Some("30"), (30, SIZE.1)),
            (None, Some("many"), SIZE),
            (Some((3, 40)), Some("2"), (SIZE.0, 40)),
            (None, None, SIZE),
        ] {
            assert_eq!(size(terminal, lines), expected, "{terminal:?} {lines:?}");
        }
    }

    #[test]
    fn a_refusal_leaves_the_table_there_with_a_line_that_says_why_and_the_first_one_ends_it() {
        let table = |text: &str| Answer {
            text: text.to_owned(),
            json: Value::Null,
            is_good: true,
        };
        let refused = || anyhow::anyhow!("nobody answers\nat \u{1b}[2J{}", "x".repeat(90));
        assert!(newest(Err(refused()), None).is_err());
        let (first, why) = newest(Ok(table("first")), None).expect("a table");
        assert!(first.text == "first" && why.is_none());
        let (old, why) = newest(Err(refused()), Some(first)).expect("it is there");
        assert_eq!(old.text, "first");
        let line = stale(&why.expect("it says why"), 5);
        let begins = "from before, asked again every 5 s: nobody answers at  [2Jxx";
        assert!(line.starts_with(begins) && line.ends_with('\n'), "{line:?}");
        assert_eq!(line.lines().count(), 1, "{line:?}");
        let (new, why) = newest(Ok(table("second")), Some(old)).expect("a table");
        assert!(new.text == "second" && why.is_none());
    }

    #[test]
    fn what_is_asked_for_comes_first_and_what_is_not_measured_last() {
        let gpus = [
            gpu(0, "a", Value::Null),
            gpu(1, "b", json!(0.1)),
            gpu(2, "c", json!(0.9)),
        ];
        for (sort, expected) in [
            (Sort::Busy, ["c", "b", "a"]),
            (Sort::Idle, ["b", "c", "a"]),
            (Sort::Gpus, ["a", "b", "c"]),
        ] {
            let lines = sorted(found(&gpus, By::Holder), sort);
            let names: Vec<&str> = lines.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names, expected, "{sort:?}");
        }
    }

    #[test]
    fn a_screen_is_not_longer_than_it_is_tall_and_says_what_is_below() {
        let gpus: Vec<Value> = (0..30).map(|it| gpu(it, "a", json!(0.5))).collect();
        let lines = found(&gpus, By::Gpu);
        let list = List {
            is_whole: true,
            ..List::default()
        };
        let text = text(&lines, &list, By::Gpu, Some(24));
        assert_eq!(text.lines().count(), 1 + 20 + 1);
        assert!(text.ends_with("… and 10 more\n"), "{text}");
    }

    #[test]
    fn a_table_drawn_for_80_columns_has_no_longer_line_and_as_many() {
        let holders = ["pod:research/", "pod:研究/", "pod:über/"];
        let holders = holders.map(|it| it.to_owned() + &"n".repeat(80));
        let gpus = (0..30).zip(holders.iter().cycle());
        let gpus: Vec<Value> = gpus.map(|(it, of)| gpu(it, of, json!(0.5))).collect();
        let list = List::default();
        let whole = text(&found(&gpus, By::Holder), &list, By::Holder, Some(24));
        let drawn = table::cut(&whole, 80);
        assert_eq!(drawn.lines().count(), whole.lines().count());
        for line in drawn.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(drawn.starts_with("CLUSTER"), "{drawn}");
    }
}
