//! Who pays: owner rules for what was held, and idle policies for what was free.
//!
//! Method. Rules are tried by kind in the order of [`Kind`] (pod label, namespace label, namespace,
//! queue, Slurm account, user), within a kind those that name a cluster before those of every one, and then in the
//! order of the table; the first that holds at the time and matches says the team. So a namespace that two clusters
//! have can be two teams'. A rule with the value `*` matches every value and, with an
//! empty team, names the team by the value itself. Without a match it is the owner that whoever told
//! of the holder named, else the owner is not known and shown so. A team that a value names as what is nobody's is shown
//! (`nobody`, `unowned`) is `team:nobody`. An idle policy ([`idle`]) says per pool who bears what was free; without one it is the platform.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub mod idle;
mod told;
mod trains;

pub use idle::{IdlePolicy, IdleTo};
pub use told::job_of;

use crate::table::{self, TableError};

/// What a rule looks at, in the order in which kinds are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A label of the pod.
    PodLabel,
    /// A label of the namespace.
    NamespaceLabel,
    /// The namespace.
    Namespace,
    /// The queue.
    Queue,
    /// The Slurm account.
    SlurmAccount,
    /// The user of a process on a plain machine.
    User,
}

/// Who held a GPU, as far as it is known. Empty is not known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The pod, Slurm job or process.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its job.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    /// The model that it trains or serves.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Its project.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// The queue it came from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub queue: String,
    /// Its Slurm account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slurm_account: String,
    /// Its user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Whose it is, as whoever told of it says; rules go before it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Labels of the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,
    /// Labels of the namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace_labels: BTreeMap<String, String>,
    /// Whether its container does not run yet. So it is another holder until it runs, who pays as he does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_starting: bool,
}

/// Who bears a cost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payer {
    /// A team.
    Team(String),
    /// It was held, and no rule says whose it is.
    Unowned,
    /// Nobody held it, or nobody knows who.
    Nobody,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    from_ms: i64,
    until_ms: Option<i64>,
    kind: Kind,
    key: String,
    value: String,
    team: String,
    /// Empty: of every cluster.
    cluster: String,
}

/// Every rule, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owners {
    rules: Vec<Rule>,
    /// Idle policies; the first that holds for a pool counts.
    pub idle: Vec<IdlePolicy>,
    /// Rows that could not be used: the line and why.
    pub findings: Vec<String>,
}

/// Columns of the table of rules.
pub const COLUMNS: [&str; 6] = ["from", "until", "kind", "key", "value", "team"];

/// The same where a rule may name the cluster that it is of; one without is of every cluster.
pub const COLUMNS_OF_CLUSTERS: [&str; 7] =
    ["from", "until", "kind", "key", "value", "team", "cluster"];

/// The team that runs what nobody answers for.
pub const PLATFORM: &str = "platform";

/// What no team can be called: what is nobody's is shown so.
const NOBODYS: [&str; 2] = ["nobody", "unowned"];

/// Refuses a team of a table that is called as what is nobody's.
///
/// # Errors
/// With why, when it is.
pub fn check_team(team: &str) -> Result<(), String> {
    match NOBODYS.contains(&team) {
        true => Err(format!(
            "no team can be called `{team}`: reports show under that name what is nobody's"
        )),
        false => Ok(()),
    }
}

impl Kind {
    const ALL: [(Self, &str); 6] = [
        (Self::PodLabel, "pod_label"),
        (Self::NamespaceLabel, "namespace_label"),
        (Self::Namespace, "namespace"),
        (Self::Queue, "queue"),
        (Self::SlurmAccount, "slurm_account"),
        (Self::User, "user"),
    ];
}

impl Payer {
    /// How it is shown.
    pub fn name(&self) -> &str {
        match self {
            Self::Team(team) => team,
            Self::Unowned => "unowned",
            Self::Nobody => "nobody",
        }
    }

    /// The team of a name that a table, a label, a user or the like has. Where what is nobody's is shown under that, such as of
    /// a process of the user `nobody`, the team is `team:nobody`.
    pub(crate) fn team(name: &str) -> Self {
        Self::Team(match check_team(name) {
            Ok(()) => name.to_owned(),
            Err(_) => format!("team:{name}"),
        })
    }
}

/// Whether a team can be one that pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// A rule names it.
    Yes,
    /// No rule does, but one takes its team from a label, a queue or the like, and that may.
    Perhaps,
    /// No rule can.
    No,
}

impl Owners {
    /// Whether a rule that holds now, or will, names this team.
    pub fn names(&self, team: &str, at_ms: i64) -> Named {
        if check_team(team).is_err() {
            return Named::No;
        }
        let holds = |it: &&Rule| it.until_ms.is_none_or(|until| at_ms < until);
        let mut perhaps = Named::No;
        for rule in self.rules.iter().filter(holds) {
            match rule.team.as_str() {
                "" => perhaps = Named::Perhaps,
                named if named == team => return Named::Yes,
                _ => {}
            }
        }
        perhaps
    }

    /// The clusters that rules name which hold now, or will.
    pub fn clusters(&self, at_ms: i64) -> BTreeSet<&str> {
        let holds = |it: &&Rule| it.until_ms.is_none_or(|until| at_ms < until);
        let clusters = self
            .rules
            .iter()
            .filter(holds)
            .map(|it| it.cluster.as_str());
        clusters.filter(|it| !it.is_empty()).collect()
    }

    /// Reads the table of rules: `from,until,kind,key,value,team`, or with `cluster` behind them; a row may be of the other.
    ///
    /// # Errors
    /// When it is no such table; rows that cannot be used are in the findings.
    pub fn read(text: &str) -> Result<Self, TableError> {
        let mut owners = Self::default();
        for row in table::read_mixed(text, &COLUMNS_OF_CLUSTERS)? {
            match rule(&row.fields) {
                Ok(rule) => owners.rules.push(rule),
                Err(why) => owners.findings.push(format!("line {}: {why}", row.line)),
            }
        }
        owners.sort();
        Ok(owners)
    }

    /// Whether there is neither a rule nor a policy.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.idle.is_empty()
    }

    /// Takes in the rules, policies and findings of another table, behind its own.
    pub fn join(&mut self, other: Self) {
        self.rules.extend(other.rules);
        self.sort();
        self.findings.extend(other.findings);
        for policy in other.idle {
            if let Err(why) = self.take(policy) {
                self.findings.push(format!("idle policies: {why}"));
            }
        }
    }

    /// Brings the rules into the order in which they are tried.
    fn sort(&mut self) {
        // Stable: of one kind, with a cluster or without, the order of the tables stays.
        self.rules
            .sort_by_key(|it| (it.kind, it.cluster.is_empty()));
    }

    /// Who pays for what this holder held in a cluster at a moment.
    pub fn payer(&self, cluster: &str, holder: &Holder, at_ms: i64) -> Payer {
        let mut rules = self.rules.iter().filter(|it| it.is_in(cluster));
        let team = rules.find_map(|it| it.team_of(holder, at_ms));
        let told = Some(holder.owner.as_str()).filter(|it| !it.is_empty());
        let team = team.or(told);
        team.map_or(Payer::Unowned, Payer::team)
    }

    /// The moments at which a rule or a policy begins or ends.
    pub fn edges(&self) -> Vec<i64> {
        let rules = self
            .rules
            .iter()
            .flat_map(|it| [Some(it.from_ms), it.until_ms]);
        let idle = self
            .idle
            .iter()
            .flat_map(|it| [Some(it.from_ms), it.until_ms]);
        let mut edges: Vec<i64> = rules.chain(idle).flatten().collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }
}

impl Rule {
    /// Whether it is of this cluster.
    fn is_in(&self, cluster: &str) -> bool {
        self.cluster.is_empty() || self.cluster == cluster
    }

    fn team_of<'a>(&'a self, holder: &'a Holder, at_ms: i64) -> Option<&'a str> {
        let value = match self.kind {
            Kind::PodLabel => holder.pod_labels.get(&self.key)?,
            Kind::NamespaceLabel => holder.namespace_labels.get(&self.key)?,
            Kind::Namespace => &holder.namespace,
            Kind::Queue => &holder.queue,
            Kind::SlurmAccount => &holder.slurm_account,
            Kind::User => &holder.user,
        };
        let matches = !value.is_empty() && (self.value == "*" || self.value == *value);
        let team = if self.team.is_empty() {
            value
        } else {
            &self.team
        };
        (matches && is_within(at_ms, self.from_ms, self.until_ms)).then_some(team)
    }
}

fn is_within(at_ms: i64, from_ms: i64, until_ms: Option<i64>) -> bool {
    from_ms <= at_ms && until_ms.is_none_or(|until| at_ms < until)
}

fn rule(fields: &[String]) -> Result<Rule, String> {
    let [from, until, kind, key, value, team, cluster] = fields else {
        return Err("it has not as many fields as columns".to_owned());
    };
    let known = Kind::ALL.iter().find(|it| it.1 == kind);
    let (kind, name) = *known.ok_or_else(|| {
        let names = Kind::ALL.map(|it| it.1).join(", ");
        format!("the kind `{kind}` is none of {names}")
    })?;
    let is_label = matches!(kind, Kind::PodLabel | Kind::NamespaceLabel);
    if is_label == key.is_empty() {
        return Err(format!(
            "a rule of the kind {name} and the key `{key}` do not go together"
        ));
    }
    if value.is_empty() || (team.is_empty() && value != "*") {
        return Err("it needs a value and a team, or the value `*`".to_owned());
    }
    check_team(team)?;
    let (from_ms, until_ms) = table::span(from, until).map_err(|why| why.to_string())?;
    Ok(Rule {
        from_ms,
        until_ms,
        kind,
        key: key.clone(),
        value: value.clone(),
        team: team.clone(),
        cluster: cluster.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "from,until,kind,key,value,team\n\
        2026-01-01,,user,,*,\n\
        2026-01-01,,namespace,,research,science\n\
        2026-01-01,2026-10-11,pod_label,team,*,\n\
        2026-01-01,,queue,,night,batch\n";

    fn payer(holder: &Holder, at: &str) -> String {
        let owners = Owners::read(RULES).expect("a table");
        assert_eq!(owners.findings, [""; 0]);
        let at_ms = table::moment(at).expect("a date");
        owners.payer("prod", holder, at_ms).name().to_owned()
    }

    #[test]
    fn kinds_are_tried_in_their_order_and_rules_end_at_their_date() {
        let mut holder = Holder {
            namespace: "research".to_owned(),
            user: "ada".to_owned(),
            queue: "night".to_owned(),
            ..Holder::default()
        };
        holder
            .pod_labels
            .insert("team".to_owned(), "vision".to_owned());
        assert_eq!(payer(&holder, "2026-10-10"), "vision");
        assert_eq!(payer(&holder, "2026-10-11"), "science");
        holder.namespace.clear();
        assert_eq!(payer(&holder, "2026-10-11"), "batch");
        holder.queue.clear();
        assert_eq!(payer(&holder, "2026-10-11"), "ada");
        assert_eq!(payer(&holder, "2025-10-11"), "unowned");
        assert_eq!(payer(&Holder::default(), "2026-10-11"), "unowned");
        holder.user = "unowned".to_owned();
        assert_eq!(payer(&holder, "2026-10-11"), "team:unowned");
        holder.user = "ada".to_owned();
        holder.owner = "robots".to_owned();
        assert_eq!(payer(&holder, "2025-10-11"), "robots", "no rule says it");
        assert_eq!(payer(&holder, "2026-10-11"), "ada", "a rule does");
    }

    #[test]
    fn a_rule_of_a_cluster_goes_before_one_of_every_cluster_and_is_of_no_other() {
        let text = "from,until,kind,key,value,team,cluster\n\
            2026-01-01,,namespace,,ml,science,\n\
            2026-01-01,,namespace,,ml,vision,prod-eu\n\
            2026-01-01,2026-10-11,namespace,,ml,robots,prod-us\n\
            2026-01-01,,pod_label,team,*,,prod-us\n";
        let mut holder = Holder {
            namespace: "ml".to_owned(),
            ..Holder::default()
        };
        // The order of one table does not matter for it, nor which of two tables is read first.
        let (head, rows) = text.split_once('\n').expect("a header");
        let (every, of_one) = rows.split_once('\n').expect("rows");
        let mut joined = Owners::read(&format!("{head}\n{every}\n")).expect("a table");
        joined.join(Owners::read(&format!("{head}\n{of_one}")).expect("a table"));
        let read = Owners::read(text).expect("a table");
        assert_eq!(read.findings, [""; 0]);
        assert_eq!(read, joined);
        let payer = |cluster: &str, holder: &Holder, at: &str| {
            let at_ms = table::moment(at).expect("a date");
            read.payer(cluster, holder, at_ms).name().to_owned()
        };
        for (cluster, at, team) in [
            ("prod-eu", "2026-10-10", "vision"),
            ("prod-us", "2026-10-10", "robots"),
            ("prod-us", "2026-10-11", "science"),
            ("prod", "2026-10-10", "science"),
            ("", "2026-10-10", "science"),
        ] {
            assert_eq!(payer(cluster, &holder, at), team, "{cluster} {at}");
        }
        // What kind a rule is of goes before that.
        let label = ("team".to_owned(), "speech".to_owned());
        holder.pod_labels.extend([label]);
        assert_eq!(payer("prod-us", &holder, "2026-10-10"), "speech");
        assert_eq!(payer("prod-eu", &holder, "2026-10-10"), "vision");
    }

    #[test]
    fn a_table_without_clusters_is_read_as_one_whose_rules_are_of_every_cluster() {
        let with = RULES.lines().enumerate().map(|(line, row)| match line {
            0 => format!("{row},cluster\n"),
            _ => format!("{row},\n"),
        });
        let with: String = with.collect();
        assert_eq!(Owners::read(&with), Owners::read(RULES));
    }

    #[test]
    fn a_team_is_named_by_a_rule_that_is_not_over_or_perhaps_by_what_a_rule_takes_it_from() {
        let owners = Owners::read(RULES).expect("a table");
        let at_ms = table::moment("2026-10-10").expect("a date");
        assert_eq!(owners.names("science", at_ms), Named::Yes);
        assert_eq!(owners.names("sience", at_ms), Named::Perhaps);
        let fixed = "from,until,kind,key,value,team\n2026-01-01,2026-10-11,queue,,night,batch\n";
        let owners = Owners::read(fixed).expect("a table");
        assert_eq!(owners.names("batch", at_ms), Named::Yes);
        let over = table::moment("2026-10-11").expect("a date");
        assert_eq!(owners.names("batch", over), Named::No);
        assert_eq!(owners.names("science", at_ms), Named::No);
    }

    #[test]
    fn rules_that_cannot_be_used_are_named() {
        for (row, why) in [
            ("soon,,user,,*,", "`soon` is no date"),
            ("2026-02-01,2026-02-01,user,,*,", "it ends before it begins"),
            (
                "2026-01-01,,shoe,,*,",
                "the kind `shoe` is none of pod_label, namespace_label, namespace, queue, slurm_account, user",
            ),
            (
                "2026-01-01,,pod_label,,*,",
                "a rule of the kind pod_label and the key `` do not go together",
            ),
            (
                "2026-01-01,,user,,ada,",
                "it needs a value and a team, or the value `*`",
            ),
            (
                "2026-01-01,,user,,ada,nobody",
                "no team can be called `nobody`: reports show under that name what is nobody's",
            ),
        ] {
            let text = format!("from,until,kind,key,value,team\n{row}\n");
            let owners = Owners::read(&text).expect("a table");
            assert_eq!(owners.findings, [format!("line 2: {why}")]);
        }
    }

    #[test]
    fn the_first_policy_of_a_pool_counts_and_else_the_platform_bears_it() {
        let policy = |pool: &str, until_ms, to| IdlePolicy {
            from_ms: 0,
            until_ms,
            pool: pool.to_owned(),
            to,
        };
        let owners = Owners {
            idle: vec![
                policy("a", Some(10), IdleTo::Owner("x".to_owned())),
                policy("*", None, IdleTo::Use),
            ],
            ..Owners::default()
        };
        assert_eq!(owners.idle_of("a", 5).1, &IdleTo::Owner("x".to_owned()));
        assert_eq!(owners.idle_of("a", 10).1, &IdleTo::Use);
        assert_eq!(owners.idle_of("b", 5).1, &IdleTo::Use);
        assert_eq!(Owners::default().idle_of("b", 5).1, &IdleTo::Platform);
        assert_eq!(owners.edges(), [0, 10]);
    }
}
