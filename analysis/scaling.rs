//! Scaling efficiency: what each GPU of a large run does compared with a smaller one.
//!
//! efficiency = throughput(N)·n ÷ (throughput(n)·N). The reference is the job's own smaller run;
//! without one it is the published band for this size, named as such. A value above 1 is
//! questioned, not printed plain: runs that differ in more than their size are the usual reason.
//!
//! Bands (share of linear scaling): 8 GPUs 90-95 %, 64 85-90, 512 75-85, 1,024 and more 70-80.

/// Whether the work grew with the GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// The same batch on more GPUs.
    Strong,
    /// The batch grew with the GPUs.
    Weak,
}

/// How fast a number of GPUs was. Throughput in any unit that both runs share: tokens a second, or
/// 1 ÷ the time of the same work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// GPUs.
    pub gpus: u32,
    /// How much a second all of them did.
    pub throughput: f64,
}

/// What to hold a run against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    /// From this many GPUs.
    pub from_gpus: u32,
    /// What published runs of this size reach at least.
    pub low: f64,
    /// And at most.
    pub high: f64,
}

/// The published bands, by rising size.
pub const BANDS: [Band; 4] = [
    Band {
        from_gpus: 8,
        low: 0.90,
        high: 0.95,
    },
    Band {
        from_gpus: 64,
        low: 0.85,
        high: 0.90,
    },
    Band {
        from_gpus: 512,
        low: 0.75,
        high: 0.85,
    },
    Band {
        from_gpus: 1_024,
        low: 0.70,
        high: 0.80,
    },
];

/// What can be said of a run's scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Efficiency {
    /// Against the job's own smaller run.
    Own {
        /// 1 is linear.
        ratio: f64,
        /// The smaller run.
        reference: Measured,
        /// Strong or weak.
        scaling: Scaling,
        /// Above 1: to be questioned.
        is_questioned: bool,
        /// What others of the size reach; none where nothing is published.
        band: Option<Band>,
    },
    /// There is no smaller run; this is what others of the size reach.
    Published(Band),
    /// There is nothing to hold it against.
    Unknown,
}

/// The efficiency of `run`. Of several smaller runs the smallest is the reference, because it has
/// the least of what scaling costs.
pub fn efficiency(run: Measured, smaller: &[Measured], scaling: Scaling) -> Efficiency {
    let is_sound = |it: &Measured| it.gpus > 0 && it.throughput.is_finite() && it.throughput > 0.0;
    let candidates = smaller
        .iter()
        .filter(|it| is_sound(it) && it.gpus < run.gpus);
    match candidates.min_by_key(|it| it.gpus) {
        Some(reference) if is_sound(&run) => {
            let each = |it: &Measured| it.throughput / f64::from(it.gpus);
            let ratio = each(&run) / each(reference);
            Efficiency::Own {
                ratio,
                reference: *reference,
                scaling,
                is_questioned: ratio > 1.0,
                band: band(run.gpus),
            }
        }
        _ => band(run.gpus).map_or(Efficiency::Unknown, Efficiency::Published),
    }
}

/// The band of a size; none below 8 GPUs, where nothing is published.
pub fn band(gpus: u32) -> Option<Band> {
    BANDS.into_iter().rfind(|it| it.from_gpus <= gpus)
}

impl Band {
    fn words(&self) -> String {
        format!(
            "published runs from {} GPUs on reach {:.0} to {:.0} %",
            self.from_gpus,
            100.0 * self.low,
            100.0 * self.high
        )
    }
}

impl Efficiency {
    /// One sentence for the page.
    pub fn sentence(&self) -> String {
        match self {
            Self::Own {
                ratio,
                reference,
                scaling,
                is_questioned,
                band,
            } => {
                let scaling = match scaling {
                    Scaling::Strong => "strong",
                    Scaling::Weak => "weak",
                };
                let verdict = match (is_questioned, band) {
                    (true, _) => {
                        ". More than linear: the two runs probably differ in more than their size"
                            .to_owned()
                    }
                    (false, Some(band)) if *ratio >= band.low => {
                        format!(": normal, {}", band.words())
                    }
                    (false, Some(band)) => format!(": less than normal, {}", band.words()),
                    (false, None) => ". Nothing is published for its size".to_owned(),
                };
                format!(
                    "{:.0} % of linear ({scaling} scaling) against this job's run on {} GPUs{verdict}.",
                    100.0 * ratio,
                    reference.gpus
                )
            }
            Self::Published(band) => format!(
                "Not measured: this job has no run on fewer GPUs; one of the same name, some steps long, measures it. Normal: {}.",
                band.words()
            ),
            Self::Unknown => {
                "Not known: no smaller run, and nothing published for this size.".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(gpus: u32, throughput: f64) -> Measured {
        Measured { gpus, throughput }
    }

    fn own(run: Measured, smaller: &[Measured]) -> (f64, bool) {
        match efficiency(run, smaller, Scaling::Strong) {
            Efficiency::Own {
                ratio,
                is_questioned,
                ..
            } => (ratio, is_questioned),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn twice_the_gpus_in_a_bit_more_than_half_the_time_are_94_percent() {
        let (ratio, is_questioned) =
            own(measured(5_120, 1.0 / 10.0), &[measured(2_560, 1.0 / 18.79)]);
        assert_eq!((ratio * 100.0).round(), 94.0);
        assert!(!is_questioned);
    }

    #[test]
    fn the_smallest_run_is_the_reference_and_larger_and_broken_ones_are_none() {
        let smaller = [
            measured(64, 60.0),
            measured(8, 8.0),
            measured(256, 300.0),
            measured(4, f64::NAN),
            measured(0, 1.0),
        ];
        assert_eq!(own(measured(128, 96.0), &smaller), (0.75, false));
    }

    #[test]
    fn more_than_linear_is_questioned() {
        let found = efficiency(measured(16, 17.0), &[measured(8, 8.0)], Scaling::Weak);
        let sentence = found.sentence();
        assert!(
            sentence.starts_with("106 % of linear (weak scaling)"),
            "{sentence}"
        );
        assert!(sentence.contains("probably differ"), "{sentence}");
    }

    #[test]
    fn a_run_is_told_to_be_normal_or_less_by_what_others_of_its_size_reach() {
        let smaller = [measured(8, 8.0)];
        for (gpus, throughput, says) in [
            (
                64,
                56.0,
                "88 % of linear (strong scaling) against this job's run on 8 GPUs: normal, published runs from 64 GPUs on reach 85 to 90 %.",
            ),
            (64, 54.4, ": normal, "),
            (
                64,
                51.2,
                "80 % of linear (strong scaling) against this job's run on 8 GPUs: less than normal, published runs from 64 GPUs on reach 85 to 90 %.",
            ),
            (
                512,
                409.6,
                "80 % of linear (strong scaling) against this job's run on 8 GPUs: normal, published runs from 512",
            ),
        ] {
            let found = efficiency(measured(gpus, throughput), &smaller, Scaling::Strong);
            assert!(found.sentence().contains(says), "{}", found.sentence());
        }
        let few = efficiency(measured(4, 3.0), &[measured(2, 2.0)], Scaling::Strong);
        assert!(
            few.sentence()
                .ends_with("Nothing is published for its size."),
            "{}",
            few.sentence()
        );
    }

    #[test]
    fn without_a_smaller_run_the_published_band_is_named_as_such() {
        for (gpus, expected) in [
            (7, None),
            (8, Some((0.90, 0.95))),
            (63, Some((0.90, 0.95))),
            (512, Some((0.75, 0.85))),
            (16_384, Some((0.70, 0.80))),
        ] {
            let found = efficiency(measured(gpus, 1.0), &[], Scaling::Weak);
            let band = match found {
                Efficiency::Published(band) => Some((band.low, band.high)),
                _ => None,
            };
            assert_eq!(band, expected, "{gpus}");
            assert!(found.sentence().starts_with("Not "), "{}", found.sentence());
        }
    }
}
