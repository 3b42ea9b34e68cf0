//! What would make a run faster, as lines of `gpufleet job`.

use serde_json::Value;

use crate::words;

/// What is said where nothing is advised of a run that goes on.
const NONE: &str = "nothing that was measured says what would make it faster";

/// What the line is about, and what it says.
type Line = (&'static str, String);

/// The lines; none of a server that is older than they are.
pub(super) fn lines(run: &Value) -> String {
    let mut lines: Vec<Line> = Vec::new();
    if let Some(why) = run["advice_missing"].as_str() {
        lines.push(("faster", format!("not advised: {why}")));
    }
    if let Some(all) = run["advice"].as_array() {
        lines.extend(all.iter().flat_map(advised));
        if all.is_empty() {
            lines.push(("faster", NONE.to_owned()));
        }
    }
    if let Some(gain) = words::number(&run["advice_together"]) {
        let all = "all of it together, if nothing else becomes the limit";
        let is_unknown = |it: &Value| it["gain_missing"].is_string();
        let advice = run["advice"].as_array();
        let beside = match advice.is_some_and(|it| it.iter().any(is_unknown)) {
            true => ", without what is unknown",
            false => "",
        };
        lines.push(("", format!("{all}: {}{beside}", factor(gain))));
    }
    if let Some(said) = run["unexplained_collectives"].as_str() {
        lines.push(("hidden", said.to_owned()));
    }
    let lines = lines.iter();
    let lines = lines.map(|(what, said)| format!("{what:<9} {}\n", words::plain(said)));
    lines.collect()
}

/// One advice: what limits the run and what it gains, what was measured, what to change.
fn advised(advice: &Value) -> Vec<Line> {
    let [what, measured, worth, confidence] =
        ["what", "measured", "worth", "confidence"].map(|it| words::text(&advice[it]));
    let gain = match words::number(&advice["gain"]) {
        Some(gain) => format!("{}, {worth}", factor(gain)),
        None => format!("gain unknown: {}", words::text(&advice["gain_missing"])),
    };
    let said = format!("{what} ({gain}, confidence {confidence})");
    let also = advice["also"].as_array().into_iter().flatten();
    let knobs = std::iter::once(&advice["knob"]).chain(also);
    let mut lines = vec![("faster", said), ("", measured)];
    lines.extend(knobs.map(|it| ("", knob(it))));
    lines
}

/// A knob, today and proposed.
fn knob(knob: &Value) -> String {
    let today = knob["today"].as_str().unwrap_or("not told");
    let [name, proposed] = ["name", "proposed"].map(|it| words::text(&knob[it]));
    format!("{name}: {today} → {proposed}")
}

fn factor(gain: f64) -> String {
    format!("{gain:.2} × as fast")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_advice_says_what_it_rests_on_what_to_change_and_what_that_is_worth() {
        let data = json!({
            "limit": "data_workers", "what": "It waits for data: too few workers load it",
            "measured": "data wait 33 % (usual 2 %)", "gain": 1.4583, "confidence": "high",
            "worth": "$60.17 a day",
            "knob": {"name": "num_workers", "today": "4", "proposed": "6"},
            "also": [{"name": "pin_memory", "today": null, "proposed": "on"}],
        });
        let run = json!({"advice": [data], "advice_missing": null, "advice_together": 1.6});
        let expected = "\
faster    It waits for data: too few workers load it (1.46 × as fast, $60.17 a day, confidence high)
          data wait 33 % (usual 2 %)
          num_workers: 4 → 6
          pin_memory: not told → on
          all of it together, if nothing else becomes the limit: 1.60 × as fast
";
        assert_eq!(lines(&run), expected);
    }

    #[test]
    fn what_nobody_knows_the_gain_of_says_so_and_claims_none() {
        let known = |gain: f64| {
            let knob = json!({"name": "num_workers", "today": "4", "proposed": "6"});
            json!({
                "what": "It waits for data", "measured": "data wait 33 %", "gain": gain, "gain_missing": null,
                "worth": "$60.17 a day", "confidence": "high", "knob": knob, "also": [],
            })
        };
        let unknown = json!({
            "what": "Its batches come from memory that is not pinned", "measured": "data wait 33 %",
            "gain": null, "gain_missing": "no reading tells", "worth": "unknown, as its gain is",
            "confidence": "low", "also": [],
            "knob": {"name": "pin_memory", "today": "off", "proposed": "on"},
        });
        let alone = json!({"advice": [&unknown], "advice_together": null});
        let expected = "\
faster    Its batches come from memory that is not pinned (gain unknown: no reading tells, confidence low)
          data wait 33 %
          pin_memory: off → on
";
        assert_eq!(lines(&alone), expected);
        let three = json!({"advice": [known(1.4), known(1.2), &unknown], "advice_together": 1.6});
        let together = "limit: 1.60 × as fast, without what is unknown\n";
        assert!(lines(&three).ends_with(together), "{}", lines(&three));
    }

    #[test]
    fn where_nothing_is_advised_it_is_said_why_and_of_an_older_server_nothing() {
        for (run, expected) in [
            (
                json!({"advice": null, "advice_missing": "it has ended"}),
                "faster    not advised: it has ended\n".to_owned(),
            ),
            (json!({"advice": []}), format!("faster    {NONE}\n")),
            (
                json!({"advice": [], "unexplained_collectives": "Its\ncollectives"}),
                format!("faster    {NONE}\nhidden    Its collectives\n"),
            ),
            (json!({}), String::new()),
        ] {
            assert_eq!(lines(&run), expected, "{run}");
        }
    }
}
