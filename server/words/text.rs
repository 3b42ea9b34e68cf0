//! Names, numbers and times as a person reads them; hostile names made harmless.
//!
//! A name comes from a node, a driver or a label: it may hold HTML, control characters, marks that
//! turn the writing direction, or 10 KB of anything. askama escapes HTML; this file cuts length and
//! shows what is invisible. The API returns names as they are: JSON escapes them.

use std::fmt::Write as _;

use gpufleet_analysis::money::ratio;
use gpufleet_analysis::words::thousands;
use gpufleet_telemetry::catalog::Unit;
use gpufleet_telemetry::time::Timestamp;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// Longest name shown, in characters: a GPU UUID (40) and a Kubernetes node name (63) fit.
pub const SHOWN_CHARACTERS: usize = 64;

/// Longest sentence shown, in characters: where an incident is, what it is, and what to do about it.
pub const SENTENCE_CHARACTERS: usize = 300;

/// Longest name in a tooltip, in characters: enough to recognise it, too little to flood a page.
pub const TITLE_CHARACTERS: usize = 400;

/// A name ready to be shown: harmless, cut, and with its longer form where it was cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Name {
    /// What is shown.
    pub text: String,
    /// What the tooltip says; none when nothing was cut.
    pub title: Option<String>,
}

impl Name {
    /// A name from outside.
    pub fn new(raw: &str) -> Self {
        if raw.is_empty() {
            return Self {
                text: "(empty name)".to_owned(),
                title: None,
            };
        }
        let text = harmless(raw, SHOWN_CHARACTERS);
        let cut = raw.chars().nth(SHOWN_CHARACTERS).is_some();
        let title = cut.then(|| {
            let mut title = harmless(raw, TITLE_CHARACTERS);
            let _ = write!(title, " ({} bytes in all)", raw.len());
            title
        });
        Self { text, title }
    }

    /// A sentence of ours in which names from outside may stand; empty where there is none.
    pub fn sentence(raw: &str) -> Self {
        Self {
            text: harmless(raw, SENTENCE_CHARACTERS),
            title: None,
        }
    }
}

/// `raw` with invisible characters replaced by `�`, cut to `limit` characters.
pub fn harmless(raw: &str, limit: usize) -> String {
    let mut shown: String = raw
        .chars()
        .take(limit)
        .map(|it| if is_hidden(it) { '\u{fffd}' } else { it })
        .collect();
    if raw.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}

/// Whether a character has no shape of its own or changes how others are read.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One segment of a path: everything but RFC 3986's unreserved characters percent-encoded.
pub fn segment(raw: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(raw.len());
    for byte in raw.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}

/// A value with its unit, converted from the base unit to what people say.
pub fn quantity(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Watts => format!("{} W", rounded(value)),
        Unit::Joules if value.abs() >= 3.6e6 => format!("{} kWh", rounded(value / 3.6e6)),
        Unit::Joules => format!("{} kJ", rounded(value / 1e3)),
        Unit::Celsius => format!("{value:.0} °C"),
        Unit::Hertz => format!("{:.0} MHz", value / 1e6),
        Unit::Bytes => binary(value),
        Unit::BytesPerSecond => decimal(value),
        Unit::Seconds if value != 0.0 && value.abs() < 1e-3 => {
            format!("{} µs", rounded(value * 1e6))
        }
        Unit::Seconds if value != 0.0 && value.abs() < 1.0 => {
            format!("{} ms", rounded(value * 1e3))
        }
        // Steps of 1.2 and 1.4 s are not alike.
        Unit::Seconds if value != 0.0 && value.abs() < 9.995 => pace(value),
        Unit::Seconds => span((value * 1e3) as i64),
        Unit::Ratio => format!("{} %", rounded(value * 100.0)),
        Unit::Count => grouped(value),
        Unit::Flag if value == 0.0 => "no".to_owned(),
        Unit::Flag => "yes".to_owned(),
        Unit::Code => format!("{value:.0}"),
    }
}

/// One decimal below 10, none above; `0.0` only where the value is 0 or rounds to it.
fn rounded(value: f64) -> String {
    if value == 0.0 || value.abs() >= 9.95 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut index = 0;
    while value.abs() >= base && index + 1 < units.len() {
        value /= base;
        index += 1;
    }
    format!("{} {}", rounded(value), units[index])
}

fn binary(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

fn decimal(bytes_per_second: f64) -> String {
    scaled(
        bytes_per_second,
        1000.0,
        &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"],
    )
}

/// How long a step takes, in three significant digits: its thousandths are what people tune for.
pub fn pace(seconds: f64) -> String {
    let magnitude = seconds.abs();
    let (value, unit) = match magnitude {
        _ if magnitude < 999.5e-6 => (seconds * 1e6, "µs"),
        _ if magnitude < 999.5e-3 => (seconds * 1e3, "ms"),
        _ if magnitude < 999.5 => (seconds, "s"),
        _ => return span((seconds * 1e3) as i64),
    };
    let decimals = match value.abs() {
        0.0..9.995 => 2,
        9.995..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// A count with thin spaces between its thousands.
pub fn grouped(value: f64) -> String {
    if value.fract() != 0.0 && value.abs() < 999.5 {
        return rounded(value);
    }
    let digits = thousands(&format!("{:.0}", value.abs()));
    match value < 0.0 {
        true => format!("−{digits}"),
        false => digits,
    }
}

/// `one GPU`, `2 GPUs`: a count with its noun.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    let number = grouped(count as f64);
    format!("{number} {}", if count == 1 { one } else { many })
}

/// So many thousandths of GPUs: `8 GPUs`, `0.2 GPUs`.
pub fn gpus(milli: u64) -> String {
    let unit = if milli == 1_000 { "GPU" } else { "GPUs" };
    format!("{} {unit}", gpu_count(milli))
}

/// The same without its noun: `8`, `0.2`.
pub fn gpu_count(milli: u64) -> String {
    match (milli / 1_000, milli % 1_000) {
        // A little is not nothing.
        (0, 1..50) => "under 0.1".to_owned(),
        (whole, 0) => grouped(whole as f64),
        _ => format!("{:.1}", milli as f64 / 1_000.0),
    }
}

/// GPU-milliseconds as GPU-hours to a tenth: `1.3`, `under 0.1`.
pub fn hours(gpu_millis: i64) -> String {
    let tenths = ratio(gpu_millis.into(), 1, 360_000).unwrap_or(0);
    match (tenths, gpu_millis) {
        (0, 1..) => "under 0.1".to_owned(),
        _ => format!("{}.{}", grouped((tenths / 10) as f64), tenths % 10),
    }
}

/// Nano-units of a currency to the cent: `$1 234.50`, `1 234.50 EUR`.
pub fn amount(currency: &str, nano: i128) -> String {
    let cents = ratio(nano, 1, 10_000_000).unwrap_or(0);
    let sign = if cents < 0 { "-" } else { "" };
    let whole = grouped((cents.abs() / 100) as f64);
    let part = cents.abs() % 100;
    in_currency(currency, sign, &format!("{whole}.{part:02}"))
}

/// Digits as money: `$1.50`, `1.50 EUR`.
pub fn in_currency(currency: &str, sign: &str, digits: &str) -> String {
    match currency {
        "USD" => format!("{sign}${digits}"),
        other => format!("{sign}{digits} {other}"),
    }
}

/// Nano-units of a currency where the size matters and not the cent: below a tenth four digits behind the point, from
/// ten thousand on none.
pub fn money(currency: &str, nano: i64) -> String {
    const TEN_CENTS: u64 = 100_000_000;
    const TEN_THOUSAND: u64 = 10_000_000_000_000;
    let sign = if nano < 0 { "-" } else { "" };
    match nano.unsigned_abs() {
        tiny @ 1..TEN_CENTS => in_currency(currency, sign, &format!("{:.4}", tiny as f64 / 1e9)),
        0..TEN_THOUSAND => amount(currency, nano.into()),
        large => in_currency(currency, sign, &grouped((large as f64 / 1e9).round())),
    }
}

/// Money of a part, to the hundredth of a cent: of a step, of a million tokens.
pub fn small_money(currency: &str, value: f64) -> String {
    match (value * 1e9) as i64 {
        1..50_000 => format!("under {}", in_currency(currency, "", "0.0001")),
        nano @ -999_999_999..1_000_000_000 => {
            in_currency(currency, "", &format!("{:.4}", nano as f64 / 1e9))
        }
        nano => money(currency, nano),
    }
}

/// A length of time in its two largest units: `4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn span(millis: i64) -> String {
    let seconds = millis.unsigned_abs().div_ceil(1000);
    if millis.unsigned_abs() < 1000 && millis != 0 {
        return format!("{millis} ms");
    }
    let (large, small) = match seconds {
        0..60 => return format!("{seconds} s"),
        60..3600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        3600..86_400 => ((seconds / 3600, "h"), (seconds % 3600 / 60, "min")),
        _ => ((seconds / 86_400, "d"), (seconds % 86_400 / 3600, "h")),
    };
    if small.0 == 0 {
        format!("{} {}", large.0, large.1)
    } else {
        format!("{} {} {} {}", large.0, large.1, small.0, small.1)
    }
}

/// How long before `now` something was: `4 s ago`, `3 min 20 s ago`, or `just now`.
pub fn ago(now: Timestamp, then: Timestamp) -> String {
    match now.millis() - then.millis() {
        1000.. => format!("{} ago", span(now.millis() - then.millis())),
        -5000..1000 => "just now".to_owned(),
        ahead => format!("{} ahead of the server's clock", span(-ahead)),
    }
}

fn formatted(at: Timestamp, format: &[BorrowedFormatItem<'_>]) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0))
        .ok()
        .and_then(|moment| moment.format(format).ok())
        .unwrap_or_else(|| "time out of range".to_owned())
}

/// `2026-11-21 07:12:03`, in UTC.
pub fn moment(at: Timestamp) -> String {
    formatted(
        at,
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second]"),
    )
}

/// `2026-11-21 07:12`, in UTC.
pub fn minute(at: Timestamp) -> String {
    formatted(
        at,
        format_description!("[year]-[month]-[day] [hour]:[minute]"),
    )
}

/// `07:12`, in UTC.
pub fn clock_time(at: Timestamp) -> String {
    formatted(at, format_description!("[hour]:[minute]"))
}

/// RFC 3339 with milliseconds, `2026-11-21T07:12:03.000Z`: times in the API and in `datetime`.
pub fn rfc3339(at: Timestamp) -> String {
    formatted(
        at,
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_ten_kilobytes_is_cut_and_its_title_too() {
        let name = Name::new(&"n".repeat(10_240));
        assert_eq!(name.text.chars().count(), SHOWN_CHARACTERS + 1);
        let title = name.title.expect("a cut name has a title");
        assert!(title.chars().count() < TITLE_CHARACTERS + 40, "{title}");
        assert!(title.ends_with("(10240 bytes in all)"), "{title}");
    }

    #[test]
    fn characters_that_cannot_be_seen_are_shown_as_such() {
        for (raw, shown) in [
            ("node-1", "node-1"),
            ("a\u{0}b\nc", "a�b�c"),
            ("gpu\u{202e}1-edon", "gpu�1-edon"),
            ("zero\u{200b}width", "zero�width"),
            ("<b>", "<b>"),
            ("Größe 節點", "Größe 節點"),
            ("", "(empty name)"),
        ] {
            let name = Name::new(raw);
            assert_eq!((name.text.as_str(), name.title), (shown, None));
        }
    }

    #[test]
    fn whole_gpus_have_no_digit_behind_the_point_and_parts_have_one() {
        let said = [0, 20, 240, 1_000, 8_000, 12_500].map(gpus);
        let expected = [
            "0 GPUs",
            "under 0.1 GPUs",
            "0.2 GPUs",
            "1 GPU",
            "8 GPUs",
            "12.5 GPUs",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn money_has_thin_spaces_between_its_thousands_and_cents_where_they_matter() {
        for (nano, shown) in [
            (0, "$0.00"),
            (1_230_000, "$0.0012"),
            (-50_000_000, "-$0.0500"),
            (100_000_000, "$0.10"),
            (11_060_000_000, "$11.06"),
            (-5_000_000_000, "-$5.00"),
            (1_234_565_000_000, "$1\u{202f}234.57"),
            (9_999_990_000_000, "$9\u{202f}999.99"),
            (10_000_400_000_000, "$10\u{202f}000"),
            (-1_234_567_890_000_000, "-$1\u{202f}234\u{202f}568"),
            (i64::MAX, "$9\u{202f}223\u{202f}372\u{202f}037"),
        ] {
            assert_eq!(money("USD", nano), shown, "{nano}");
        }
        assert_eq!(small_money("USD", 0.5), "$0.5000");
        assert_eq!(small_money("USD", 0.000_04), "under $0.0001");
        assert_eq!(small_money("USD", 0.000_05), "$0.0001");
        assert_eq!(small_money("USD", 0.0), "$0.0000");
        assert_eq!(small_money("USD", 1_234.5), "$1\u{202f}234.50");
        for (nano, shown) in [
            (-50_000_000, "-0.0500 EUR"),
            (11_060_000_000, "11.06 EUR"),
            (10_000_400_000_000, "10\u{202f}000 EUR"),
        ] {
            assert_eq!(money("EUR", nano), shown, "{nano}");
        }
        assert_eq!(small_money("EUR", 0.5), "0.5000 EUR");
        assert_eq!(small_money("EUR", 0.000_04), "under 0.0001 EUR");
        let much = 1_234_567_890_000_000;
        assert_eq!(amount("USD", much), "$1\u{202f}234\u{202f}567.89");
        assert_eq!(amount("EUR", -much), "-1\u{202f}234\u{202f}567.89 EUR");
    }

    #[test]
    fn a_path_segment_holds_no_separator() {
        assert_eq!(segment("GPU-1a.b_c~"), "GPU-1a.b_c~");
        assert_eq!(segment("a/b?c#d%e f"), "a%2Fb%3Fc%23d%25e%20f");
        assert_eq!(segment("é"), "%C3%A9");
    }

    #[test]
    fn values_are_shown_in_the_units_people_say() {
        for (unit, value, shown) in [
            (Unit::Watts, 691.4, "691 W"),
            (Unit::Ratio, 0.0, "0 %"),
            (Unit::Ratio, 0.004, "0.4 %"),
            (Unit::Ratio, 0.873, "87 %"),
            (Unit::Bytes, 85_899_345_920.0, "80 GiB"),
            (Unit::Bytes, 512.0, "512 B"),
            (Unit::BytesPerSecond, 24.2e9, "24 GB/s"),
            (Unit::Hertz, 1.98e9, "1980 MHz"),
            (Unit::Celsius, 61.4, "61 °C"),
            (Unit::Joules, 7.2e6, "2.0 kWh"),
            (Unit::Count, 1_234_567.0, "1\u{202f}234\u{202f}567"),
            (Unit::Flag, 1.0, "yes"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Seconds, 0.00042, "420 µs"),
            (Unit::Seconds, 0.0042, "4.2 ms"),
            (Unit::Seconds, 1.428, "1.43 s"),
            (Unit::Seconds, 30.0, "30 s"),
            (Unit::Seconds, 200.0, "3 min 20 s"),
        ] {
            assert_eq!(quantity(unit, value), shown);
        }
    }

    #[test]
    fn a_pace_has_three_significant_digits() {
        for (seconds, shown) in [
            (1.4321, "1.43 s"),
            (1.0, "1.00 s"),
            (9.996, "10.0 s"),
            (84.25, "84.2 s"),
            (613.4, "613 s"),
            (3_600.0, "1 h"),
            (0.7124, "712 ms"),
            (0.9996, "1.00 s"),
            (0.004_25, "4.25 ms"),
            (0.000_042, "42.0 µs"),
        ] {
            assert_eq!(pace(seconds), shown);
        }
    }

    #[test]
    fn spans_name_their_two_largest_units() {
        for (millis, shown) in [
            (0, "0 s"),
            (450, "450 ms"),
            (12_000, "12 s"),
            (60_000, "1 min"),
            (200_000, "3 min 20 s"),
            (7_500_000, "2 h 5 min"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(span(millis), shown);
        }
    }

    #[test]
    fn a_moment_ahead_of_the_server_is_not_called_past() {
        let now = Timestamp::from_seconds(1_000_000);
        assert_eq!(ago(now, Timestamp::from_seconds(999_988)), "12 s ago");
        assert_eq!(ago(now, now), "just now");
        assert_eq!(
            ago(now, Timestamp::from_seconds(1_000_090)),
            "1 min 30 s ahead of the server's clock"
        );
    }

    #[test]
    fn times_are_utc_and_sortable() {
        let at = Timestamp::from_millis(1_763_709_123_456);
        assert_eq!(moment(at), "2025-11-21 07:12:03");
        assert_eq!(rfc3339(at), "2025-11-21T07:12:03.456Z");
        assert_eq!(clock_time(at), "07:12");
    }
}
