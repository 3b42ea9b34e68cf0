//! Each rule firing, quiet and without data; and real machines that are well.

use std::io::Read;

use super::*;

const MINUTE: i64 = 60_000_000_000;
const NOW: Timestamp = Timestamp(1_000_000 * MINUTE);

/// A GPU of which nothing is known.
pub(super) fn unknown() -> Gpu<'static> {
    Gpu {
        now: NOW,
        hours: 1.0,
        is_expected: true,
        ..Gpu::default()
    }
}

pub(super) fn ago(minutes: i64) -> Timestamp {
    Timestamp(NOW.0 - minutes * MINUTE)
}

pub(super) fn kinds(gpu: &Gpu<'_>) -> Vec<Kind> {
    findings(gpu).iter().map(|it| it.kind).collect()
}

#[test]
fn what_is_not_known_finds_nothing() {
    assert_eq!(findings(&unknown()), []);
    assert_eq!(
        findings(&Gpu {
            hours: 0.0,
            ecc_correctable: Some(9),
            ..unknown()
        }),
        []
    );
}

#[test]
fn memory_errors_are_told_by_count_and_by_rate() {
    let sick = Gpu {
        ecc_uncorrectable: Some(1),
        ecc_correctable: Some(61),
        has_remap_failure: Some(true),
        has_remap_pending: Some(true),
        ..unknown()
    };
    let all = [
        Kind::EccUncorrectable,
        Kind::EccRate,
        Kind::RemapFailed,
        Kind::RemapPending,
    ];
    assert_eq!(kinds(&sick), all);
    let well = Gpu {
        ecc_uncorrectable: Some(0),
        ecc_correctable: Some(60),
        has_remap_failure: Some(false),
        has_remap_pending: Some(false),
        ..unknown()
    };
    assert_eq!(kinds(&well), []);
}

#[test]
fn throttling_is_told_with_its_cause_and_the_power_cap_only_where_others_are_not_at_theirs() {
    let heat = Gpu {
        heat_part: Some(0.06),
        slowdowns_per_minute: Some(1.0),
        ..unknown()
    };
    assert_eq!(
        kinds(&heat),
        [Kind::Throttled(Cause::Heat)],
        "told once, with its cause"
    );
    let brake = Gpu {
        brake_part: Some(0.06),
        ..unknown()
    };
    assert_eq!(kinds(&brake), [Kind::Throttled(Cause::HardwareBrake)]);
    let hardware = Gpu {
        slowdowns_per_minute: Some(0.61),
        ..unknown()
    };
    assert_eq!(kinds(&hardware), [Kind::Throttled(Cause::Hardware)]);
    assert_eq!(
        kinds(&Gpu {
            slowdowns_per_minute: Some(0.6),
            heat_part: Some(0.05),
            ..unknown()
        }),
        []
    );
    let capped = Gpu {
        cap_part: Some(0.9),
        like_cap_part: Some(0.0),
        ..unknown()
    };
    assert_eq!(kinds(&capped), [Kind::Throttled(Cause::PowerCap)]);
    let both = [Cause::PowerCap, Cause::Hardware].map(Kind::Throttled);
    let slowed = Gpu {
        cap_part: Some(0.25),
        slowdowns_per_minute: Some(2.0),
        ..capped
    };
    assert_eq!(kinds(&slowed), both, "the cap is not the hardware's");
    assert_eq!(
        kinds(&Gpu {
            like_cap_part: Some(0.9),
            ..capped
        }),
        [],
        "all are at their cap"
    );
    assert_eq!(
        kinds(&Gpu {
            like_cap_part: None,
            ..capped
        }),
        []
    );
}

fn usual(values: &[f64]) -> Option<Usual> {
    Usual::of(&mut values.to_vec())
}

#[test]
fn a_gpu_apart_from_four_like_ones_is_told_and_from_three_not() {
    let celsius = [60.0, 61.0, 62.0, 63.0];
    let watts = [680.0, 690.0, 700.0, 695.0];
    let gpu = Gpu {
        temperature_celsius: Some(75.0),
        like_celsius: usual(&celsius),
        power_watts: Some(400.0),
        like_watts: usual(&watts),
        ..unknown()
    };
    assert_eq!(kinds(&gpu), [Kind::Hot, Kind::Underpowered]);
    let well = Gpu {
        temperature_celsius: Some(70.0),
        power_watts: Some(600.0),
        ..gpu
    };
    assert_eq!(kinds(&well), []);
    assert_eq!(
        kinds(&Gpu {
            like_celsius: usual(&celsius[..3]),
            like_watts: usual(&watts[..3]),
            ..gpu
        }),
        []
    );
    let wide = [40.0, 55.0, 70.0, 85.0];
    assert_eq!(
        kinds(&Gpu {
            like_celsius: usual(&wide),
            power_watts: None,
            ..gpu
        }),
        [],
        "they differ anyway"
    );
}

#[test]
fn links_below_what_they_can_are_told_by_readings_in_a_row() {
    let full = Pcie {
        width: 16,
        best_width: 16,
        generation: 5,
        best_generation: 5,
        is_active: true,
    };
    let narrow = Pcie { width: 8, ..full };
    let old = Pcie {
        generation: 3,
        ..full
    };
    let idle = Pcie {
        is_active: false,
        ..old
    };
    let of = |pcie: &[Pcie]| {
        let links = Links {
            pcie,
            ..Links::default()
        };
        kinds(&Gpu { links, ..unknown() })
    };
    assert_eq!(of(&[narrow; 3]), [Kind::PcieDegraded]);
    assert_eq!(of(&[old; 3]), [Kind::PcieDegraded]);
    assert_eq!(of(&[idle; 3]), [], "an idle link saves power");
    assert_eq!(of(&[narrow, full, narrow]), []);
    assert_eq!(of(&[narrow; 2]), []);
    for (pcie, part, words) in [
        (narrow, 0.5, "gen 5 x8 of gen 5 x16"),
        (old, 0.25, "gen 3 x16 of gen 5 x16"),
        (Pcie { width: 4, ..old }, 0.0625, "gen 3 x4 of gen 5 x16"),
        (Pcie { width: 8, ..idle }, 0.5, "gen 5 x8 of gen 5 x16"),
    ] {
        assert_eq!((pcie.part(), &*pcie.words()), (part, words));
    }
}

#[test]
fn nvlinks_are_down_after_five_readings_on_a_card_that_has_them_long_after_the_boot() {
    let of = |nvlinks_up: &[u32], nvlinks: u32, booted_at: Option<Timestamp>| {
        let links = Links {
            nvlinks_up,
            nvlinks,
            ..Links::default()
        };
        kinds(&Gpu {
            links,
            booted_at,
            ..unknown()
        })
    };
    let long_ago = Some(ago(11));
    assert_eq!(of(&[17; 5], 18, long_ago), [Kind::NvlinkDown]);
    assert_eq!(of(&[17, 17, 18, 17, 17], 18, long_ago), []);
    assert_eq!(of(&[17; 4], 18, long_ago), []);
    assert_eq!(of(&[0; 5], 0, long_ago), [], "a PCIe card");
    assert_eq!(of(&[17; 5], 18, Some(ago(9))), [], "it still trains");
    assert_eq!(of(&[17; 5], 18, None), [], "nobody knows when it booted");
}

#[test]
fn a_gpu_that_is_lost_hung_or_gone_is_told_once_and_not_without_its_agent() {
    let gone = Gpu {
        last_seen: Some(ago(1)),
        ..unknown()
    };
    assert_eq!(kinds(&gone), [Kind::Vanished]);
    assert_eq!(findings(&gone)[0].reading, 60.0);
    assert_eq!(
        kinds(&Gpu {
            is_expected: false,
            ..gone
        }),
        [],
        "nobody hears its agent"
    );
    assert_eq!(
        kinds(&Gpu {
            last_seen: Some(Timestamp(NOW.0 - VANISHED_NS)),
            ..gone
        }),
        []
    );
    assert_eq!(
        kinds(&Gpu {
            lost_since: Some(ago(2)),
            ..gone
        }),
        [Kind::Lost]
    );
    assert_eq!(
        kinds(&Gpu {
            hung_since: Some(ago(2)),
            ..gone
        }),
        [Kind::DriverHung]
    );
}

/// The numbers between these tags, in order; what is not a number is left out.
fn numbers(text: &str, tag: &str) -> Vec<f64> {
    let opening = format!("<{tag}>");
    let parts = text.split(&opening).skip(1);
    let number = |part: &str| part.split([' ', '<', 'x']).next()?.parse::<f64>().ok();
    parts.filter_map(number).collect()
}

#[test]
fn real_machines_that_are_well_give_no_finding() {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../shared/data/real/nvidia_smi/hardware"
    );
    let Ok(files) = std::fs::read_dir(folder) else {
        eprintln!("NOT RUN: the real machines are not there");
        return;
    };
    let mut judged = 0;
    for file in files {
        let path = file.expect("an entry").path();
        let packed = std::fs::read(&path).expect("it can be read");
        let mut text = String::new();
        let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
        unpacked.read_to_string(&mut text).expect("it is text");
        let like_celsius = numbers(&text, "gpu_temp");
        let widths = numbers(&text, "current_link_width");
        let best_width = widths.iter().copied().fold(0.0, f64::max) as u32;
        assert!(!like_celsius.is_empty(), "{}", path.display());
        for (at, own) in like_celsius.iter().enumerate() {
            let width = widths.get(at).map_or(best_width, |it| *it as u32);
            let pcie = [Pcie {
                width,
                best_width,
                generation: 1,
                best_generation: 5,
                is_active: false,
            }; 3];
            let gpu = Gpu {
                temperature_celsius: Some(*own),
                like_celsius: usual(&like_celsius),
                links: Links {
                    pcie: &pcie,
                    ..Links::default()
                },
                has_remap_failure: Some(text.contains("<remapped_row_failure>Yes")),
                ..unknown()
            };
            assert_eq!(findings(&gpu), [], "{} GPU {at}", path.display());
            judged += 1;
        }
    }
    assert!(judged >= 7, "{judged}");
}

#[test]
fn a_probe_that_failed_names_the_sm_until_the_gpu_is_healed_and_one_that_is_not_known_says_nothing()
{
    let at = |seconds: i64| Timestamp::from_seconds(seconds);
    let probed = Probed {
        is_wrong: true,
        sm: Some(17),
        at: at(100),
    };
    let gpu = Gpu {
        probe: Some(probed),
        ..Gpu::default()
    };
    let [finding] = findings(&gpu)[..] else {
        panic!("one finding");
    };
    assert_eq!(finding.kind, Kind::ProbeFailed(Some(17)));
    assert_eq!(finding.since, Some(at(100)));
    let healed = Gpu {
        healed_at: Some(at(200)),
        ..gpu
    };
    assert_eq!(findings(&healed), []);
    let slow = Gpu {
        probe: Some(Probed {
            is_wrong: false,
            ..probed
        }),
        ..gpu
    };
    assert_eq!(findings(&slow)[0].kind, Kind::ProbeSlow);
    assert_eq!(findings(&Gpu::default()), []);
}

#[test]
fn a_gpu_is_judged_by_the_thresholds_that_are_set() {
    type Set = fn(&mut Thresholds);
    let (celsius, watts) = (usual(&[60.0; 8]), usual(&[600.0; 8]));
    let rows: [(Gpu<'_>, Kind, Set); 6] = [
        (
            Gpu {
                ecc_correctable: Some(80),
                ..unknown()
            },
            Kind::EccRate,
            |by| by.corrected_per_hour = 100.0,
        ),
        (
            Gpu {
                slowdowns_per_minute: Some(1.0),
                ..unknown()
            },
            Kind::Throttled(Cause::Hardware),
            |by| by.slowdowns_per_minute = 2.0,
        ),
        (
            Gpu {
                heat_part: Some(0.1),
                ..unknown()
            },
            Kind::Throttled(Cause::Heat),
            |by| by.throttled_part = 0.2,
        ),
        (
            Gpu {
                cap_part: Some(0.3),
                like_cap_part: Some(0.0),
                ..unknown()
            },
            Kind::Throttled(Cause::PowerCap),
            |by| by.capped_part = 0.5,
        ),
        (
            Gpu {
                temperature_celsius: Some(75.0),
                like_celsius: celsius,
                ..unknown()
            },
            Kind::Hot,
            |by| by.hotter_celsius = 20.0,
        ),
        (
            Gpu {
                power_watts: Some(400.0),
                like_watts: watts,
                ..unknown()
            },
            Kind::Underpowered,
            |by| by.weaker_part = 0.5,
        ),
    ];
    for (mut gpu, kind, set) in rows {
        assert_eq!(kinds(&gpu), [kind]);
        set(&mut gpu.by);
        assert_eq!(kinds(&gpu), [], "{kind:?} by {:?}", gpu.by);
    }
}
