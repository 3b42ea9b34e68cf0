//! `gpufleet today`: the fleet in one line, what goes to waste and whose it is, what is not measured, and
//! what changed since yesterday.

use serde_json::Value;

use crate::Answer;
use crate::client::Client;
use crate::table::Table;
use crate::words;

/// Longest sentence of a row, characters: a terminal is not a page.
const SENTENCE: usize = 70;

/// The answer.
pub(crate) fn answer(client: &Client) -> anyhow::Result<Answer> {
    let json = client.get("/today")?;
    Ok(Answer {
        text: text(&json),
        is_good: stand(&json).is_none(),
        json,
    })
}

/// That the detectors stand, so that no incident is not that nothing is wrong; none while they judge.
fn stand(today: &Value) -> Option<String> {
    words::stand(&today["detectors_stand_since"])
}

fn text(today: &Value) -> String {
    let currency = today["currency"].as_str().unwrap_or_default();
    let sections = today["sections"].as_array().map(Vec::as_slice);
    let sections = sections.unwrap_or_default();
    let stand = stand(today);
    let is_judged = stand.is_none();
    let mut text = stand.unwrap_or_default();
    if sections.is_empty() {
        text.push_str(
            "no GPU is live or simulated; `gpufleet status` says whether the server is well\n",
        );
    }
    for section in sections {
        if section["origin"] != "live" {
            text.push_str("\nSIMULATED: no such hardware exists, and it is in no live total\n");
        }
        match section["counts"]["gpus"].as_u64() {
            Some(0) => text.push_str(&nothing(section, is_judged)),
            _ => text.push_str(&line(section, currency, is_judged)),
        }
        text.push_str(&waste(section, currency).text("nothing goes to waste that is known"));
        more(&mut text, section, "more_waste", "rows that cost less");
        for (name, called) in [("blind_spots", "not seen"), ("not_measured", "in no sum")] {
            for it in items(section, name) {
                let (what, fix) = (words::text(&it["what"]), words::text(&it["fix"]));
                text.push_str(&format!("{called}: {what} {fix}\n"));
            }
        }
        for it in items(section, "changes") {
            let at = words::moment(&it["at"]);
            text.push_str(&format!("{at}  {}\n", words::text(&it["what"])));
        }
        more(&mut text, section, "more_changes", "older changes");
    }
    for it in items(today, "budgets") {
        text.push_str(&budget(it, currency));
    }
    if today["past_known"] == false {
        text.push_str("the store does not answer: what changed and what broke off is not known\n");
    }
    text
}

fn items<'a>(section: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    section[name].as_array().into_iter().flatten()
}

fn more(text: &mut String, section: &Value, name: &str, what: &str) {
    let count = section[name].as_u64().unwrap_or(0);
    if count > 0 {
        text.push_str(&format!("… and {count} {what}\n"));
    }
}

/// States in which a GPU is at work: a pause of under five minutes is one.
const AT_WORK: &[&str] = &[
    "active_efficient",
    "active_inefficient",
    "active_unrated",
    "gap",
];

/// The other states, as the page calls them.
const OTHERWISE: [(&[&str], &str); 6] = [
    (&["unallocated", "parked", "held_empty"], "idle"),
    (&["stalled"], "stalled"),
    (&["unhealthy"], "lost or unhealthy"),
    (&["starting_node", "starting_pod"], "starting"),
    (&["draining"], "draining"),
    (&["unobserved"], NOT_MEASURED),
];

/// GPUs of which nothing says what they do.
const NOT_MEASURED: &str = "not measured";

fn line(section: &Value, currency: &str, is_judged: bool) -> String {
    let counts = &section["counts"];
    let money = match (
        section["waste_nano_per_day"].as_f64(),
        section["nano_per_day"].as_f64(),
    ) {
        (Some(waste), Some(all)) => format!(
            "{} a day of {} goes to waste",
            amount(waste, currency),
            amount(all, currency)
        ),
        _ => "no GPU has a price".to_owned(),
    };
    format!(
        "{}; {money}; {}\n",
        doing(counts),
        incidents(section, is_judged)
    )
}

/// What so many GPUs do, in the words of the page.
fn doing(counts: &Value) -> String {
    let of = |states: &[&str]| -> u64 {
        let count = |state: &&str| counts["by_state"][*state].as_u64();
        states.iter().filter_map(count).sum()
    };
    let all = counts["gpus"].as_u64().unwrap_or(0);
    if all == 0 {
        return "no GPU".to_owned();
    }
    let at_work = of(AT_WORK);
    let mut line = format!("{at_work} of {} at work", gpus(all as f64));
    let mut newer = all.saturating_sub(at_work);
    // Unobserved and measured all the same; an older server does not say it.
    let unknown = counts["holder_unknown"].as_u64().unwrap_or(0);
    for (states, name) in OTHERWISE {
        let mut count = of(states);
        newer = newer.saturating_sub(count);
        if name == NOT_MEASURED {
            count = count.saturating_sub(unknown);
        }
        if count > 0 {
            line.push_str(&format!(", {count} {name}"));
        }
    }
    if unknown > 0 {
        line.push_str(&format!(", {unknown} holder unknown"));
    }
    match newer {
        0 => line,
        newer => format!("{line}, {newer} in a newer state"),
    }
}

fn incidents(section: &Value, is_judged: bool) -> String {
    let count = match section["open_incidents"].as_u64() {
        Some(0) if !is_judged => return "whether an incident is open is not known".to_owned(),
        Some(1) => "1 incident open".to_owned(),
        _ => format!("{} incidents open", words::text(&section["open_incidents"])),
    };
    match section["nodes_with_incidents"].as_u64() {
        None | Some(0) => count,
        Some(1) => format!("{count} on 1 node"),
        Some(nodes) => format!("{count} on {nodes} nodes"),
    }
}

/// A team over its budget, with the money as far as it is known.
fn budget(it: &Value, currency: &str) -> String {
    let money = |name: &str| match it[name].as_f64() {
        Some(nano) => amount(nano, currency),
        None => "not known".to_owned(),
    };
    format!(
        "over budget: {}: {}; {} of {} spent, forecast {}; {}\n",
        words::text(&it["team"]),
        words::text(&it["what"]),
        money("spent_nano"),
        money("budget_nano"),
        money("forecast_nano"),
        words::text(&it["status"])
    )
}

/// Of a section whose nodes have told of no GPU.
fn nothing(section: &Value, is_judged: bool) -> String {
    let why = match section["no_gpus"].as_str() {
        Some(why) => words::plain(why),
        None => format!("no GPU is {}", words::text(&section["origin"])),
    };
    format!("{why}; {}\n", incidents(section, is_judged))
}

fn waste(section: &Value, currency: &str) -> Table {
    let mut table = Table::new(&[
        ">A DAY", "KIND", "WHERE", "OWNER", "STATUS", "WHAT", "TO DO",
    ]);
    for row in items(section, "waste") {
        let cost = match row["nano_per_day"].as_f64() {
            Some(nano) => amount(nano, currency),
            None => gpus(row["gpus"].as_f64().unwrap_or(0.0)),
        };
        table.row(vec![
            cost,
            words::text(&row["kind"]).replace('_', " "),
            words::text(&row["place"]),
            words::text(&row["owner"]),
            cut(&words::text(&row["status"])),
            cut(&words::text(&row["what"])),
            words::text(&row["action"]),
        ]);
    }
    table
}

/// What has no price, in GPUs; what is in no GPUs either is not known, as the page says it.
fn gpus(count: f64) -> String {
    match count {
        0.0 => "not known".to_owned(),
        1.0 => "1 GPU".to_owned(),
        little if little < 0.05 => "under 0.1 GPUs".to_owned(),
        whole if whole.fract() == 0.0 => format!("{whole:.0} GPUs"),
        part => format!("{part:.1} GPUs"),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SENTENCE) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

fn amount(nano: f64, currency: &str) -> String {
    words::amount(nano / 1e9, currency)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_are_counted_as_the_page_counts_them() {
        let said = [0.0, 0.02, 0.24, 1.0, 8.0, 12.5].map(gpus);
        let page = [
            "not known",
            "under 0.1 GPUs",
            "0.2 GPUs",
            "1 GPU",
            "8 GPUs",
            "12.5 GPUs",
        ];
        assert_eq!(said, page);
    }

    #[test]
    fn what_has_no_price_is_told_in_gpus_and_what_is_simulated_is_apart() {
        let section = |origin: &str, cost: Value| {
            json!({"origin": origin, "open_incidents": 1, "nodes_with_incidents": 1, "more_waste": 2, "more_changes": 0,
                "counts": {"gpus": 8, "by_state": {"parked": 8}},
                "nano_per_day": cost, "waste_nano_per_day": cost,
                "waste": [{"kind": "held_empty", "place": "llama", "owner": "nlp", "what": "8 GPUs",
                    "status": "acknowledged by ana",
                    "action": "Ask nlp.", "gpus": 8.0, "nano_per_day": cost}],
                "not_measured": [{"what": "3 GPUs.", "fix": "Mend it."}],
                "blind_spots": [{"what": "2 nodes.", "fix": "Look."}],
                "changes": [{"at": "2026-11-21T18:06:20Z", "what": "driver changed"}]})
        };
        let today = json!({"currency": "USD", "past_known": true, "sections": [
            section("live", json!(265_500_000_000_i64)), section("simulated", Value::Null)]});
        let text = text(&today);
        let (live, simulated) = text.split_once("\nSIMULATED").unwrap_or_default();
        for words in [
            "0 of 8 GPUs at work, 8 idle; $265.50 a day of $265.50 goes to waste; 1 incident open on 1 node",
            "$265.50  held empty  llama  nlp    acknowledged by ana  8 GPUs",
            "… and 2 rows that cost less",
            "in no sum: 3 GPUs. Mend it.",
            "not seen: 2 nodes. Look.",
            "2026-11-21 18:06:20  driver changed",
        ] {
            assert!(live.contains(words), "{words} is not in {live}");
        }
        assert!(
            simulated.contains("no GPU has a price") && simulated.contains("8 GPUs  held empty")
        );
        assert!(!simulated.contains('$'), "what is not known is not $0.00");
    }

    #[test]
    fn gpus_are_told_in_the_words_of_the_page_and_a_newer_servers_state_is_not_lost() {
        let states = json!({"active_unrated": 3, "gap": 1, "unallocated": 2, "held_empty": 1, "dreaming": 1});
        assert_eq!(
            doing(&json!({"gpus": 8, "by_state": states})),
            "4 of 8 GPUs at work, 3 idle, 1 in a newer state"
        );
        let blind =
            json!({"gpus": 8, "by_state": {"gap": 3, "unobserved": 5}, "holder_unknown": 2});
        assert_eq!(
            doing(&blind),
            "3 of 8 GPUs at work, 3 not measured, 2 holder unknown"
        );
    }

    #[test]
    fn where_the_detectors_stand_it_says_so_first_and_no_incident_is_not_none() {
        let mut today = json!({"currency": "USD", "past_known": true, "detectors_stand_since": null,
            "sections": [{"origin": "live", "open_incidents": 0, "counts": {"gpus": 0, "by_state": {}}}]});
        assert!(text(&today).contains("; 0 incidents open\n") && stand(&today).is_none());
        today["detectors_stand_since"] = json!("2026-11-21T18:06:20.000Z");
        let said = text(&today);
        assert!(
            said.starts_with("the detectors have judged nothing since 2026-11-21 18:06:20 UTC: "),
            "{said}"
        );
        assert!(
            said.contains("; whether an incident is open is not known\n"),
            "{said}"
        );
        today["sections"][0]["open_incidents"] = 2.into();
        assert!(text(&today).contains("; 2 incidents open\n"));
    }

    #[test]
    fn a_team_over_its_budget_is_told_with_its_money_also_where_no_gpu_is() {
        let mut today = json!({"currency": "EUR", "past_known": true, "sections": [], "budgets": [
            {"team": "science", "what": "the month's budget is overspent", "spent_nano": 120e9,
                "budget_nano": 100e9, "forecast_nano": null, "status": "open, in nobody's hands"}]});
        let line = "over budget: science: the month's budget is overspent; 120.00 EUR of 100.00 EUR \
                    spent, forecast not known; open, in nobody's hands\n";
        assert!(text(&today).ends_with(line), "{}", text(&today));
        today["budgets"] = json!([]);
        assert!(!text(&today).contains("budget"));
    }

    #[test]
    fn a_section_without_a_gpu_says_so_and_counts_nothing() {
        let mut today = json!({"currency": "USD", "past_known": true, "sections": [
            {"origin": "live", "open_incidents": 2, "counts": {"gpus": 0, "by_state": {}},
                "nano_per_day": null, "waste_nano_per_day": null, "waste": []}]});
        let why =
            "3 nodes report and none tells of a GPU; gpufleet-agent doctor on the node says why";
        today["sections"][0]["no_gpus"] = why.into();
        let told = super::text(&today);
        assert!(
            told.starts_with(&format!("{why}; 2 incidents open\n")),
            "{told}"
        );
        today["sections"][0]["no_gpus"] = Value::Null;
        let text = text(&today);
        assert!(
            text.starts_with("no GPU is live; 2 incidents open\n"),
            "{text}"
        );
        assert!(
            !text.contains("0 GPUs") && !text.contains("price"),
            "{text}"
        );
    }
}
