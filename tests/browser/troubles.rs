//! What stands there when something is away: an address that is none any more, a server that does not lead, a database
//! that is slow, and one that is gone. Each page says what happened, since when, what to do and what still holds, for
//! everybody, in each window and light.

use std::process::Command;
use std::time::Duration;

use gpufleet_tests::harness::browser::{Browser, Window};
use gpufleet_tests::harness::database::Kind;
use gpufleet_tests::harness::gate::Gate;
use gpufleet_tests::harness::process::Process;
use gpufleet_tests::harness::server::{Place, Server};
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, repository, wait};

use crate::axe::Axe;
use crate::every_page::wrong_with;
use crate::{FIRST_DATA_LIMIT, stand_still};

/// The renewal of the lease fails, or goes well again: every ten seconds, after the patience of the pool.
const NOTICED: Duration = Duration::from_secs(90);

/// In what each is looked at.
const LOOKS: [(&str, Window, bool); 3] = [
    ("desk", Window::DESK, false),
    ("desk-dark", Window::DESK, true),
    ("phone-dark", Window::PHONE, true),
];

/// What lives at no address any more, and what its page says beside what to do.
const UNKNOWN: [(&str, &str); 9] = [
    ("there-is-no-such-page", "Nothing lives at"),
    ("clusters/nowhere", "No cluster “nowhere”"),
    ("clusters/demo/nodes/nobody", "No node “nobody”"),
    ("clusters/demo/nodes/demo-node-1/99", "No GPU with index 99"),
    ("clusters/demo/gpus/GPU-none", "No GPU “GPU-none”"),
    ("clusters/demo/jobs/team%2Fnone%2Fu", "team/none/u"),
    ("clusters/demo/ladders/none", "No ladder “none”"),
    (
        "incidents/0198c0de-0000-7000-8000-000000000000",
        "No incident",
    ),
    ("runbooks/none", "No runbook is called “none”"),
];

/// Pages that show what is live without the database, and say that it takes nothing.
const LIVE: [&str; 7] = [
    "",
    "fleet",
    "queue",
    "jobs",
    "health",
    "settings",
    "clusters/demo/nodes/demo-node-1",
];

/// Pages that are made of the past alone.
const PAST: [&str; 1] = ["compare"];

/// What a page says that has nothing else to show, but for what is not there.
const WHOLE: [&str; 3] = ["Since when", "What to do", "What still holds"];

/// Looks at pages, keeps pictures of them and what is wrong with them.
struct Eyes {
    browser: Browser,
    axe: Option<Axe>,
    wrong: Vec<String>,
}

impl Eyes {
    /// Opens a page and looks at it in every window and light: it is answered so, and says this.
    fn look(&mut self, server: &Server, (name, path): (&str, &str), status: u16, says: &[&str]) {
        let url = format!("http://{}/{path}", server.place.web);
        self.browser.resize(Window::DESK);
        // Asked for once: in time for a page that is waited for.
        self.browser.open(&url);
        stand_still(&self.browser);
        for (look, window, is_dark) in LOOKS {
            self.browser.resize(window);
            self.browser.likes_dark(is_dark);
            let mut its = wrong_with(&self.browser, &url);
            // Chromium calls the answer itself an error of the console.
            its.retain(|it| status == 200 || !it.contains(&status.to_string()));
            if let Some(axe) = &self.axe {
                its.extend(axe.complaints(&self.browser));
            }
            let text = self.browser.run("return document.body.innerText");
            let text = text.as_str().unwrap_or_default();
            let missing = says.iter().filter(|it| !text.contains(**it));
            its.extend(missing.map(|it| format!("does not say {it:?}: {text}")));
            let pictures = repository().join("target/screenshots/troubles");
            let file = format!("{}-{look}.png", name.replace('/', "-"));
            self.browser.screenshot(&pictures.join(file));
            let told = its.iter().map(|it| format!("{look} {name} ({url}): {it}"));
            self.wrong.extend(told);
        }
        let found = self
            .browser
            .run("return performance.getEntriesByType('navigation')[0].responseStatus");
        if found != status {
            self.wrong.push(format!(
                "{name} ({url}) is answered with {found}, not {status}"
            ));
        }
    }
}

/// Holds the table of runs in the database, so that who reads it waits, until it is killed.
fn lock(world: &World, url: &str) -> Process {
    let script = world.file(
        "lock.sql",
        // It ends when who asked is dead.
        "SET client_connection_check_interval = 500;\n\
         BEGIN;\nLOCK TABLE run IN ACCESS EXCLUSIVE MODE;\n\\! echo held\nSELECT pg_sleep(300);\n",
    );
    let mut command = Command::new("psql");
    command.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]);
    command.arg(script).arg(url);
    let process = Process::start("psql", command, &world.path("lock.log"));
    wait::until("the table is held", NOTICED, || {
        process.output().contains("held").then_some(())
    });
    process
}

#[test]
fn what_is_away_is_said_with_since_when_what_to_do_and_what_still_holds() {
    let (world, other) = (World::on(Kind::Postgres), World::new());
    let database = world.database();
    let mut gate = Gate::before(&database);
    // A page is given up before the database gives its question up.
    let url = format!("{}?options[lock_timeout]=60000", gate.url(&database));
    let server = Place::new(&world)
        .on(&url)
        .with("fleet.commit_interval_s=2")
        .start();
    let endpoint = format!("http://{}", server.place.grpc);
    let _simulator = Simulator::start(&world, &endpoint, &["--seed", &steady_seed()]);
    for (path, words) in [("/fleet", "demo-node-8"), ("/jobs", "llama-70b-pretrain")] {
        wait::until(&format!("{path} says {words}"), FIRST_DATA_LIMIT, || {
            server.get(path).text().contains(words).then_some(())
        });
    }
    let browser = Browser::start(&world, Window::DESK);
    let mut eyes = Eyes {
        axe: Axe::into(&browser),
        browser,
        wrong: Vec::new(),
    };
    eyes.browser.console();

    for (path, says) in UNKNOWN {
        eyes.look(&server, (path, path), 404, &[says, "What to do"]);
    }

    let standby = Place::new(&other).on(&database).start_standby();
    let says = [&["This server does not lead", "It waits since"], &WHOLE[..]].concat();
    eyes.look(&standby, ("standby", "fleet"), 503, &says);
    eyes.look(
        &standby,
        ("standby-runbook", "runbooks/server-stuck"),
        200,
        &[],
    );
    standby.stop();

    let held = lock(&world, &database);
    let says = [&["The server does not answer in time"], &WHOLE[..]].concat();
    eyes.look(&server, ("slow", "compare"), 503, &says);
    held.kill();

    gate.shut();
    let banner = "The database takes nothing";
    wait::until("the pages say that the database is away", NOTICED, || {
        server.get("/fleet").text().contains(banner).then_some(())
    });
    for path in LIVE {
        let says = [banner, "since 20", "What to do"];
        eyes.look(&server, (&format!("away-{path}"), path), 200, &says);
    }
    let says = [&["The store does not answer", "since 20"], &WHOLE[..]].concat();
    for path in PAST {
        eyes.look(&server, (&format!("away-{path}"), path), 503, &says);
    }

    gate.open();
    wait::until("the banner goes when the database is back", NOTICED, || {
        let text = server.get("/fleet").text();
        (!text.contains(banner)).then_some(())
    });
    assert_eq!(server.get("/compare").status, 200);
    assert!(eyes.wrong.is_empty(), "{}", eyes.wrong.join("\n"));
}
