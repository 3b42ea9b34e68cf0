//! `gpufleet-agent doctor`: one screen that says what works, what does not, why, and the fix.
//!
//! Every check has its own deadline ([`CHECK_DEADLINE`], [`sources::DEADLINE`]) and runs beside the
//! others, so one that hangs costs only its own line. The exit code is 1 when a line says no, else 0.

use std::future::Future;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::config::Config;

mod machine;

mod holders;

mod sources;

/// Longest a check of the machine may take.
const CHECK_DEADLINE: Duration = Duration::from_secs(3);

/// How doctor answers.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Arguments {
    /// One JSON document instead of the screen.
    #[arg(long)]
    pub json: bool,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It works.
    Yes,
    /// It should work and does not.
    No,
    /// It does not apply here, or cannot be told from here.
    Skip,
}

/// One line of the screen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    /// What was found, or why not.
    why: String,
    /// What a person can do about it; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    fix: String,
}

impl Finding {
    fn yes(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Yes, why, "")
    }

    fn no(check: &'static str, why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(check, Verdict::No, why, fix)
    }

    fn skip(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skip, why, "")
    }

    fn new(
        check: &'static str,
        verdict: Verdict,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check,
            verdict,
            why: why.into(),
            fix: fix.into(),
        }
    }
}

/// Looks at everything, prints it, and ends the process with 1 when a line says no.
///
/// # Errors
/// When the screen cannot be written.
pub async fn run(config: &Config, arguments: &Arguments) -> anyhow::Result<()> {
    let findings = look(config, PathBuf::from("/")).await;
    let text = if arguments.json {
        serde_json::to_string_pretty(&findings)? + "\n"
    } else {
        screen(&findings)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    let bad = findings.iter().any(|it| it.verdict == Verdict::No);
    // Not by returning: a check that hangs in the kernel would hold the end of the runtime.
    std::process::exit(i32::from(bad))
}

/// The screen, for a bundle. `root` is `/` but in tests.
pub(crate) async fn text(config: &Config, root: PathBuf) -> String {
    screen(&look(config, root).await)
}

/// Every check, in the order of the screen. `root` is `/` but in tests.
async fn look(config: &Config, root: PathBuf) -> Vec<Finding> {
    let machine = machine::Machine::new(root, config);
    let on_thread = |name, fix, check: fn(&machine::Machine) -> Finding| {
        let machine = machine.clone();
        let task = tokio::task::spawn_blocking(move || check(&machine));
        within(name, fix, CHECK_DEADLINE, async move {
            task.await.unwrap_or_else(|error| {
                Finding::no(name, format!("the check broke off: {error}"), "")
            })
        })
    };
    let own = &config.attribute;
    let node = config.node.resolved_name();
    let (slurm_machine, slurm_config) = (machine.clone(), own.clone());
    let slurm =
        tokio::task::spawn_blocking(move || holders::of_slurm(&slurm_machine, &slurm_config));
    let (
        driver,
        rights,
        psi,
        hooks,
        ras,
        state,
        clock,
        kubelet,
        api,
        slurm,
        server,
        listen,
        sources,
    ) = tokio::join!(
        on_thread(
            "driver",
            "reboot the node: the driver does not answer",
            machine::driver
        ),
        on_thread("rights", "", machine::rights),
        on_thread("pressure (PSI)", "", machine::pressure),
        on_thread("hooks folder", "", machine::hooks),
        on_thread("NCCL RAS", "", machine::ras),
        on_thread(
            "state folder",
            "the disk does not answer; look at its health",
            machine::state_folder
        ),
        on_thread("clock", "", machine::clock),
        within(
            "kubelet",
            "restart the kubelet",
            CHECK_DEADLINE,
            holders::kubelet(&machine, own)
        ),
        within(
            "Kubernetes API",
            "look for a network policy or firewall between",
            CHECK_DEADLINE,
            holders::kubernetes(config, &node)
        ),
        within("Slurm", "", CHECK_DEADLINE, async {
            slurm.await.unwrap_or_else(|error| {
                Finding::no("Slurm", format!("the check broke off: {error}"), "")
            })
        }),
        within(
            "server",
            "nothing refuses the connection and nothing answers: look for a firewall between",
            CHECK_DEADLINE,
            machine::server(&machine)
        ),
        within("listen", "", CHECK_DEADLINE, machine::listen(&machine)),
        sources::look(config, &machine),
    );
    let mut findings = vec![driver];
    findings.extend(sources);
    findings.extend([
        kubelet, api, slurm, hooks, ras, server, listen, rights, psi, state, clock,
    ]);
    findings
}

/// A check that is given up on after its deadline.
async fn within(
    name: &'static str,
    fix: &'static str,
    deadline: Duration,
    check: impl Future<Output = Finding>,
) -> Finding {
    let found = tokio::time::timeout(deadline, check).await;
    found.unwrap_or_else(|_| {
        let seconds = deadline.as_secs();
        Finding::no(name, format!("no answer within {seconds} s"), fix)
    })
}

fn screen(findings: &[Finding]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let width = findings.iter().map(|it| it.check.len()).max().unwrap_or(0);
    let mut text = format!("gpufleet-agent {version}: what works here\n\n");
    for finding in findings {
        let word = match finding.verdict {
            Verdict::Yes => "yes",
            Verdict::No => "NO ",
            Verdict::Skip => "-  ",
        };
        let (check, why) = (finding.check, &finding.why);
        text.push_str(&format!("{word}  {check:<width$}  {why}\n"));
        if !finding.fix.is_empty() {
            let fix = &finding.fix;
            text.push_str(&format!("     {:<width$}  fix: {fix}\n", ""));
        }
    }
    let bad = findings.iter().filter(|it| it.verdict == Verdict::No);
    match bad.count() {
        0 => text.push_str("\nNothing to fix.\n"),
        1 => text.push_str("\n1 thing to fix.\n"),
        count => text.push_str(&format!("\n{count} things to fix.\n")),
    }
    text
}

#[cfg(test)]
#[path = "doctor/tests.rs"]
mod tests;
