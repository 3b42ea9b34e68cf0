//! The parts of the job page: figures, the map of ranks and time, bars, the ending.

use gpufleet_analysis::ending::Reliability;
use gpufleet_analysis::goodput::{Category, Goodput};
use gpufleet_analysis::scaling::Efficiency;
use gpufleet_telemetry::catalog::{Metric, Unit, training};
use gpufleet_telemetry::time::Timestamp;

use super::gather::Past;
use super::{energy, utilisation};
use crate::runs::cost::Cost;
use crate::runs::facts::EndingFacts;
use crate::runs::heat::{self, COLUMNS};
use crate::runs::history::Cut;
use crate::runs::{Run, RunKey, State, words};
use crate::web::Web;
use crate::words::text::{self, money, quantity, small_money};

/// Most of a sentence about the end that is shown, characters.
const ENDING_CHARACTERS: usize = 600;

/// The line of the page Health about what runs tell of themselves, and that about prices.
pub(in crate::pages) const HOOKS: &str = "hooks";
pub(in crate::pages) const PRICES: &str = "prices";

/// A figure, or why there is none.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: Result<String, String>,
    pub(super) small: Option<String>,
    /// The line of the page Health that is about it where there is none.
    pub(super) anchor: &'static str,
}

/// A share of time as a bar.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) words: String,
    /// Of the whole, 0 to 100.
    pub(super) width: f64,
}

/// Ranks × time.
pub(super) struct HeatMap {
    pub(super) rows: Vec<HeatRow>,
    /// The names of the first and of the last row; the last is empty where there is one.
    pub(super) first: String,
    pub(super) last: String,
    pub(super) columns: usize,
    pub(super) height: usize,
    /// What it shows in one sentence.
    pub(super) words: String,
}

/// A rank, or neighbours.
pub(super) struct HeatRow {
    pub(super) y: usize,
    pub(super) name: String,
    pub(super) words: String,
    pub(super) boxes: Vec<HeatBox>,
}

/// Equal neighbours in time.
pub(super) struct HeatBox {
    pub(super) x: usize,
    pub(super) width: usize,
    /// `0` as fast as its peers to `4` slowest; `u` nothing known.
    pub(super) class: char,
}

/// Why it ended.
pub(super) struct Ending {
    pub(super) evidence: Vec<String>,
    pub(super) looked_at: String,
    pub(super) lost: String,
}

pub(super) fn figures(
    web: &Web,
    (key, run): (&RunKey, &Run),
    past: &Past,
    now: Timestamp,
) -> Vec<Figure> {
    let speaker = run.speaker().map(|it| it.1);
    let told = |metric: Metric| speaker.and_then(|it| it.facts.reading(metric.id));
    let tokens = run.tokens_per_second();
    let goodput = past.goodput.told().map_err(str::to_owned);
    let observed = goodput.as_ref().ok().and_then(|it| observed_words(it));
    let goodput = goodput.and_then(|it| goodput_share(it).ok_or("no time yet".to_owned()));
    let loss = told(training::LOSS).map(|it| format!("{it:.4}"));
    let memory = run.tightest_memory();
    let currency = web.app.currency();
    let [done_at, cost] = finish(run, &past.cost, now, currency);
    let [mfu, hfu] = utilisation::figures(web, (key, run), now);
    vec![
        figure("Step", "How long one step takes now, over the last 20.", {
            let told = run.step_seconds().map(text::pace);
            run.at_its_pace(told, "no step was told", now)
        }),
        figure("Tokens a second", "Of all ranks together.", {
            let told = tokens.map(|it| text::grouped(it.round()));
            run.at_its_pace(told, "not said: no rank gives its tokens", now)
        }),
        mfu,
        hfu,
        Figure {
            small: observed,
            ..figure(
                "Goodput",
                "Share of the job's observed time that went into steps that were kept.",
                goodput,
            )
        },
        Figure {
            small: memory.map(|it| format!("of rank {}, the one with the least left", it.0)),
            ..figure(
                "Memory at its peak",
                "Reserved by the framework's allocator.",
                {
                    let told = memory.map(|(_, peak, limit)| {
                        format!(
                            "{} of {}",
                            quantity(Unit::Bytes, peak),
                            quantity(Unit::Bytes, limit)
                        )
                    });
                    told.ok_or("not said: no rank gives its memory and limit")
                },
            )
        },
        figure("Loss", "The newest that was read.", loss.ok_or("not said")),
        done_at,
        cost,
        Figure {
            small: past
                .cost
                .of_a_million_tokens(run, now)
                .ok()
                .map(|it| format!("{} a million tokens", small_money(currency, it))),
            anchor: PRICES,
            ..figure(
                "Cost of a step",
                "All GPUs of the run for as long as a step takes now.",
                past.cost
                    .of_a_step(run, now)
                    .map(|it| small_money(currency, it)),
            )
        },
        energy::words(&past.energy),
        scaling(&past.scaling),
        reliability(past.reliability.as_ref()),
    ]
}

pub(super) fn figure<E: Into<String>>(
    name: &'static str,
    help: &'static str,
    value: Result<String, E>,
) -> Figure {
    Figure {
        name,
        help,
        value: value.map_err(Into::into),
        small: None,
        anchor: HOOKS,
    }
}

/// When it will be done, and what that costs in this currency.
fn finish(run: &Run, cost: &Cost, now: Timestamp, currency: &str) -> [Figure; 2] {
    let forecast = match run.state(now) {
        State::Running if run.stands_since(now).is_some() => Err(words::STANDS),
        State::Running => run
            .forecast(cost, now)
            .ok_or("not said: the run plans neither steps nor tokens"),
        _ => Err("it does not run"),
    };
    let late = forecast.ok().and_then(|it| it.late_ns).map(|late| {
        let by = text::span(late.abs() / 1_000_000);
        let side = if late > 0 { "after" } else { "before" };
        format!("{by} {side} its deadline")
    });
    let share = forecast.ok().and_then(|it| it.share);
    let share = share.map(|it| format!("{:.1} % done", it * 100.0));
    let small: Vec<String> = share.into_iter().chain(late).collect();
    let at = forecast.and_then(|it| it.finish_at.ok_or("not within ten years"));
    let at_finish = forecast.ok().and_then(|it| it.cost_at_finish);
    let at_finish = at_finish.and_then(|it| i64::try_from(it).ok());
    [
        Figure {
            small: (!small.is_empty()).then(|| small.join(", ")),
            ..figure("Done at", "At the present pace.", {
                at.map(|it| format!("{} UTC", text::moment(it)))
            })
        },
        Figure {
            small: at_finish.map(|it| format!("{} when it is done", money(currency, it))),
            anchor: PRICES,
            ..figure(
                "Cost so far",
                "The time that all attempts held their GPUs, at the price of the GPUs of this one.",
                cost.so_far().map(|it| money(currency, it)),
            )
        },
    ]
}

/// How often the job broke off, and how long it was down then.
fn reliability(found: Option<&Reliability>) -> Figure {
    let span = |ns: f64| text::span((ns / 1e6) as i64);
    let every = found.and_then(|it| it.mtbf_ns);
    let every = every.map(|it| format!("one in {}", span(it)));
    let back = found.and_then(|it| it.mttr_ns);
    let back = back.map(|it| format!("back after {}", span(it)));
    // Of less than a GPU-day the rate is a number without a meaning.
    let rate = found.filter(|it| it.interruptions > 0 && it.gpu_days >= 1.0);
    let rate = rate.and_then(|it| it.per_thousand_gpu_days);
    let rate = rate.map(|it| format!("{it:.2} in 1,000 GPU-days"));
    let small: Vec<String> = every.into_iter().chain(back).chain(rate).collect();
    let count = found.map(|it| text::grouped(it.interruptions as f64));
    Figure {
        small: (!small.is_empty()).then(|| small.join(", ")),
        anchor: "database",
        ..figure(
            "Interruptions",
            "Attempts of the job that nobody ended on purpose; the time between them, and until the next came up.",
            count.ok_or("not known: the store does not answer"),
        )
    }
}

/// How it scales, or what is known in place of that.
fn scaling(efficiency: &Efficiency) -> Figure {
    let sentence = efficiency.sentence();
    let value = match efficiency {
        Efficiency::Own { ratio, .. } => Ok(format!("{:.0} %", ratio * 100.0)),
        Efficiency::Published(_) | Efficiency::Unknown => Err(sentence.clone()),
    };
    Figure {
        small: value.is_ok().then_some(sentence),
        ..figure(
            "Scaling",
            "What each GPU does, compared with a smaller run of this job.",
            value,
        )
    }
}

/// The class of a rank's ratio to its peers: the detector's own limits.
fn class(ratio: Option<f64>) -> char {
    match ratio {
        None => 'u',
        Some(ratio) if ratio < 1.025 => '0',
        Some(ratio) if ratio < 1.05 => '1',
        Some(ratio) if ratio < 1.10 => '2',
        Some(ratio) if ratio < 1.20 => '3',
        Some(_) => '4',
    }
}

pub(super) fn heat(rows: &[heat::Row], cut: Option<Cut>, run: &Run) -> HeatMap {
    let slowest = rows.iter().filter_map(|it| it.slowest);
    let slowest = slowest.max_by(|a, b| a.1.total_cmp(&b.1));
    let has_steps = rows.iter().any(|it| it.has_steps);
    let words = match slowest {
        None if !has_steps => "No step was told in this time.".to_owned(),
        None => "There is one rank only, or one a stage: nobody to compare with.".to_owned(),
        Some((_, ratio)) if ratio < 1.025 && !run.tells_waits() => {
            "All ranks look alike here, because no step says what of it is waiting for other ranks."
                .to_owned()
        }
        Some((rank, ratio)) if ratio < 1.025 => {
            format!(
                "All ranks take equally long for their own part of a step; the slowest, rank {rank}, {ratio:.2} × its peers."
            )
        }
        Some((rank, ratio)) => {
            format!(
                "Over this time rank {rank} took longest for its own part of a step, {ratio:.2} × as long as its peers."
            )
        }
    };
    let left_out = cut.map(|it| format!(" {}", it.sentence()));
    let words = words + &left_out.unwrap_or_default();
    let row = |(y, it): (usize, &heat::Row)| HeatRow {
        y,
        name: match it.ranks {
            (first, last) if first == last => format!("rank {first}"),
            (first, last) => format!("ranks {first} to {last}"),
        },
        words: match it.slowest {
            Some((rank, ratio)) if it.ranks.0 == it.ranks.1 || rank == it.ranks.0 => {
                format!("{ratio:.2} × its peers")
            }
            Some((rank, ratio)) => format!("{ratio:.2} × its peers, rank {rank}"),
            None => "not compared".to_owned(),
        },
        boxes: boxes(&it.cells),
    };
    let shown: Vec<HeatRow> = rows.iter().enumerate().map(row).collect();
    let name = |row: Option<&HeatRow>| row.map(|it| it.name.clone()).unwrap_or_default();
    HeatMap {
        first: name(shown.first()),
        last: name(shown.last().filter(|_| shown.len() > 1)),
        height: rows.len().max(1),
        rows: shown,
        columns: COLUMNS,
        words,
    }
}

fn boxes(cells: &[Option<f64>]) -> Vec<HeatBox> {
    let mut boxes: Vec<HeatBox> = Vec::new();
    for (x, cell) in cells.iter().enumerate() {
        let class = class(*cell);
        match boxes.last_mut().filter(|it| it.class == class) {
            Some(same) => same.width += 1,
            None => boxes.push(HeatBox { x, width: 1, class }),
        }
    }
    boxes
}

/// Phases, each a share of the longest sum: they may overlap, so they are no parts of a whole.
pub(super) fn phases(run: &Run) -> Vec<Bar> {
    let phases = run.phases();
    let longest = phases.iter().map(|it| it.1).fold(0.0, f64::max);
    let bar = |(phase, seconds): &(gpufleet_telemetry::training::Phase, f64)| Bar {
        name: phase.name().replace('_', " "),
        words: quantity(Unit::Seconds, *seconds),
        width: seconds / longest * 100.0,
    };
    phases.iter().map(bar).collect()
}

fn goodput_share(goodput: &Goodput) -> Option<String> {
    goodput.ratio().map(|it| format!("{:.1} %", it * 100.0))
}

/// How much of the job's time that is of, where it is not all of it.
fn observed_words(goodput: &Goodput) -> Option<String> {
    let observed = goodput.observed().filter(|it| *it < 0.9995)?;
    Some(format!(
        "of the {:.1} % of its time whose steps are kept",
        observed * 100.0
    ))
}

pub(super) fn goodput(goodput: &Goodput) -> Vec<Bar> {
    let total = goodput.total().max(1) as f64;
    let kept = |it: &&Category| goodput.of(**it) > 0;
    let bar = |it: &Category| {
        let share = goodput.of(*it) as f64 / total;
        let seconds = quantity(Unit::Seconds, goodput.of(*it) as f64 / 1e9);
        Bar {
            name: it.name().replace('_', " "),
            words: format!("{seconds}, {:.1} %", share * 100.0),
            width: share * 100.0,
        }
    };
    Category::ALL.iter().filter(kept).map(bar).collect()
}

/// How many tags were told beyond those that are kept; none where all are.
pub(super) fn tags_left_out(count: usize) -> Option<String> {
    let words = text::counted(
        count,
        "more tag was told and is",
        "more tags were told and are",
    );
    (count > 0).then(|| format!("{words} not kept."))
}

pub(super) fn ending(facts: &EndingFacts, lost: Option<f64>, currency: &str) -> Ending {
    let harmless = |it: &String| text::harmless(it, ENDING_CHARACTERS);
    let worth = lost.filter(|_| facts.steps_lost > Some(0));
    let worth = worth.map(|it| format!(", worth {}", small_money(currency, it)));
    Ending {
        evidence: facts.evidence.iter().map(harmless).collect(),
        looked_at: facts.looked_at.join(", "),
        lost: match facts.steps_lost {
            Some(steps) => {
                text::counted(steps as usize, "step", "steps") + &worth.unwrap_or_default()
            }
            None => "not known".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests;
