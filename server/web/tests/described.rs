//! What the document says of words and media types, asked of the routes themselves.

use super::*;

/// Parameters that refuse a word and are none of a few words: cursors, lists with commas, months.
const NOT_ONE_OF_A_FEW: [&str; 4] = ["after", "by", "month", "ranks"];

/// The same of a route: states with commas between them.
const LIST: (&str, &str) = ("/api/v1/gpus", "state");

#[tokio::test]
async fn a_parameter_that_takes_a_few_words_says_which_and_takes_each_of_them() {
    let server = server().await.with_an_incident().await;
    let document = server.json("/api/v1/openapi.json").await;
    let (mut closed, mut untold) = (BTreeSet::new(), Vec::new());
    for (method, path, address) in addresses() {
        let parameters = document["paths"][path.as_str()][method.as_str()]["parameters"].as_array();
        for parameter in parameters.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            let schema = &parameter["schema"];
            let is_text = schema["type"] == "string" && schema["format"].is_null();
            // Two runs that are compared are filled in.
            if parameter["in"] != "query" || !is_text || address.contains('?') {
                continue;
            }
            let with = |word: &str| match name {
                "focus_version" => format!("{address}?format=focus&{name}={word}"),
                _ => format!("{address}?{name}={word}"),
            };
            let refuses = server.get(&with("dreamt")).await.0 == StatusCode::BAD_REQUEST;
            let Some(words) = schema["enum"].as_array() else {
                let is_list = NOT_ONE_OF_A_FEW.contains(&name) || (path.as_str(), name) == LIST;
                if refuses && !is_list {
                    untold.push(format!("{path}: {name}"));
                }
                continue;
            };
            assert!(refuses, "{path}: {name}");
            closed.insert(name.to_owned());
            // Which is of a FOCUS file, and time that was worth something is none.
            if path.ends_with("/efficiency") && name == "focus_version" {
                continue;
            }
            for word in words {
                server.took(&with(word.as_str().unwrap())).await;
            }
        }
    }
    assert_eq!(untold, [""; 0]);
    let expected = [
        "basis",
        "family",
        "focus_version",
        "format",
        "kind",
        "origin",
        "resource_kind",
        "severity",
        "sort",
        "state",
    ];
    assert_eq!(closed, BTreeSet::from(expected.map(str::to_owned)));
}

#[tokio::test]
async fn a_report_comes_in_the_media_types_that_the_document_names_and_in_no_other() {
    let server = server().await;
    let document = server.json("/api/v1/openapi.json").await;
    for (what, forms) in [("chargeback", 4), ("efficiency", 3), ("reconcile", 3)] {
        let path = format!("/api/v1/reports/{what}");
        let described = &document["paths"][path.as_str()]["get"];
        let told = &described["responses"]["200"]["content"];
        let told: BTreeSet<String> = told.as_object().unwrap().keys().cloned().collect();
        let mut parameters = described["parameters"].as_array().unwrap().iter();
        let format = parameters.find(|it| it["name"] == "format").unwrap();
        let words = format["schema"]["enum"].as_array().unwrap();
        assert_eq!(words.len(), forms, "{what}");
        let mut sent = BTreeSet::new();
        for form in words {
            let address = format!("{path}?format={}", form.as_str().unwrap());
            let answer = server.took(&address).await;
            let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap();
            sent.insert(kind.split(';').next().unwrap().to_owned());
        }
        assert_eq!(told, sent, "{what}");
    }
}

impl Fixture {
    /// The answer where it is one.
    async fn took(&self, address: &str) -> Response<Body> {
        let request = Request::get(address).body(Body::empty()).unwrap();
        let answer = self.ask(request).await;
        assert_eq!(answer.status(), StatusCode::OK, "{address}");
        answer
    }
}
