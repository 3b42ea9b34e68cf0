//! What a second of a GPU costs now, as the month books it: by what its node is, with what commitments cover of nodes like
//! that, else by the card's name.
//!
//! Limits: one lookup for each kind of node and tick; what has no price is unpriced, never free.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::money::{self, NotMoney};
use gpufleet_analysis::owner::Holder;
use gpufleet_analysis::states::Status;
use gpufleet_telemetry::identity::Resource;
use gpufleet_telemetry::time::Timestamp;

use crate::fleet::Live;
use crate::money::{CoveredNow, Machine, Terms};

/// Prices of one tick.
pub struct Prices {
    terms: Arc<Terms>,
    covered: Arc<CoveredNow>,
    at_ms: i64,
    known: HashMap<[String; 5], HashMap<u32, Option<i64>>>,
}

/// The name of what a rank computes on that is on a machine without a GPU.
const CPU: &str = "CPU";

/// A price that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "detect.gpu_hour_usd: the price `{value}` of `{card}` {why}: it is what an hour costs, above 0 and below 1,000,000, like 11.06"
)]
pub struct PriceError {
    card: String,
    value: String,
    why: String,
}

/// Below this an hour of a GPU must cost, in nano-units: a million.
const TOO_MUCH: i64 = 1_000_000 * 1_000_000_000;

/// Refuses what is no price.
///
/// # Errors
/// With the first that is none.
pub fn check(table: &BTreeMap<String, String>) -> Result<(), PriceError> {
    for (card, value) in table {
        let why = match money::parse(value) {
            Ok(price) if price <= 0 => "is not above 0".to_owned(),
            Ok(price) if price >= TOO_MUCH => NotMoney::TooLarge.to_string(),
            Ok(_) => continue,
            Err(error) => error.to_string(),
        };
        return Err(PriceError {
            card: card.clone(),
            value: value.clone(),
            why,
        });
    }
    Ok(())
}

impl Prices {
    /// What holds at this moment, at which so much is covered by commitments.
    pub fn at(terms: Arc<Terms>, covered: Arc<CoveredNow>, now: Timestamp) -> Self {
        Self {
            terms,
            covered,
            at_ms: now.millis(),
            known: HashMap::new(),
        }
    }

    /// Why a GPU is in a state, where people say it: parked or empty by design.
    pub fn reason_of(&self, live: &Live, status: &Status) -> Reason {
        let is_idle = matches!(status.state, State::Parked | State::HeldEmpty);
        let standby = &self.terms.standby;
        let is_standby = |it: &Holder| standby.has(&live.key.cluster, it, self.at_ms);
        if is_idle
            && !standby.is_empty()
            && Holder::told_by(&live.resource).is_some_and(|it| is_standby(&it))
        {
            return Reason::WarmStandby;
        }
        status.reason
    }

    /// Nano-USD a second of a rank on a machine without a GPU: what people say, because nothing says what part of its
    /// machine one takes.
    pub fn of_rank(&mut self, cluster: &str) -> Option<i64> {
        self.of(cluster, None, CPU, 1)
    }

    /// Nano-USD a second of one GPU of a node that has so many of this model.
    pub fn of(
        &mut self,
        cluster: &str,
        node: Option<&Resource>,
        model: &str,
        gpus: u32,
    ) -> Option<i64> {
        self.of_machine(&Machine::told(cluster, node, model, gpus))
    }

    /// Nano-USD a second of one GPU of this machine.
    pub fn of_machine(&mut self, machine: &Machine<'_>) -> Option<i64> {
        let key = [
            machine.cluster,
            machine.machine_type,
            machine.region,
            machine.provisioning,
            machine.gpu_model,
        ];
        let of_kind = self.known.entry(key.map(str::to_owned)).or_default();
        let (terms, covered, at_ms) = (&self.terms, &self.covered, self.at_ms);
        *of_kind.entry(machine.gpus).or_insert_with(|| {
            let second = terms.gpu_second(machine, covered, at_ms).ok();
            second.map(|it| it.mean)
        })
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_telemetry::identity::ResourceKind;

    use super::*;
    use crate::money::terms::Sources;

    const CARD: &str = "NVIDIA H100 80GB HBM3";

    fn prices() -> Prices {
        let of = |key: &str, price: &str| (key.to_owned(), price.to_owned());
        let own = BTreeMap::from([of(CARD, "3.6"), of(&format!("lab/{CARD}"), "1.8")]);
        let terms = Terms::of(Sources {
            cost: crate::money::CostConfig::default(),
            gpu_hour_usd: own,
            files: Vec::new(),
            stored: Vec::new(),
        });
        assert_eq!(terms.findings, [""; 0]);
        let at = Timestamp::from_seconds(1_795_000_000);
        Prices::at(Arc::new(terms), Arc::default(), at)
    }

    #[test]
    fn a_node_costs_what_its_machine_type_does_and_else_what_its_card_does() {
        let mut prices = prices();
        let node = |machine: &str, region: &str| {
            Resource::new(ResourceKind::Node, "n")
                .with("host.type", machine)
                .with("cloud.region", region)
                .with("gpufleet.provisioning", "on_demand")
        };
        let known = node("a3-highgpu-8g", "us-central1");
        let listed = prices
            .of("prod", Some(&known), CARD, 8)
            .expect("it is listed");
        // 88.49 USD an hour, an eighth of it a GPU.
        assert_eq!(listed * 3_600 / 10_000_000, 1_106);
        assert_eq!(
            prices.of("prod", Some(&node("a9-huge", "")), CARD, 8),
            Some(1_000_000)
        );
        assert_eq!(prices.of("prod", None, CARD, 3), Some(1_000_000));
        assert_eq!(prices.of("lab", None, CARD, 3), Some(500_000));
        assert_eq!(
            prices.of("lab", None, "NVIDIA L4", 3),
            None,
            "unpriced, not free"
        );
    }

    #[test]
    fn a_rank_without_a_gpu_costs_what_is_said_of_its_cluster_and_nothing_known_elsewhere() {
        let terms = Terms::of(Sources {
            cost: crate::money::CostConfig::default(),
            gpu_hour_usd: BTreeMap::from([("lab/CPU".to_owned(), "3.6".to_owned())]),
            files: Vec::new(),
            stored: Vec::new(),
        });
        let at = Timestamp::from_seconds(1_795_000_000);
        let mut prices = Prices::at(Arc::new(terms), Arc::default(), at);
        assert_eq!(prices.of_rank("lab"), Some(1_000_000));
        assert_eq!(prices.of_rank("prod"), None, "unpriced, not free");
    }

    #[test]
    fn what_is_no_price_is_refused_with_the_cards_name() {
        for value in ["", "0", "-1", "1e3", "1.2.3", "1000000", "$5", ".5"] {
            let table = BTreeMap::from([(CARD.to_owned(), value.to_owned())]);
            let error = check(&table).expect_err(value);
            assert!(error.to_string().contains(CARD), "{error}");
        }
        assert_eq!(
            check(&BTreeMap::from([(CARD.to_owned(), "11.06".to_owned())])),
            Ok(())
        );
    }
}
