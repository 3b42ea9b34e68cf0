//! Why a claim waits, in plain words: what the scheduler says is made of short pieces, each of which has
//! its sentence here. A piece that has none is told as it is.

use super::Reason;

/// Pieces that one message has at most: more nobody reads.
const MAX_PIECES: usize = 8;

/// What a piece begins with after its number of nodes, and what that means.
const PIECES: [(&str, &str); 15] = [
    ("Insufficient nvidia.com/", "have too few free GPUs"),
    ("Insufficient amd.com/", "have too few free GPUs"),
    ("Insufficient cpu", "have too little free CPU"),
    ("Insufficient memory", "have too little free memory"),
    (
        "Insufficient ephemeral-storage",
        "have too little free disk",
    ),
    ("Too many pods", "hold as many pods as they may"),
    (
        "node(s) didn't match Pod's node affinity/selector",
        "are not of the kind that it asks for (node selector or affinity)",
    ),
    (
        "node(s) had untolerated taint {node.kubernetes.io/unschedulable",
        "are cordoned",
    ),
    (
        "node(s) had untolerated taint {node.kubernetes.io/not-ready",
        "are not ready",
    ),
    (
        "node(s) had untolerated taint {node.kubernetes.io/unreachable",
        "cannot be reached",
    ),
    ("node(s) were unschedulable", "are cordoned"),
    (
        "node(s) had untolerated taint",
        "are kept for others by a taint",
    ),
    (
        "node(s) had volume node affinity conflict",
        "cannot reach its volume",
    ),
    (
        "node(s) didn't match pod topology spread constraints",
        "would put too many of its pods in one place",
    ),
    (
        "cannot allocate all claims",
        "cannot give what its resource claims ask for",
    ),
];

/// Slurm's words for why a job waits, and what they mean.
const SLURM: [(&str, &str); 15] = [
    (
        "Resources",
        "Nothing that it asks for is free; it is the next of its partition.",
    ),
    ("Priority", "Others of its partition go before it."),
    (
        "DependencyNeverSatisfied",
        "It waits for another job that ended otherwise than it needs: it never begins.",
    ),
    ("Dependency", "It waits for another job."),
    ("BeginTime", "It is to begin later."),
    ("JobHeldUser", "Its owner holds it back."),
    (
        "JobArrayTaskLimit",
        "As many tasks of its array run as its owner lets run at once.",
    ),
    ("JobHeldAdmin", "An administrator holds it back."),
    (
        "ReqNodeNotAvail",
        "Nodes that it asks for by name are down, drained or reserved.",
    ),
    ("PartitionDown", "Its partition is down."),
    (
        "PartitionInactive",
        "Its partition is inactive: it takes no jobs and begins none.",
    ),
    (
        "PartitionNodeLimit",
        "It asks for more nodes than its partition may give to one.",
    ),
    (
        "AssocGrp",
        "Its account has used up what it may have at once.",
    ),
    (
        "QOS",
        "Its quality of service has used up what it may have at once.",
    ),
    ("Reservation", "It waits for its reservation to begin."),
];

/// What is said of all that its owner holds back.
const BY_OWNER: &str = "That is its owner's to end, so it is no demand.";

/// Sentences for a person; at least one.
pub fn plain(reason: Reason, words: &str) -> Vec<String> {
    if reason == Reason::NotTried {
        return vec!["The scheduler has not said anything of it yet.".to_owned()];
    }
    if let Some((_, rest)) = words.split_once(" nodes are available: ") {
        // What pre-emption would bring is told after it, in the same pieces.
        let rest = rest.split(" preemption:").next().unwrap_or_default();
        let all = pieces(rest.trim_end_matches('.'));
        let mut said: Vec<String> = all.iter().take(MAX_PIECES).map(|it| piece(it)).collect();
        if all.len() > MAX_PIECES {
            said.push(format!("And {} more reasons.", all.len() - MAX_PIECES));
        }
        return said;
    }
    let known = SLURM.iter().find(|(begin, _)| words.starts_with(begin));
    let mut said = vec![match (known, reason) {
        (Some((_, plain)), _) => (*plain).to_owned(),
        (None, _) if !words.is_empty() => format!("{}.", words.trim_end_matches('.')),
        (None, Reason::HeldBack) => {
            "Something holds it back before the scheduler looks at it: a gate, or its queue."
                .to_owned()
        }
        (None, Reason::ByOwner) => "Its owner holds it back.".to_owned(),
        (None, _) => "The scheduler found no place and does not say why.".to_owned(),
    }];
    if reason == Reason::ByOwner {
        said.push(BY_OWNER.to_owned());
    }
    said
}

/// The pieces of a message: each begins with a number, and a taint may have a comma in it.
fn pieces(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(", ") {
        let next = text[at + 2..].bytes().next();
        if next.is_some_and(|it| it.is_ascii_digit()) {
            found.push(&text[begin..at]);
            begin = at + 2;
        }
    }
    found.push(&text[begin..]);
    found.retain(|it| !it.trim().is_empty());
    found
}

fn piece(text: &str) -> String {
    let text = text.trim();
    let (count, rest) = match text.split_once(' ') {
        Some((count, rest)) if count.bytes().all(|it| it.is_ascii_digit()) => (count, rest),
        _ => return format!("{text}."),
    };
    let is_one = count == "1";
    let noun = if is_one { "node" } else { "nodes" };
    let known = PIECES.iter().find(|(begin, _)| rest.starts_with(begin));
    match known {
        Some((_, plain)) if is_one => format!("{count} {noun} {}.", of_one(plain)),
        Some((_, plain)) => format!("{count} {noun} {plain}."),
        None => format!("{count} {noun}: {rest}."),
    }
}

/// What is said of many nodes, said of one.
fn of_one(plain: &str) -> String {
    for (many, one) in [("have ", "has "), ("are ", "is "), ("hold ", "holds ")] {
        if let Some(rest) = plain.strip_prefix(many) {
            return format!("{one}{rest}");
        }
    }
    plain.to_owned()
}
