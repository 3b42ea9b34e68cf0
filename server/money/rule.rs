//! The row of the table of owner rules that would name whose something is which is nobody's.

use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::table;
use gpufleet_telemetry::time::Timestamp;

/// What is missing where no rule can name a holder's team.
pub const NO_RULE: &str = "No rule can name its team: neither its namespace nor its Slurm account nor its user is known. Of a job of \
     Slurm's the agent asks the program attribute.scontrol_path; gpufleet-agent doctor on the node says why it was not told";

/// The line of the table of owner rules that would name this holder's team, in this cluster or in every one; none
/// where nothing is known that it could name.
pub(super) fn rule_for(cluster: Option<&str>, holder: &Holder, at: Timestamp) -> Option<String> {
    let date = table::moment_text(at.millis());
    let date: String = date.chars().take(10).collect();
    let known = [
        ("namespace", holder.namespace.as_str()),
        ("slurm_account", holder.slurm_account.as_str()),
        ("user", holder.user.as_str()),
    ];
    let (kind, value) = known.into_iter().find(|it| !it.1.is_empty())?;
    let mut rule = String::new();
    let cells = [&*date, "", kind, "", value, "TEAM"].into_iter();
    let cells: Vec<&str> = cells.chain(cluster).collect();
    table::write(&mut rule, &cells);
    Some(rule.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::owner::{COLUMNS, COLUMNS_OF_CLUSTERS, Owners, Payer};

    use super::*;

    #[test]
    fn the_rule_for_a_holder_can_be_imported_and_there_is_none_where_nothing_is_known_of_it() {
        let at = Timestamp::from_seconds(1_790_000_000);
        let holder = |namespace: &str, slurm_account: &str, user: &str| Holder {
            job: "slurm:77".to_owned(),
            namespace: namespace.to_owned(),
            slurm_account: slurm_account.to_owned(),
            user: user.to_owned(),
            ..Holder::default()
        };
        let known = [["ml", "a", "u"], ["", "a", "u"], ["", "", "a,\"b\""]];
        for [namespace, account, user] in known {
            let holder = holder(namespace, account, user);
            for (cluster, columns) in [(None, &COLUMNS[..]), (Some("prod"), &COLUMNS_OF_CLUSTERS)] {
                let rule = rule_for(cluster, &holder, at).expect("something is known");
                let owners = Owners::read(&format!("{}\n{rule}\n", columns.join(",")));
                let owners = owners.expect("a table");
                assert_eq!(owners.findings, [""; 0], "{rule}");
                let payer = owners.payer("prod", &holder, at.millis());
                assert_eq!(payer, Payer::Team("TEAM".to_owned()), "{rule}");
            }
        }
        assert_eq!(rule_for(None, &holder("", "", ""), at), None);
    }

    #[test]
    fn the_rule_goes_into_a_table_with_clusters_or_without_and_its_other_rules_stay() {
        let at = Timestamp::from_seconds(1_790_000_000);
        let holder = |namespace: &str| Holder {
            namespace: namespace.to_owned(),
            ..Holder::default()
        };
        for (columns, end) in [(&COLUMNS[..], ""), (&COLUMNS_OF_CLUSTERS, ",")] {
            for (cluster, elsewhere) in [(Some("prod"), "unowned"), (None, "TEAM")] {
                let rule = rule_for(cluster, &holder("ml"), at).expect("something is known");
                let columns = columns.join(",");
                let before = format!("{columns}\n2026-01-01,,namespace,,research,science{end}\n");
                let owners = Owners::read(&format!("{before}{rule}\n")).expect("a table");
                assert_eq!(owners.findings, [""; 0], "{rule}");
                let payer = |cluster: &str, namespace: &str| {
                    let payer = owners.payer(cluster, &holder(namespace), at.millis());
                    payer.name().to_owned()
                };
                assert_eq!(payer("prod", "research"), "science", "{before}{rule}");
                assert_eq!(payer("prod", "ml"), "TEAM", "{before}{rule}");
                assert_eq!(payer("other", "ml"), elsewhere, "{before}{rule}");
            }
        }
    }
}
