//! The node pools of nodes, by the names that agents tell: they may leave out the domain, as the cluster may.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_analysis::inventory::Record;

use super::names::short;

/// Node pools by the names of nodes.
#[derive(Debug)]
pub struct NodePools {
    cluster: Arc<str>,
    of_node: HashMap<String, String>,
}

impl NodePools {
    /// Those of the nodes of a cluster.
    pub fn of<'a>(cluster: &Arc<str>, records: impl Iterator<Item = &'a Record>) -> Self {
        let (mut full, mut shorter) = (HashMap::new(), HashMap::new());
        for Record { node, .. } in records {
            full.insert(node.name.clone(), node.pool.clone());
            shorter.insert(short(&node.name).to_owned(), node.pool.clone());
        }
        // The name that is written the same goes first.
        shorter.extend(full);
        Self {
            cluster: Arc::clone(cluster),
            of_node: shorter,
        }
    }

    /// The node pool of a node; empty where it is not known.
    pub fn of_node(&self, cluster: &str, node: &str) -> &str {
        let of = |name: &str| self.of_node.get(name).map(String::as_str);
        let is_here = *cluster == *self.cluster;
        let found = of(node).or_else(|| of(short(node)));
        found.filter(|_| is_here).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::inventory::Node;
    use gpufleet_telemetry::time::Timestamp;

    use super::*;

    #[test]
    fn a_node_s_pool_is_found_with_its_domain_and_without_and_only_in_its_cluster() {
        let record = |name: &str, pool: &str| {
            let node = Node {
                name: name.to_owned(),
                pool: pool.to_owned(),
                ..Node::default()
            };
            Record::new(node, Timestamp::default())
        };
        let all = [record("n-1", "a3"), record("n-2.lab.example", "l4")];
        let pools = NodePools::of(&"prod".into(), all.iter());
        for (node, pool) in [
            ("n-1", "a3"),
            ("n-1.lab.example", "a3"),
            ("n-2.lab.example", "l4"),
            ("n-2", "l4"),
            ("n-3", ""),
        ] {
            assert_eq!(pools.of_node("prod", node), pool, "{node}");
        }
        assert_eq!(pools.of_node("other", "n-1"), "");
    }
}
