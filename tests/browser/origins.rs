//! Pages of what is not live say so to whoever looks at one of them alone: in the title, in a banner, behind all
//! that they show, and where a live page says that it is live, for which a small screen on a desk has room in one line.

use std::collections::BTreeMap;

use gpufleet_tests::harness::browser::Browser;

/// What such a page lacks, or promises and cannot keep. A page of all clusters that has none of them says nothing.
const LACKS: &str = r"
    const origin = arguments_of_this.origin, mark = origin.toUpperCase();
    const pulse = document.getElementById('pulse');
    const shown = document.querySelector('main').innerText;
    const banner = document.querySelector(`.banner.${origin}`);
    const is_still = origin === 'recorded';
    const middles = Array.from(document.querySelector('header.top').children)
        .map(it => it.getBoundingClientRect()).map(it => it.top + it.height / 2);
    const is_one_line = Math.max(...middles) - Math.min(...middles) < 4;
    return [
        document.title.includes(mark) ? [] : ['does not say in its title what it is'],
        banner && banner.innerText.includes(mark) && banner.getBoundingClientRect().height > 0 ? [] : ['has no banner'],
        document.querySelector(`main .watermarked.${origin}`) ? [] : ['has no watermark'],
        pulse.innerText.startsWith(origin) ? [] : [`says at its top that it is: ${pulse.innerText}`],
        is_one_line || innerWidth < 1280 ? [] : [`has a header of several lines at ${innerWidth} pixels`],
        is_still && pulse.classList.contains('on') ? ['has the sign of what is live'] : [],
        is_still && /silent since|last 24 hours/i.test(shown) ? ['takes what has ended for what fell silent'] : [],
    ].flat();";

/// What is wrong with the pages of recorded and of simulated clusters.
pub(crate) fn wrong_with(browser: &Browser, pages: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for origin in ["recorded", "simulated"] {
        let mut looked = 0;
        for (kind, url) in pages {
            let name = kind.trim_end_matches(" chosen");
            if !name.ends_with(origin) {
                continue;
            }
            looked += 1;
            browser.open(url);
            let script = LACKS.replace("arguments_of_this.origin", &format!("'{origin}'"));
            let found = browser.run(&script);
            let found = found.as_array().expect("it is a list");
            wrong.extend(found.iter().map(|it| format!("{kind} ({url}): {it}")));
        }
        assert!(looked >= 3, "{looked} pages are {origin}: {pages:?}");
    }
    wrong
}
