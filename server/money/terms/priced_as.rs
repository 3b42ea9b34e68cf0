//! As what a node is priced over a time: as its machine type where that has a price, bought or rented, else as its card.

use gpufleet_analysis::price_book::{Basis, Stretch, Unpriced};

use super::{Machine, Paid, Terms, ask, own_name};

/// As what a node is priced over a time: itself, bought from when that is said and rented before, and where its machine
/// type has no price its card, if that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PricedAs {
    /// With the moment from which own rates of its machine type count.
    bought: Option<(i64, Whole)>,
    rented: Whole,
    /// When commitments may cover it while it is rented.
    committed: Vec<(i64, i64)>,
    of_card: Option<Paid>,
}

/// A whole machine on some terms.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Whole {
    paid: Paid,
    /// When that has a price.
    priced: Vec<(i64, i64)>,
}

impl Terms {
    /// As what a node is priced over a time.
    pub fn priced_as(&self, machine: &Machine<'_>, from_ms: i64, until_ms: i64) -> PricedAs {
        let known = self.book.machine(machine.machine_type);
        let gpus = match known.map_or(0, |it| it.gpus()) {
            0 => machine.gpus,
            own => own,
        };
        let quoted = |basis| {
            let paid = (machine.machine_type.to_owned(), basis, gpus);
            let stretches = self.book.quote(&ask(machine, &paid, from_ms, until_ms));
            (paid, stretches)
        };
        let (bought, rented) = match machine.provisioning {
            "spot" => (None, Basis::Spot),
            "flex_start" => (None, Basis::FlexStart),
            _ => (Some(quoted(Basis::Own)), Basis::OnDemand),
        };
        let bought = bought.and_then(|(paid, stretches)| {
            let first = stretches.iter().find(|it| has_begun(it))?;
            Some((first.from_ms, Whole::of(paid, &stretches)))
        });
        let (paid, stretches) = quoted(rented);
        let in_cluster = format!("{}/{}", machine.cluster, machine.gpu_model);
        let of_card = [in_cluster.as_str(), machine.gpu_model].map(own_name);
        let of_card = of_card
            .into_iter()
            .find(|it| self.book.machine(it).is_some());
        PricedAs {
            bought,
            committed: match rented {
                Basis::OnDemand => self.committed(machine, from_ms, until_ms),
                _ => Vec::new(),
            },
            rented: Whole::of(paid, &stretches),
            of_card: of_card.map(|name| (name, Basis::Own, 1)),
        }
    }

    /// As what it is priced at a moment.
    pub fn machine(&self, machine: &Machine<'_>, at_ms: i64) -> Paid {
        let priced = self.priced_as(machine, at_ms, at_ms + 1);
        priced.within(at_ms, at_ms + 1).clone()
    }

    /// When in a time commitments may cover such a node.
    fn committed(&self, machine: &Machine<'_>, from_ms: i64, until_ms: i64) -> Vec<(i64, i64)> {
        let all = self.book.commitments().iter();
        let of_it = all.filter(|it| {
            it.is_for((machine.machine_type, machine.region, machine.cluster))
                && it.from_ms < until_ms
                && from_ms < it.until_ms
        });
        of_it.map(|it| (it.from_ms, it.until_ms)).collect()
    }
}

impl PricedAs {
    /// As what it is priced in a part of that time: by its machine type where that has a price in it, or a commitment may
    /// cover it.
    pub fn within(&self, from_ms: i64, until_ms: i64) -> &Paid {
        match self.card(from_ms, until_ms) {
            Some(card) if !self.is_committed(from_ms, until_ms) => card,
            _ => &self.whole(until_ms).paid,
        }
    }

    /// The machine type that stands for one of its cards, by which costs what no commitment covers of it where its own
    /// has no price in that part; none where it has one, or its card has none.
    pub fn card_beside(&self, from_ms: i64, until_ms: i64) -> Option<&str> {
        let card = self.card(from_ms, until_ms)?;
        let is_committed = self.is_committed(from_ms, until_ms);
        is_committed.then_some(card.0.as_str())
    }

    /// By which card it is priced, where its machine type has no price.
    fn card(&self, from_ms: i64, until_ms: i64) -> Option<&Paid> {
        let is_priced = overlaps(&self.whole(until_ms).priced, from_ms, until_ms);
        self.of_card.as_ref().filter(|_| !is_priced)
    }

    fn is_committed(&self, from_ms: i64, until_ms: i64) -> bool {
        self.bought(until_ms).is_none() && overlaps(&self.committed, from_ms, until_ms)
    }

    fn whole(&self, until_ms: i64) -> &Whole {
        self.bought(until_ms).unwrap_or(&self.rented)
    }

    fn bought(&self, until_ms: i64) -> Option<&Whole> {
        let bought = self.bought.as_ref().filter(|it| it.0 < until_ms);
        bought.map(|it| &it.1)
    }
}

/// Whether any of these is in a time.
fn overlaps(all: &[(i64, i64)], from_ms: i64, until_ms: i64) -> bool {
    all.iter().any(|it| it.0 < until_ms && from_ms < it.1)
}

impl Whole {
    fn of(paid: Paid, stretches: &[Stretch]) -> Self {
        let priced = stretches.iter().filter(|it| it.quote.is_ok());
        Self {
            paid,
            priced: priced.map(|it| (it.from_ms, it.until_ms)).collect(),
        }
    }
}

/// Whether the series has begun: it may have a gap, or contradict itself.
fn has_begun(stretch: &Stretch) -> bool {
    use Unpriced::{Before, NoMachine, NoRate, UnknownMachine};
    !matches!(
        stretch.quote,
        Err(UnknownMachine(_) | NoMachine | NoRate(_) | Before { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::covered::CoveredNow;
    use crate::money::terms::Sources;

    #[test]
    fn a_machine_of_flex_start_costs_nothing_that_is_known_until_there_is_a_rate_of_it() {
        let machine = Machine {
            machine_type: "a3-highgpu-8g",
            region: "us-central1",
            provisioning: "flex_start",
            ..Machine::told("prod", None, "NVIDIA H100 80GB HBM3", 8)
        };
        let now_ms = 1_790_000_000_000;
        let on_demand = Machine {
            provisioning: "on_demand",
            ..machine
        };
        let shipped = Terms::of(Sources::default());
        let second = |terms: &Terms, it| terms.gpu_second(it, &CoveredNow::default(), now_ms);
        assert!(second(&shipped, &on_demand).is_ok());
        assert_eq!(shipped.machine(&machine, now_ms).1, Basis::FlexStart);
        assert!(second(&shipped, &machine).is_err());
        let rate = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
             a3-highgpu-8g,us-central1,flex_start,USD,28.8,,2026-01-01,,list,mine\n";
        let own = Terms::of(Sources {
            files: vec![("rates.csv".to_owned(), Ok(rate.to_owned()))],
            ..Sources::default()
        });
        // 28.8 USD an hour by eight GPUs and 3,600 seconds.
        let priced = second(&own, &machine).expect("there is a rate");
        assert_eq!(priced.mean, 1_000_000);
    }
}
