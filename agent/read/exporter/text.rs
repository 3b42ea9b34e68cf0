//! The Prometheus text format, read: exact where a line is right, a reason where it is not.
//!
//! Total: any bytes give series and refused lines, never a panic. HELP, TYPE and every other
//! comment are ignored, because exporters get them wrong (dcgm-exporter calls rates counters).
//! Timestamps are checked and dropped: a scrape is as old as the scrape. OpenMetrics exemplars are
//! cut off.
//!
//! Limits: [`MAX_SERIES`], [`MAX_LABELS`], [`MAX_LABEL_BYTES`]. What is over them is refused and
//! counted, the rest is read.
//!
//! ```text
//! name{label="value",other="a \"b\" \\ \n"} 1.5e3 1700000000000
//! ```

use std::borrow::Cow;

/// Most series one scrape may carry. Sixteen GPUs at 100 series are 1,600; a vLLM server with all
/// its histograms has about 3,000. Beyond this it is a mistake or an attack.
pub const MAX_SERIES: usize = 20_000;

/// Most labels one series may carry. dcgm-exporter with pod labels has about 20, AMD's about 25.
pub const MAX_LABELS: usize = 64;

/// Most bytes a name, a label's name or its value may have. Pod names stop at 253.
pub const MAX_LABEL_BYTES: usize = 1024;

/// Most refused lines that are kept to be shown; the rest is only counted.
pub const MAX_REFUSALS_SHOWN: usize = 8;

/// One line that carries a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Series<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// Its labels in the order they stand, unescaped.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// Its value; NaN and infinities are values of the format.
    pub value: f64,
}

/// A line that was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Refusal {
    /// Its number, from 1.
    pub line: usize,
    /// Why it was refused.
    pub why: Why,
}

/// Why a line was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's message is its documentation")]
pub enum Why {
    #[error("a metric name was expected")]
    NoName,
    #[error("a label name was expected")]
    NoLabelName,
    #[error("`=` was expected after a label name")]
    NoEquals,
    #[error("a label value in double quotes was expected")]
    NoQuote,
    #[error("a label value is not closed")]
    Unclosed,
    #[error("`,` or `}}` was expected after a label value")]
    NoSeparator,
    #[error("a label stands twice")]
    LabelTwice,
    #[error("a number was expected")]
    NoValue,
    #[error("the timestamp is not a number")]
    BadTimestamp,
    #[error("something stands after the value")]
    Trailing,
    #[error("more than {MAX_LABELS} labels")]
    TooManyLabels,
    #[error("a name or label value has more than {MAX_LABEL_BYTES} bytes")]
    TooLong,
    #[error("more than {MAX_SERIES} series")]
    TooManySeries,
}

/// A whole body, read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Body<'a> {
    /// Every series that was understood, in order.
    pub series: Vec<Series<'a>>,
    /// How many lines were refused.
    pub refused: usize,
    /// The first of them.
    pub refusals: Vec<Refusal>,
}

impl<'a> Series<'a> {
    /// A label's value; an empty one is an absent one, as Prometheus has it.
    pub fn label(&self, name: &str) -> Option<&str> {
        let (_, value) = self.labels.iter().find(|(label, _)| *label == name)?;
        (!value.is_empty()).then_some(value.as_ref())
    }
}

/// Reads a whole body.
pub fn parse(text: &str) -> Body<'_> {
    let mut body = Body::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = if body.series.len() < MAX_SERIES {
            parse_line(line)
        } else {
            Err(Why::TooManySeries)
        };
        match parsed {
            Ok(series) => body.series.push(series),
            Err(why) => {
                body.refused += 1;
                if body.refusals.len() < MAX_REFUSALS_SHOWN {
                    body.refusals.push(Refusal {
                        line: number + 1,
                        why,
                    });
                }
            }
        }
    }
    body
}

fn parse_line(line: &str) -> Result<Series<'_>, Why> {
    let (name, rest) = take_name(line, true).ok_or(Why::NoName)?;
    check_length(name)?;
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(inner) => parse_labels(inner)?,
        None => (Vec::new(), rest),
    };
    let value = parse_value(rest)?;
    Ok(Series {
        name,
        labels,
        value,
    })
}

/// The longest name at the start; metric names may have colons, label names not.
fn take_name(text: &str, colon: bool) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || (colon && c == ':')))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let first = name.chars().next()?;
    (!first.is_ascii_digit()).then_some((name, rest))
}

fn check_length(text: &str) -> Result<(), Why> {
    if text.len() > MAX_LABEL_BYTES {
        return Err(Why::TooLong);
    }
    Ok(())
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

fn parse_labels(mut rest: &str) -> Result<(Labels<'_>, &str), Why> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, after) = take_name(rest, false).ok_or(Why::NoLabelName)?;
        check_length(name)?;
        let after = after.trim_start().strip_prefix('=').ok_or(Why::NoEquals)?;
        let after = after.trim_start().strip_prefix('"').ok_or(Why::NoQuote)?;
        let (value, after) = take_quoted(after)?;
        check_length(&value)?;
        if labels.len() == MAX_LABELS {
            return Err(Why::TooManyLabels);
        }
        if labels.iter().any(|(other, _)| *other == name) {
            return Err(Why::LabelTwice);
        }
        labels.push((name, value));
        rest = after.trim_start();
        if let Some(after) = rest.strip_prefix(',') {
            rest = after;
        } else if !rest.starts_with('}') {
            return Err(Why::NoSeparator);
        }
    }
}

/// The value up to the closing quote, unescaped. An escape the format does not know stays as it
/// is, as Prometheus does it.
fn take_quoted(text: &str) -> Result<(Cow<'_, str>, &str), Why> {
    let end = text.find(['"', '\\']).ok_or(Why::Unclosed)?;
    if text.as_bytes()[end] == b'"' {
        return Ok((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let mut value = text[..end].to_owned();
    let mut characters = text[end..].char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok((Cow::Owned(value), &text[end + at + 1..])),
            '\\' => match characters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                Some((_, other)) => value.extend(['\\', other]),
                None => return Err(Why::Unclosed),
            },
            other => value.push(other),
        }
    }
    Err(Why::Unclosed)
}

fn parse_value(rest: &str) -> Result<f64, Why> {
    // An exemplar (OpenMetrics) begins with ` # `; nothing in a value or timestamp has a `#`.
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let mut words = rest.split_ascii_whitespace();
    let value = words.next().ok_or(Why::NoValue)?;
    let value: f64 = value.parse().map_err(|_| Why::NoValue)?;
    if let Some(timestamp) = words.next() {
        let timestamp: f64 = timestamp.parse().map_err(|_| Why::BadTimestamp)?;
        if !timestamp.is_finite() {
            return Err(Why::BadTimestamp);
        }
    }
    if words.next().is_some() {
        return Err(Why::Trailing);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Owned = (String, Vec<(String, String)>, f64);

    fn one(line: &str) -> Result<Owned, Why> {
        let body = parse(line);
        if let Some(refusal) = body.refusals.first() {
            return Err(refusal.why);
        }
        let series = body.series.into_iter().next().expect("one series");
        let labels = series.labels.into_iter();
        Ok((
            series.name.to_owned(),
            labels
                .map(|(name, value)| (name.to_owned(), value.into_owned()))
                .collect(),
            series.value,
        ))
    }

    #[test]
    fn a_right_line_gives_name_labels_and_value() {
        type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], f64);
        let cases: &[Case<'_>] = &[
            ("up 1", "up", &[], 1.0),
            (
                "vllm:num_requests_running{} 3",
                "vllm:num_requests_running",
                &[],
                3.0,
            ),
            (r#"a{b="c"} 1.98e+09"#, "a", &[("b", "c")], 1_980_000_000.0),
            (
                r#"a { b = "c" , d = "" , } -2 1700000000000"#,
                "a",
                &[("b", "c"), ("d", "")],
                -2.0,
            ),
            (
                r#"a{b="x\"y\\z\n\q}"} 0"#,
                "a",
                &[("b", "x\"y\\z\n\\q}")],
                0.0,
            ),
            (r#"a{b="é,#{ "} 5"#, "a", &[("b", "é,#{ ")], 5.0),
            (
                r#"a_bucket{le="+Inf"} 7 # {trace_id="x"} 0.5"#,
                "a_bucket",
                &[("le", "+Inf")],
                7.0,
            ),
            ("\ta\t+Inf\t", "a", &[], f64::INFINITY),
            ("a -Inf", "a", &[], f64::NEG_INFINITY),
        ];
        for (line, name, labels, value) in cases {
            let labels = labels.iter().map(|(n, v)| ((*n).into(), (*v).into()));
            let expected = Ok(((*name).to_owned(), labels.collect(), *value));
            assert_eq!(one(line), expected, "{line}");
        }
        assert!(one("a NaN").expect("a value").2.is_nan());
    }

    #[test]
    fn a_wrong_line_gives_its_reason() {
        let long = format!("a{{b=\"{}\"}} 1", "x".repeat(MAX_LABEL_BYTES + 1));
        let many: String = (0..=MAX_LABELS).map(|n| format!("l{n}=\"\",")).collect();
        let many = format!("a{{{many}}} 1");
        let cases = [
            ("{a=\"b\"} 1", Why::NoName),
            ("9a 1", Why::NoName),
            ("é 1", Why::NoName),
            ("a{1=\"b\"} 1", Why::NoLabelName),
            ("a{b:c=\"d\"} 1", Why::NoEquals),
            ("a{b\"c\"} 1", Why::NoEquals),
            ("a{b=c} 1", Why::NoQuote),
            ("a{b=\"c} 1", Why::Unclosed),
            ("a{b=\"c\\", Why::Unclosed),
            ("a{b=\"c\\\"", Why::Unclosed),
            ("a{b=\"c\" d=\"e\"} 1", Why::NoSeparator),
            ("a{b=\"c\",b=\"d\"} 1", Why::LabelTwice),
            ("a", Why::NoValue),
            ("a one", Why::NoValue),
            ("a{b=\"c\"}", Why::NoValue),
            ("a 1 now", Why::BadTimestamp),
            ("a 1 NaN", Why::BadTimestamp),
            ("a 1 2 3", Why::Trailing),
            (long.as_str(), Why::TooLong),
            (many.as_str(), Why::TooManyLabels),
        ];
        for (line, why) in cases {
            assert_eq!(one(line), Err(why), "{line}");
        }
    }

    #[test]
    fn one_wrong_line_does_not_cost_the_others_and_is_named_by_its_number() {
        let body = parse("# HELP a x\n# TYPE a gauge\na 1\n\nb{\nc 3\r\n# EOF\n");
        let names: Vec<&str> = body.series.iter().map(|series| series.name).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(
            body.refusals[0].to_string(),
            "line 5: a label name was expected"
        );
    }

    #[test]
    fn series_beyond_the_limit_are_counted_and_only_the_first_shown() {
        let text = "a 1\n".repeat(MAX_SERIES + 20);
        let body = parse(&text);
        assert_eq!(body.series.len(), MAX_SERIES);
        assert_eq!(body.refused, 20);
        assert_eq!(body.refusals.len(), MAX_REFUSALS_SHOWN);
        assert_eq!(body.refusals[0].why, Why::TooManySeries);
    }

    #[test]
    fn no_cut_and_no_changed_byte_of_a_right_body_makes_it_panic() {
        let text = "# HELP a \\\na{b=\"c\\\"\\n\",d=\"é\"} 1.5e3 17 # {x=\"y\"} 1\nq 2\n";
        for end in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            parse(&text[..end]);
        }
        for at in 0..text.len() {
            for byte in [b'"', b'\\', b'{', b'}', b',', b'=', b'\n', b' ', 0] {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                parse(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    #[test]
    fn an_empty_label_is_an_absent_one() {
        let body = parse("a{pod=\"\",gpu=\"0\"} 1");
        assert_eq!(body.series[0].label("pod"), None);
        assert_eq!(body.series[0].label("gpu"), Some("0"));
    }
}
