//! MFU and HFU on the job page, with their peak and what they are by.

use gpufleet_analysis::mfu::{Kind, Utilisation};
use gpufleet_telemetry::time::Timestamp;

use super::parts::{Figure, HOOKS, figure};
use crate::runs::{Run, RunKey, lookup};
use crate::web::Web;
use crate::words::text;

/// Both figures.
pub(super) fn figures(web: &Web, (key, run): (&RunKey, &Run), now: Timestamp) -> [Figure; 2] {
    let (mfu, hfu) = lookup::utilisation(&web.app.fleet, &web.specs, (key, run), now);
    let flops_by = run.flops_by();
    let model = mfu.as_ref().ok().map(|it| match &flops_by {
        Some(by) => format!("{}; {by}", peak(it)),
        None => peak(it),
    });
    // A run that gives its FLOPs lacks what it is measured by.
    let anchor = if flops_by.is_some() { "peaks" } else { HOOKS };
    let hardware = hfu.as_ref().ok();
    let hardware = hardware.map(|(it, basis)| format!("{}; {}", peak(it), basis.words()));
    [
        Figure {
            small: model,
            anchor,
            ..figure(
                "MFU",
                "Model FLOPs ÷ dense peak of the type used, over its last steps.",
                mfu.map(|it| share(&it)),
            )
        },
        Figure {
            small: hardware,
            anchor,
            ..figure("HFU", "The same with what is computed again.", {
                hfu.map(|(it, _)| share(&it))
            })
        },
    ]
}

/// A share of the peak; an estimate says that it is one.
fn share(it: &Utilisation) -> String {
    let estimated = match it.kind {
        Kind::Estimate => "estimated ",
        Kind::Mfu | Kind::Hfu => "",
    };
    format!("{estimated}{:.1} %", it.ratio * 100.0)
}

fn peak(it: &Utilisation) -> String {
    let asked = if it.is_questioned {
        "; too good to be taken without a question"
    } else {
        ""
    };
    let data_type = it.peak.data_type.name();
    if it.peak.is_stated {
        return format!(
            "{} a rank, of {} that the run itself states as its {data_type} peak{asked}",
            rate(it.flops_per_second),
            rate(it.peak.flops_per_second),
        );
    }
    format!(
        "{:.0} TFLOP/s a GPU, of {} {data_type} dense{asked}",
        it.flops_per_second / 1e12,
        text::harmless(&it.peak.card, text::SHOWN_CHARACTERS),
    )
}

/// FLOPs a second of anything from a CPU's core on.
fn rate(flops_per_second: f64) -> String {
    match flops_per_second {
        it if it >= 1e12 => format!("{:.1} TFLOP/s", it / 1e12),
        it => format!("{:.2} GFLOP/s", it / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::mfu::{Peak, estimated, utilisation};
    use gpufleet_telemetry::gpu_specs::{DataType, lookup};

    use super::*;

    #[test]
    fn an_estimate_says_that_it_is_one_and_each_names_its_peak() {
        let spec = lookup("NVIDIA H100 80GB HBM3").expect("it is in the table");
        let against = Peak::of(spec, DataType::Bf16Tensor).expect("it has one");
        let guess = estimated(0.45, &against).expect("a share");
        assert_eq!(share(&guess), "estimated 45.0 %");
        let told = utilisation(Kind::Hfu, 0.9 * 989.4e12, 1, &against).expect("a share");
        assert_eq!(share(&told), "90.0 %");
        let words = peak(&told);
        assert!(words.contains("H100") && words.contains("bf16 dense"));
        assert!(words.contains("without a question"), "{words}");
        let own = Peak::stated(60e9, DataType::Fp32);
        let told = utilisation(Kind::Mfu, 3e8, 2, &own).expect("a share");
        assert_eq!(
            peak(&told),
            "0.15 GFLOP/s a rank, of 60.00 GFLOP/s that the run itself states as its fp32 peak"
        );
    }
}
