//! `gpufleet`: what the fleet does, typed at a prompt or read by a script, from the server's API.
//!
//! Tables for people, `--json` for machines: the API's own answer. It ends with 0 when it has
//! answered, 1 when the answer is bad news (a server that fails, a run that is slower than allowed),
//! 2 when the command line is wrong, 3 when there is no answer, or it could not be written.

mod ask;

mod waiting;

mod client;

mod table;

mod words;

mod today;

mod doctor;

mod incidents;

mod fleet;

mod top;

mod cost;

mod status;

mod gpus;

mod find;

mod queue;

mod named;

mod jobs;

mod compare;

mod ladder;

mod profile;

mod report;

mod tell;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use client::Client;
use waiting::Waiting;

/// What the fleet does, from the server's API.
#[derive(Debug, Parser)]
#[command(name = "gpufleet", version)]
struct Arguments {
    /// The server's address.
    #[arg(
        long,
        global = true,
        env = "GPUFLEET_SERVER",
        default_value = "http://127.0.0.1:8080"
    )]
    server: String,
    /// A file with the token of role `read` on its first line.
    #[arg(long, global = true, env = "GPUFLEET_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// A file with the certificates (PEM) that the server's must come from; else the system's.
    #[arg(long, global = true, env = "GPUFLEET_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// The API's answer instead of a table.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The morning: waste ranked by money a day, whose it is, what to do, what changed.
    Today,
    /// What the fleet is doing: its clusters, models or nodes, and the state of every GPU of them.
    Fleet(fleet::Asked),
    /// What keeps gpufleet itself from telling the truth, and the line that mends it.
    Doctor(doctor::Asked),
    /// What is wrong, why, since when and what it costs; or one incident.
    Incidents(incidents::Asked),
    /// Who uses how many GPUs and how well, again and again.
    Top(top::Asked),
    /// What a month costs, by team or job, the dearest first.
    Cost(cost::Asked),
    /// Whether the server is well, and the fleet in numbers.
    Status,
    /// Nodes, GPUs and jobs by a part of their name, with their pages.
    Find(find::Asked),
    /// Every GPU and what it does.
    Gpus(gpus::Filter),
    /// Who waits for GPUs and why, what is free, the largest gang that fits.
    Queue,
    /// Training jobs, the newest first.
    Jobs(jobs::Filter),
    /// One job: its attempts, how they ended, and the ranks of the newest or another.
    Job(jobs::Job),
    /// Two runs: what differs between them, and which is faster.
    Compare(compare::Runs),
    /// Runs tagged as steps of one improvement, each against the one before.
    Ladder(ladder::Ladder),
    /// Has a rank of a run record its next steps, waits, and says where the trace lies. Needs a token of role operate.
    Profile(profile::Asked),
    /// Tells nobody of an incident, or of all that matches patterns, for a while. Needs a token of role operate.
    Silence(tell::Silence),
    /// Ends the silence of one incident: people are told of it again. Needs a token of role operate.
    Unsilence(tell::Unsilence),
    /// What is silent, by patterns and one by one; ends a silence by pattern.
    Silences(tell::Silences),
    /// Who is told of what.
    #[command(subcommand)]
    Routes(tell::Routes),
    /// The ways to people, and how each goes.
    Channels,
    /// Whether a way to people works.
    #[command(subcommand)]
    Notify(tell::Notify),
    /// A month as money: who owes what, what time was worth, and whether it adds up.
    Report(report::Report),
}

/// What a command has to say.
pub(crate) struct Answer {
    /// For people.
    text: String,
    /// For machines.
    json: serde_json::Value,
    /// Whether it is good news.
    is_good: bool,
}

/// It ends so when the answer is bad news.
const BAD_NEWS: u8 = 1;
/// And so when there is none, or not all of it is written; 2 is clap's, for a wrong command line.
const NO_ANSWER: u8 = 3;

fn main() -> ExitCode {
    match said(&Arguments::parse()) {
        Ok(is_good) => ExitCode::from(if is_good { 0 } else { BAD_NEWS }),
        Err(error) => {
            let error = format!("{error:#}");
            let lines: Vec<String> = error.lines().map(words::plain).collect();
            let _ = writeln!(io::stderr(), "gpufleet: {}", lines.join("\n"));
            ExitCode::from(NO_ANSWER)
        }
    }
}

/// Says the answer. Whether it is good news.
fn said(arguments: &Arguments) -> anyhow::Result<bool> {
    let Some(answer) = answer(arguments)? else {
        return Ok(true);
    };
    let text = match arguments.json {
        true => format!("{:#}\n", answer.json),
        false => answer.text,
    };
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    is_read_on(written).context("the answer cannot be written")?;
    Ok(answer.is_good)
}

/// Whether what was just written has a reader who may want more. Whoever reads it may have gone, `gpufleet gpus | head`,
/// and that is no error; a full disk is one, because what lies on it is a part that looks whole.
pub(crate) fn is_read_on(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// The answer; none where it is written already, as it came.
fn answer(arguments: &Arguments) -> anyhow::Result<Option<Answer>> {
    let client = Client::new(
        &arguments.server,
        arguments.token_file.as_deref(),
        arguments.ca_file.as_deref(),
        Waiting::on_terminal(!arguments.json),
    )?;
    let answer = match &arguments.command {
        Command::Today => today::answer(&client),
        Command::Fleet(asked) => fleet::answer(&client, asked),
        Command::Doctor(asked) => doctor::answer(&client, asked),
        Command::Incidents(asked) => incidents::answer(&client, asked),
        Command::Top(asked) => top::answer(&client, asked, arguments.json),
        Command::Cost(asked) => cost::answer(&client, asked),
        Command::Status => status::answer(&client),
        Command::Find(asked) => find::answer(&client, asked),
        Command::Gpus(filter) => gpus::answer(&client, filter),
        Command::Queue => queue::answer(&client),
        Command::Jobs(filter) => jobs::list(&client, filter),
        Command::Job(job) => jobs::one(&client, job),
        Command::Compare(runs) => compare::answer(&client, runs),
        Command::Ladder(ladder) => ladder::answer(&client, ladder),
        Command::Profile(asked) => profile::answer(&client, asked),
        Command::Silence(silence) => tell::silence(&client, silence),
        Command::Unsilence(asked) => tell::unsilence(&client, asked),
        Command::Silences(asked) => tell::silences(&client, asked),
        Command::Routes(tell::Routes::Explain(one)) => tell::explain(&client, one),
        Command::Channels => tell::channels(&client),
        Command::Notify(tell::Notify::Test(tested)) => tell::test(&client, tested),
        Command::Report(report) => {
            let (mut out, mut beside) = (io::stdout(), io::stderr());
            return report::answer(&client, report, arguments.json, (&mut out, &mut beside));
        }
    };
    answer.map(Some)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one() {
        let failed = |kind: io::ErrorKind| is_read_on(Err(kind.into()));
        assert!(is_read_on(Ok(())).expect("it was written"));
        assert!(!failed(io::ErrorKind::BrokenPipe).expect("nobody wants more"));
        failed(io::ErrorKind::StorageFull).expect_err("a part of it is there");
    }

    #[test]
    fn the_command_line_is_one() {
        Arguments::command().debug_assert();
        for name in [
            "fleet",
            "incidents",
            "top",
            "cost",
            "find",
            "job",
            "profile",
            "report",
        ] {
            let mut command = Arguments::command();
            let found = command.find_subcommand_mut(name);
            let help = found.expect("it is one").render_help().to_string();
            assert!(help.contains("Examples:\n  gpufleet "), "{help}");
        }
    }
}
