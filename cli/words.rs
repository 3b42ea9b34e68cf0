//! Values of the API in words. What is missing is a dash or its reason, never 0.

use serde_json::Value;

/// What stands where nothing was told.
pub(crate) const NOTHING: &str = "–";

/// A text as it may stand in a line: names, notes and errors come from whoever runs jobs or watches them. What would
/// move a terminal's cursor, change its colours or begin a line is a space; what has no shape of its own or changes
/// how others are read is `�`, as on the pages.
pub(crate) fn plain(text: &str) -> String {
    let shown = text.chars().map(|it| match it {
        it if it.is_control() => ' ',
        it if is_hidden(it) => '\u{fffd}',
        it => it,
    });
    shown.collect()
}

/// As the server's `words::text` has them.
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A text, or a dash.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() => plain(text),
        Value::Number(number) => number.to_string(),
        Value::Bool(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
        _ => NOTHING.to_owned(),
    }
}

/// What stands behind a cluster's name: nothing where it is live, else ` (simulated)`.
pub(crate) fn origin(value: &Value) -> String {
    let origin = value.as_str().filter(|it| *it != "live");
    origin.map_or_else(String::new, |it| format!(" ({})", plain(it)))
}

/// A number as it is, or one that the API says as `{value, missing}`.
pub(crate) fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value["value"].as_f64())
}

/// A number in words, else the reason why there is none.
fn said(value: &Value, in_words: impl FnOnce(f64) -> String) -> String {
    match (number(value), value["missing"].as_str()) {
        (Some(number), _) => in_words(number),
        // A sentence may name a setting; a reason of one word is a code.
        (None, Some(reason)) if reason.contains(' ') => plain(reason),
        (None, Some(reason)) if reason != "not_reported" => plain(reason).replace('_', " "),
        _ => NOTHING.to_owned(),
    }
}

/// The same in a table, where of a reason what stands before its colon is enough: `not known`.
pub(crate) fn in_short(value: &Value, in_words: impl FnOnce(f64) -> String) -> String {
    let told = said(value, in_words);
    match number(value) {
        Some(_) => told,
        None => told.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// A share, `0.4321` as `43 %`.
pub(crate) fn percent(value: &Value) -> String {
    said(value, |share| format!("{:.0} %", share * 100.0))
}

/// Bytes in GiB.
pub(crate) fn gib(value: &Value) -> String {
    said(value, |bytes| format!("{:.1} GiB", bytes / 1_073_741_824.0))
}

/// Watts in kW.
pub(crate) fn kilowatts(value: &Value) -> String {
    said(value, |watts| format!("{:.1} kW", watts / 1_000.0))
}

/// A number with so many decimals and its unit.
pub(crate) fn measured(value: &Value, decimals: usize, unit: &str) -> String {
    said(value, |number| format!("{number:.decimals$}{unit}"))
}

/// What the money of an answer is in; a server that does not say it yet means US dollars.
pub(crate) fn currency(answer: &Value) -> &str {
    answer["currency"].as_str().unwrap_or("USD")
}

/// Money, in what `of` says.
pub(crate) fn money(value: &Value, of: &Value) -> String {
    let currency = currency(of);
    said(value, |value| match value.abs() < 0.1 {
        true if value > 0.0 && value < 0.000_05 => {
            format!("under {}", in_currency(currency, "", "0.0001"))
        }
        true => in_currency(currency, "", &format!("{value:.4}")),
        false => amount(value, currency),
    })
}

/// The same of billionths of it.
pub(crate) fn nano_money(value: &Value, of: &Value) -> String {
    match value.as_f64() {
        Some(nano) => amount(nano / 1e9, currency(of)),
        None => NOTHING.to_owned(),
    }
}

/// Money to the cent, with thin spaces between its thousands as the pages have it: `$1 234.50`, `1 234.50 EUR`.
pub(crate) fn amount(value: f64, currency: &str) -> String {
    let digits = format!("{:.2}", value.abs());
    let (whole, cents) = digits.split_once('.').unwrap_or((&digits, ""));
    let sign = if value < 0.0 { "-" } else { "" };
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    in_currency(currency, sign, &format!("{grouped}.{cents}"))
}

/// Digits as money: `$1.50`, `1.50 EUR`.
fn in_currency(currency: &str, sign: &str, digits: &str) -> String {
    match currency {
        "USD" => format!("{sign}${digits}"),
        other => format!("{sign}{digits} {}", plain(other)),
    }
}

/// How long a step takes, in three significant digits.
pub(crate) fn pace(value: &Value) -> String {
    said(value, |seconds| {
        let magnitude = seconds.abs().max(1e-6).log10().floor() as i32;
        let decimals = usize::try_from(2 - magnitude).unwrap_or(0);
        format!("{seconds:.decimals$} s")
    })
}

/// A length of time in its two largest units, as the pages have it: `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    let (large, small) = match seconds {
        0..60 => return format!("{seconds} s"),
        60..3_600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        3_600..86_400 => ((seconds / 3_600, "h"), (seconds % 3_600 / 60, "min")),
        _ => ((seconds / 86_400, "d"), (seconds % 86_400 / 3_600, "h")),
    };
    match small.0 {
        0 => format!("{} {}", large.0, large.1),
        _ => format!("{} {} {} {}", large.0, large.1, small.0, small.1),
    }
}

/// A moment without its fraction, UTC as the API has it; heads of tables say so: `2026-11-21 18:06:20`.
pub(crate) fn moment(value: &Value) -> String {
    match value.as_str() {
        Some(text) => {
            let second: String = text.chars().take(19).collect();
            plain(&second).replace('T', " ")
        }
        None => NOTHING.to_owned(),
    }
}

/// That the detectors stand, where an answer of the API says since when: what is not in it may be wrong all the same.
pub(crate) fn stand(since: &Value) -> Option<String> {
    since.is_string().then(|| {
        format!(
            "the detectors have judged nothing since {} UTC: what broke since then is not known, and nobody is told of it; \
             `gpufleet doctor` says what to do\n",
            moment(since)
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_never_a_number() {
        let reading = json!({"value": null, "missing": "gpu_lost"});
        assert_eq!(percent(&reading), "gpu lost");
        assert_eq!(
            percent(&json!({"value": null, "missing": "not_reported"})),
            NOTHING
        );
        assert_eq!(percent(&Value::Null), NOTHING);
        assert_eq!(percent(&json!({"value": 0.0, "missing": null})), "0 %");
        assert_eq!(measured(&json!(1.25), 1, " s"), "1.2 s");
        for (seconds, shown) in [
            (1.4321, "1.43 s"),
            (0.004_25, "0.00425 s"),
            (613.4, "613 s"),
        ] {
            assert_eq!(pace(&json!(seconds)), shown);
        }
        assert_eq!(
            moment(&json!("2026-11-21T18:06:20.5Z")),
            "2026-11-21 18:06:20"
        );
    }

    #[test]
    fn in_a_table_a_reason_is_as_long_as_its_kind() {
        let share = |value: &Value| in_short(value, |it| format!("{:.0} %", it * 100.0));
        let why = "not said: the run gives no FLOPs";
        assert_eq!(share(&json!({"value": null, "missing": why})), "not said");
        assert_eq!(share(&json!({"value": 0.4, "missing": null})), "40 %");
        assert_eq!(share(&Value::Null), NOTHING);
    }

    #[test]
    fn a_length_of_time_has_its_two_largest_units() {
        for (seconds, shown) in [
            (0.0, "0 s"),
            (59.2, "1 min"),
            (200.0, "3 min 20 s"),
            (7_500.0, "2 h 5 min"),
            (273_600.0, "3 d 4 h"),
        ] {
            assert_eq!(span(seconds), shown);
        }
    }

    #[test]
    fn money_has_thin_spaces_between_its_thousands() {
        for (value, currency, shown) in [
            (0.0, "USD", "$0.00"),
            (999.995, "USD", "$1\u{202f}000.00"),
            (1_234_567.891, "USD", "$1\u{202f}234\u{202f}567.89"),
            (-12_345.6, "EUR", "-12\u{202f}345.60 EUR"),
        ] {
            assert_eq!(amount(value, currency), shown);
        }
        let (dollars, euros) = (json!({"currency": "USD"}), json!({"currency": "EUR"}));
        // A server of before does not say what its money is in.
        for of in [&dollars, &json!({})] {
            assert_eq!(money(&json!(0.012_34), of), "$0.0123");
            assert_eq!(money(&json!(0.000_01), of), "under $0.0001");
            assert_eq!(money(&json!(2_500.0), of), "$2\u{202f}500.00");
            let nano = nano_money(&json!(2_500_000_000_000_i64), of);
            assert_eq!(nano, "$2\u{202f}500.00");
        }
        assert_eq!(money(&json!(0.012_34), &euros), "0.0123 EUR");
        assert_eq!(money(&json!(0.000_01), &euros), "under 0.0001 EUR");
        assert_eq!(money(&json!(2_500.0), &euros), "2\u{202f}500.00 EUR");
        assert_eq!(nano_money(&json!(2_500_000_000_i64), &euros), "2.50 EUR");
    }

    #[test]
    fn no_name_commands_the_terminal() {
        let name = json!("llm\u{1b}[2J\n\u{9b}31mfine");
        assert_eq!(text(&name), "llm [2J  31mfine");
        let reversed = json!("team\u{202e}nimda\u{202c}\u{2066}\u{200b}\u{2028}");
        assert_eq!(
            text(&reversed),
            "team\u{fffd}nimda\u{fffd}\u{fffd}\u{fffd}\u{fffd}"
        );
        assert_eq!(text(&json!("über\u{202f}1 日本")), "über\u{202f}1 日本");
        let missing = json!({"value": null, "missing": "not now:\n\u{1b}[2J"});
        assert_eq!(percent(&missing), "not now:  [2J");
        assert_eq!(moment(&missing["missing"]), "not now:  [2J");
        assert_eq!(origin(&json!("made\nup")), " (made up)");
    }
}
