//! What Cloud Monitoring takes as an alert policy (API v3) and as a dashboard (API v1), as far as ours use it: every
//! field by its name in JSON, with what may stand in it. It refuses a field that it does not know, and so does this.

use serde_json::Value;

/// What may stand in a field.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Any text that is not empty.
    Text,
    /// A number.
    Number,
    /// Whole seconds as text: `60s`.
    Seconds,
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// An object of these fields.
    Fields(&'static [Field]),
    /// An object of exactly one of these fields.
    One(&'static [Field]),
    /// A list of these, at least one.
    List(&'static Form),
}

/// A field: its name, what may stand in it, and whether it has to be there.
type Field = (&'static str, Form, bool);

const MUST: bool = true;
const MAY: bool = false;

/// Of a series' points to one a period, and of series to one a group.
const AGGREGATION: &[Field] = &[
    ("alignmentPeriod", Form::Seconds, MUST),
    (
        "perSeriesAligner",
        Form::OneOf(&[
            "ALIGN_DELTA",
            "ALIGN_RATE",
            "ALIGN_INTERPOLATE",
            "ALIGN_NEXT_OLDER",
            "ALIGN_MIN",
            "ALIGN_MAX",
            "ALIGN_MEAN",
            "ALIGN_COUNT",
            "ALIGN_SUM",
        ]),
        MUST,
    ),
    (
        "crossSeriesReducer",
        Form::OneOf(&[
            "REDUCE_NONE",
            "REDUCE_MEAN",
            "REDUCE_MIN",
            "REDUCE_MAX",
            "REDUCE_SUM",
            "REDUCE_COUNT",
        ]),
        MAY,
    ),
    ("groupByFields", Form::List(&Form::Text), MAY),
];

/// How many series have to be so; one of both.
const TRIGGER: &[Field] = &[("count", Form::Number, MAY), ("percent", Form::Number, MAY)];

const AGGREGATIONS: Form = Form::List(&Form::Fields(AGGREGATION));

/// A condition is of one kind, beside its name.
const CONDITION: &[Field] = &[
    ("displayName", Form::Text, MUST),
    (
        "conditionThreshold",
        Form::Fields(&[
            ("filter", Form::Text, MUST),
            ("aggregations", AGGREGATIONS, MUST),
            // The others of the API's names are not taken in a condition.
            (
                "comparison",
                Form::OneOf(&["COMPARISON_GT", "COMPARISON_LT"]),
                MUST,
            ),
            ("thresholdValue", Form::Number, MUST),
            ("duration", Form::Seconds, MUST),
            ("trigger", Form::One(TRIGGER), MAY),
        ]),
        MAY,
    ),
    (
        "conditionAbsent",
        Form::Fields(&[
            ("filter", Form::Text, MUST),
            ("aggregations", AGGREGATIONS, MUST),
            ("duration", Form::Seconds, MUST),
            ("trigger", Form::One(TRIGGER), MAY),
        ]),
        MAY,
    ),
];

/// `google.monitoring.v3.AlertPolicy`.
pub(super) const POLICY: Form = Form::Fields(&[
    ("displayName", Form::Text, MUST),
    (
        "documentation",
        Form::Fields(&[
            ("content", Form::Text, MUST),
            ("mimeType", Form::OneOf(&["text/markdown"]), MUST),
        ]),
        MUST,
    ),
    (
        "severity",
        Form::OneOf(&["CRITICAL", "ERROR", "WARNING"]),
        MUST,
    ),
    (
        "combiner",
        Form::OneOf(&["AND", "OR", "AND_WITH_MATCHING_RESOURCE"]),
        MUST,
    ),
    ("conditions", Form::List(&Form::Fields(CONDITION)), MUST),
]);

const CHART: &[Field] = &[
    (
        "dataSets",
        Form::List(&Form::Fields(&[
            (
                "plotType",
                Form::OneOf(&["LINE", "STACKED_AREA", "STACKED_BAR", "HEATMAP"]),
                MUST,
            ),
            ("targetAxis", Form::OneOf(&["Y1", "Y2"]), MAY),
            ("minAlignmentPeriod", Form::Seconds, MAY),
            (
                "timeSeriesQuery",
                Form::Fields(&[(
                    "timeSeriesFilter",
                    Form::Fields(&[
                        ("filter", Form::Text, MUST),
                        ("aggregation", Form::Fields(AGGREGATION), MUST),
                    ]),
                    MUST,
                )]),
                MUST,
            ),
        ])),
        MUST,
    ),
    (
        "yAxis",
        Form::Fields(&[
            ("label", Form::Text, MUST),
            ("scale", Form::OneOf(&["LINEAR", "LOG10"]), MUST),
        ]),
        MAY,
    ),
    (
        "chartOptions",
        Form::Fields(&[("mode", Form::OneOf(&["COLOR", "X_RAY", "STATS"]), MUST)]),
        MAY,
    ),
];

/// `google.monitoring.dashboard.v1.Dashboard`.
pub(super) const DASHBOARD: Form = Form::Fields(&[
    ("displayName", Form::Text, MUST),
    (
        "mosaicLayout",
        Form::Fields(&[
            ("columns", Form::Number, MUST),
            (
                "tiles",
                Form::List(&Form::Fields(&[
                    // What is 0 may be left out.
                    ("xPos", Form::Number, MAY),
                    ("yPos", Form::Number, MAY),
                    ("width", Form::Number, MUST),
                    ("height", Form::Number, MUST),
                    (
                        "widget",
                        Form::Fields(&[
                            ("title", Form::Text, MUST),
                            ("xyChart", Form::Fields(CHART), MUST),
                        ]),
                        MUST,
                    ),
                ])),
                MUST,
            ),
        ]),
        MUST,
    ),
]);

impl Form {
    /// What of a value is not of this form, each with its place.
    pub(super) fn wrong(self, value: &Value, place: &str) -> Vec<String> {
        let must = |is_good: bool, what: &str| match is_good {
            true => Vec::new(),
            false => vec![format!("{place} is {value}, not {what}")],
        };
        match self {
            Self::Text => must(value.as_str().is_some_and(|it| !it.is_empty()), "a text"),
            Self::Number => must(value.is_number(), "a number"),
            Self::Seconds => {
                let digits = value.as_str().and_then(|it| it.strip_suffix('s'));
                let is_good = digits.is_some_and(|it| it.parse::<u32>().is_ok());
                must(is_good, "so many seconds")
            }
            Self::OneOf(names) => {
                let is_good = value.as_str().is_some_and(|it| names.contains(&it));
                must(is_good, &names.join(" or "))
            }
            Self::List(form) => match value.as_array().filter(|it| !it.is_empty()) {
                Some(all) => all
                    .iter()
                    .enumerate()
                    .flat_map(|(index, it)| form.wrong(it, &format!("{place}[{index}]")))
                    .collect(),
                None => must(false, "a list"),
            },
            Self::Fields(fields) => wrong_fields(fields, value, place),
            Self::One(fields) => {
                let mut wrong = must(
                    value.as_object().is_some_and(|it| it.len() == 1),
                    "one of it",
                );
                wrong.extend(wrong_fields(fields, value, place));
                wrong
            }
        }
    }
}

fn wrong_fields(fields: &[Field], value: &Value, place: &str) -> Vec<String> {
    let Some(object) = value.as_object() else {
        return vec![format!("{place} is {value}, not an object")];
    };
    let mut wrong = Vec::new();
    for (name, form, must_be) in fields {
        match object.get(*name) {
            Some(it) => wrong.extend(form.wrong(it, &format!("{place}.{name}"))),
            None if *must_be => wrong.push(format!("{place} has no {name}")),
            None => {}
        }
    }
    let known = |it: &&String| fields.iter().all(|(name, ..)| name != *it);
    let unknown = object.keys().filter(known);
    wrong.extend(unknown.map(|it| format!("{place} has no field {it} in the API")));
    wrong
}

#[test]
fn a_field_or_a_name_that_the_api_does_not_have_is_found() {
    let condition = serde_json::json!({
        "displayName": "hot",
        "conditionThreshold": {
            "filter": "x", "comparison": "COMPARISON_GT", "thresholdValue": 1, "duration": "0s",
            "aggregations": [{"alignmentPeriod": "60s", "perSeriesAligner": "ALIGN_MEAN"}],
            "trigger": {"count": 1},
        },
    });
    let policy = serde_json::json!({
        "displayName": "hot", "severity": "WARNING", "combiner": "OR", "conditions": [condition],
        "documentation": {"content": "x", "mimeType": "text/markdown"},
    });
    let wrong = |from: &str, to: &str| {
        let text = policy.to_string();
        assert!(text.contains(from), "{from}");
        let changed = serde_json::from_str(&text.replace(from, to)).expect("it is JSON");
        POLICY.wrong(&changed, "policy")
    };
    assert_eq!(POLICY.wrong(&policy, "policy"), [""; 0]);
    for (from, to, count) in [
        ("\"conditionThreshold\"", "\"thresholdFilter\"", 1),
        ("\"thresholdValue\"", "\"threshold\"", 2),
        ("COMPARISON_GT", "COMPARISON_GE", 1),
        ("ALIGN_MEAN", "ALIGN_AVERAGE", 1),
        ("\"0s\"", "\"0\"", 1),
        ("\"0s\"", "0", 1),
        ("{\"count\":1}", "{\"count\":1,\"percent\":1}", 1),
        ("{\"count\":1}", "{\"counts\":1}", 1),
        ("\"WARNING\"", "\"WARN\"", 1),
        ("\"combiner\":\"OR\",", "", 1),
        ("\"hot\"", "\"\"", 2),
    ] {
        let found = wrong(from, to);
        assert_eq!(found.len(), count, "{from} → {to}: {found:?}");
    }
}
