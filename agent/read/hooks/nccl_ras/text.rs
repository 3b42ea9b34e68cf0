//! The text of NCCL 2.24 to 2.28.6, which is meant for people: what stays the same in it.

/// Lines kept of a problem: NCCL names ten ranks at most, and says how many there are.
const MOST_LINES: usize = 32;

/// Problems kept.
const MOST_PROBLEMS: usize = 256;

/// What the text says of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// NCCL's version; empty where it is not said.
    pub nccl_version: String,
    /// Communicators of one size and state.
    pub groups: Vec<Group>,
    /// What NCCL finds wrong, errors first.
    pub problems: Vec<Problem>,
}

/// Communicators of one size and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// How many.
    pub communicators: u64,
    /// Nodes of each.
    pub nodes: u64,
    /// Ranks of each.
    pub ranks: u64,
    /// `RUNNING`.
    pub status: String,
    /// `OK`, or what is wrong.
    pub errors: String,
}

/// Something that NCCL finds wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `INCOMPLETE`, `DEAD`, `ERROR`, `TIMEOUT`, `MISMATCH`.
    pub kind: String,
    /// NCCL's hash of the communicator it is about; `None`: of the whole job.
    pub communicator: Option<u64>,
    /// What it says.
    pub lines: Vec<String>,
}

/// What the text says. What is not known in it is passed over.
pub fn summary(text: &str) -> Summary {
    let mut summary = Summary::default();
    let mut is_table = false;
    let mut problem: Option<Problem> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("NCCL version ") {
            summary.nccl_version = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        is_table = match is_table {
            true => !line.trim().is_empty(),
            false => line.starts_with("Group ") && line.contains(" Status "),
        };
        if is_table && let Some(group) = group(line) {
            summary.groups.push(group);
        }
        match (headline(line), &mut problem) {
            (Some(begun), _) => keep(&mut summary, problem.replace(begun)),
            (None, Some(of)) if line.starts_with("  ") && of.lines.len() < MOST_LINES => {
                of.lines.push(line.trim().replace(char::is_control, " "));
            }
            (None, _) if line.starts_with(' ') => {}
            (None, _) => keep(&mut summary, problem.take()),
        }
    }
    keep(&mut summary, problem);
    summary
}

fn keep(summary: &mut Summary, problem: Option<Problem>) {
    if summary.problems.len() < MOST_PROBLEMS {
        summary.problems.extend(problem);
    }
}

/// `    0         8         4         1         4        32   RUNNING      OK`
fn group(line: &str) -> Option<Group> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [
        _number,
        communicators,
        nodes,
        _per_node,
        ranks,
        _all,
        status,
        errors,
    ] = words[..]
    else {
        return None;
    };
    Some(Group {
        communicators: communicators.parse().ok()?,
        nodes: nodes.parse().ok()?,
        ranks: ranks.parse().ok()?,
        status: status.to_owned(),
        errors: errors.to_owned(),
    })
}

/// `INCOMPLETE`, or `#1-0 (27a079b828ff1a75) MISMATCH`.
fn headline(line: &str) -> Option<Problem> {
    let (communicator, kind) = match line.strip_prefix('#') {
        Some(rest) => {
            let (hash, kind) = rest.split_once(" (")?.1.split_once(") ")?;
            (Some(u64::from_str_radix(hash, 16).ok()?), kind)
        }
        None => (None, line),
    };
    let is_word = kind.len() > 3 && kind.bytes().all(|it| it.is_ascii_uppercase());
    is_word.then(|| Problem {
        kind: kind.to_owned(),
        communicator,
        lines: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the shape of what NCCL 2.25 writes of a job with a dead process and one that lags.
    const TEXT: &str = "\
NCCL version 2.25.1 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         31       31

Communicators... (0.10s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         8         4         1         4        32   RUNNING      OK
    1         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead
  Process 3487984 on node 172.16.64.213 managing GPU 5

#1-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 301 on node 172.16.64.210
";

    #[test]
    fn the_table_and_the_problems_are_taken_from_the_text() {
        let summary = summary(TEXT);
        assert_eq!(summary.nccl_version, "2.25.1");
        let groups: Vec<_> = summary
            .groups
            .iter()
            .map(|it| (it.communicators, it.ranks, it.errors.as_str()))
            .collect();
        assert_eq!(groups, [(8, 4, "OK"), (1, 32, "INCOMPLETE")]);
        let problems: Vec<_> = summary
            .problems
            .iter()
            .map(|it| (it.kind.as_str(), it.communicator, it.lines.len()))
            .collect();
        assert_eq!(
            problems,
            [
                ("DEAD", None, 2),
                ("INCOMPLETE", Some(0x27a0_79b8_28ff_1a75), 1),
                ("MISMATCH", Some(0xcf26_4af5_3edb_e986), 4),
            ]
        );
        assert!(summary.problems[2].lines[2].contains("6649"));
    }

    #[test]
    fn any_other_text_says_nothing_and_no_text_says_too_much() {
        for text in ["", "\n\n", "Group \n", "#\n#(\n#1 (zz) DEAD\n", "   0 1 2"] {
            assert_eq!(summary(text), Summary::default(), "{text:?}");
        }
        let many = "DEAD\n".repeat(10_000);
        assert_eq!(summary(&many).problems.len(), MOST_PROBLEMS);
        let long = format!("DEAD\n{}", "  a line\n".repeat(10_000));
        assert_eq!(summary(&long).problems[0].lines.len(), MOST_LINES);
    }
}
