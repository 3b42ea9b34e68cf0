//! Whether a page can be used by everybody, as far as a program can see it: axe-core looks at it in Chromium.

use gpufleet_tests::harness::browser::Browser;
use gpufleet_tests::harness::later;
use serde_json::{Value, json};

/// All rules of axe, good practice among them. Contrast is judged beneath our watermark too: it lies over
/// text as a pseudo-element, and axe gives no verdict there unless it is told to. The other options of
/// that check are axe's own. Of what passes only one place of each rule is worked out: nobody reads them.
const LOOK: &str = r"
    const contrast = { ignoreUnicode: true, ignoreLength: false, ignorePseudo: true, boldValue: 700, boldTextPt: 14,
        largeTextPt: 18, contrastRatio: { normal: { expected: 4.5 }, large: { expected: 3 } },
        pseudoSizeThreshold: 0.25, shadowOutlineEmMax: 0.2, textStrokeEmMin: 0.03 };
    return axe.run(document, { resultTypes: ['violations'], checks: { 'color-contrast': { options: contrast } } }).then(found => ({
        passes: found.passes.map(it => it.id),
        violations: found.violations.flatMap(rule => rule.nodes.map(node =>
            `${rule.id}: ${node.html.slice(0, 200)} at ${node.target.join(' ')}: ${node.failureSummary}`)),
    }));";

/// axe-core in a browser.
pub(crate) struct Axe;

impl Axe {
    /// Has every page that this browser opens from now on carry axe. None, and said so, where it could not be
    /// fetched.
    pub(crate) fn into(browser: &Browser) -> Option<Self> {
        let Some(path) = later("axe.min.js") else {
            eprintln!("NOT RUN: no axe-core in target/tools (scripts/setup.sh test)");
            return None;
        };
        let source = std::fs::read_to_string(path).expect("what was fetched can be read");
        browser.devtools(
            "Page.addScriptToEvaluateOnNewDocument",
            &json!({"source": source}),
        );
        Some(Self)
    }

    /// What is wrong with the open page.
    ///
    /// # Panics
    /// When axe did not look at it.
    pub(crate) fn complaints(&self, browser: &Browser) -> Vec<String> {
        let found = browser.run(LOOK);
        let texts = |name: &str| -> Vec<String> {
            let all = found[name].as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let passes = texts("passes");
        assert!(
            ["color-contrast", "document-title", "html-has-lang"]
                .iter()
                .all(|rule| passes.iter().any(|it| it == rule) || !texts("violations").is_empty()),
            "axe did not look: {found}"
        );
        texts("violations")
    }
}
