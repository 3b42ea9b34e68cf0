//! What stands there when something is away: an address that is none any more, a server that does not lead, a database
//! that is slow, one that is gone, and one whose file is. Each page says what happened, since when, what to do and what
//! still holds, for everybody, in each window and light.

use std::path::PathBuf;
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

/// Pages that are made of the past alone, as far as the server does not hold it.
const PAST: [&str; 3] = [
    "compare",
    "clusters/demo/jobs/team%2Fold%2Fu9/3",
    "clusters/demo/ladders/none",
];

/// What a page says that has nothing else to show, but for what is not there.
const WHOLE: [&str; 3] = ["Since when", "What to do", "What still holds"];

/// What stands on top of each page while nothing is written.
const BANNER: &str = "The database takes nothing";

/// Looks at pages, keeps pictures of them and what is wrong with them.
struct Eyes {
    browser: Browser,
    axe: Option<Axe>,
    wrong: Vec<String>,
}

impl Eyes {
    fn open(world: &World) -> Self {
        let browser = Browser::start(world, Window::DESK);
        let axe = Axe::into(&browser);
        browser.console();
        Self {
            browser,
            axe,
            wrong: Vec::new(),
        }
    }

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

/// A server that shows the simulated fleet.
fn shows_the_fleet(world: &World, place: Place) -> (Server, Simulator) {
    let server = place.with("fleet.commit_interval_s=2").start();
    let endpoint = format!("http://{}", server.place.grpc);
    let simulator = Simulator::start(world, &endpoint, &["--seed", &steady_seed()]);
    for (path, words) in [("/fleet", "demo-node-8"), ("/jobs", "llama-70b-pretrain")] {
        wait::until(&format!("{path} says {words}"), FIRST_DATA_LIMIT, || {
            server.get(path).text().contains(words).then_some(())
        });
    }
    (server, simulator)
}

/// Files into which nobody writes, as on a disk that turned read-only, until this is dropped.
struct Frozen(Vec<PathBuf>);

impl Frozen {
    /// None where the disk or the user cannot.
    fn make(files: Vec<PathBuf>) -> Option<Self> {
        let is_made = chattr("+i", &files);
        is_made.then(|| Self(files))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        chattr("-i", &self.0);
    }
}

fn chattr(how: &str, files: &[PathBuf]) -> bool {
    let mut command = Command::new("chattr");
    let done = command.arg(how).args(files).output();
    done.is_ok_and(|it| it.status.success())
}

/// Waits until the pages say on top that nothing is written, or say it no more.
fn banner(server: &Server, stands: bool) {
    let what = format!("the banner on top stands: {stands}");
    wait::until(&what, NOTICED, || {
        (server.get("/fleet").text().contains(BANNER) == stands).then_some(())
    });
}

#[test]
fn a_sqlite_file_that_went_or_turned_read_only_is_said_and_what_was_is_still_shown() {
    let world = World::new();
    let folder = world.path("database");
    std::fs::create_dir(&folder).expect("the test's own folder can be written");
    let file = folder.join("server.db");
    let place = Place::sqlite(&world).on(&format!("sqlite:{}", file.display()));
    let (server, _simulator) = shows_the_fleet(&world, place);
    let mut eyes = Eyes::open(&world);
    // What was read before the file went is read still, live or past.
    let pages = ["", "health", "compare", "clusters/demo/nodes/demo-node-1"];
    let says = [BANNER, "since 20", "What to do"];

    let aside = world.path("aside");
    std::fs::rename(&folder, &aside).expect("both are in the test's own folder");
    banner(&server, true);
    for path in pages {
        eyes.look(&server, (&format!("moved-{path}"), path), 200, &says);
    }
    let log = server.output();
    let named = format!("{} is not there any more", file.display());
    assert!(log.contains(&named), "the log names it: {log}");
    assert_eq!(server.get("/healthz").status, 503);
    std::fs::rename(&aside, &folder).expect("nobody made another folder");
    banner(&server, false);

    let files = vec![file, folder.join("server.db-wal")];
    if let Some(frozen) = Frozen::make(files) {
        banner(&server, true);
        for path in pages {
            eyes.look(&server, (&format!("read-only-{path}"), path), 200, &says);
        }
        drop(frozen);
        banner(&server, false);
    } else {
        eprintln!("NOT RUN: a database on a disk that turned read-only (chattr +i, as root)");
    }
    assert_eq!(server.get("/healthz").status, 200);
    assert!(eyes.wrong.is_empty(), "{}", eyes.wrong.join("\n"));
}

#[test]
fn what_is_away_is_said_with_since_when_what_to_do_and_what_still_holds() {
    let (world, other) = (World::on(Kind::Postgres), World::new());
    let database = world.database();
    let mut gate = Gate::before(&database);
    // A page is given up before the database gives its question up.
    let url = format!("{}?options[lock_timeout]=60000", gate.url(&database));
    let (server, _simulator) = shows_the_fleet(&world, Place::new(&world).on(&url));
    let mut eyes = Eyes::open(&world);

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
    banner(&server, true);
    for path in LIVE {
        let says = [BANNER, "since 20", "What to do"];
        eyes.look(&server, (&format!("away-{path}"), path), 200, &says);
    }
    let says = [&["The store does not answer", "since 20"], &WHOLE[..]].concat();
    for path in PAST {
        eyes.look(&server, (&format!("away-{path}"), path), 503, &says);
    }

    gate.open();
    banner(&server, false);
    assert_eq!(server.get("/compare").status, 200);
    assert!(eyes.wrong.is_empty(), "{}", eyes.wrong.join("\n"));
}
