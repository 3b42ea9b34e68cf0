//! Copies between a GPU and others of its node, in a process of their own: it is shown several GPUs, so that what is
//! wrong with one of them may end it, and takes nothing of what the GPU's own run found with it.
//!
//! Bytes a second, both ways. Nobody compares what was copied: links have checksums of their own. Limits: [`BYTES`] of
//! memory on each GPU, [`COPIES`] and one before them each way; over PCIe 7 ms of a pair's time, over NVLink under one.

use super::device::{Apart, Buffer, Gpu, Peer, is_driver_here};
use super::look::Look;
use super::measured::{self, Measured, Stage, Stopped, Why};
use super::verdict::judge_stopped;

/// What is copied at once.
const BYTES: usize = 16 << 20;

/// Copies that a rate is the mean of.
const COPIES: u32 = 4;

/// Measures the pairs of the first GPU that this process is shown with these, which it is shown after it, in their
/// order. Each is looked at again through NVML (`library`): since they were chosen somebody may have come. `tell` hears
/// each stage before it begins.
pub(super) fn run(
    library: &str,
    peers: &[String],
    tell: &mut dyn FnMut(Stage),
) -> Result<Measured, Why> {
    tell(Stage::Library);
    if !is_driver_here() {
        return Err(Why::NoLibrary);
    }
    tell(Stage::Initialise);
    let gpu = Gpu::open()?;
    tell(Stage::Context);
    gpu.enter()?;
    tell(Stage::Allocate);
    let own = gpu.allocate(BYTES)?;
    let mut measured = Measured::default();
    for (number, id) in (0_u32..).zip(peers) {
        tell(Stage::Context);
        let place = i32::try_from(number + 1).unwrap_or(i32::MAX);
        let refusal = Look::open(library, id)
            .ok()
            .and_then(|it| it.refusal(false));
        let peer = match refusal {
            Some(why) => Err(Apart::Refused(why)),
            None => gpu.peer(place, BYTES),
        };
        let why_not = match peer {
            Ok(peer) => {
                tell(Stage::Between(number));
                let found = copied(&gpu, own, &peer, id, &mut measured.gpu_seconds)?;
                measured.peers.extend(found);
                continue;
            }
            Err(Apart::NotShown) => "CUDA does not show it".to_owned(),
            Err(Apart::NoAccess) => "there is no peer access between the two".to_owned(),
            Err(Apart::Refused(why)) => {
                let stage = Stage::Context;
                judge_stopped(&Stopped { stage, why }).reason
            }
        };
        measured
            .left_out
            .push(format!("copies with {id}: {why_not}"));
    }
    Ok(measured)
}

/// The rates of one pair; none where the clock is too coarse for them.
fn copied(
    gpu: &Gpu,
    own: Buffer,
    peer: &Peer,
    id: &str,
    gpu_seconds: &mut f64,
) -> Result<Option<measured::Peer>, Why> {
    let mut rate = |copy: &dyn Fn() -> Result<(), Why>| {
        // The first one opens the way.
        copy()?;
        let from = gpu.mark()?;
        for _ in 0..COPIES {
            copy()?;
        }
        let to = gpu.mark()?;
        let seconds = gpu.between(&from, &to)?;
        *gpu_seconds += seconds;
        Ok(BYTES as f64 * f64::from(COPIES) / seconds)
    };
    let (to, from) = (rate(&|| peer.copy_to(own))?, rate(&|| peer.copy_from(own))?);
    let is_known = to.is_finite() && from.is_finite();
    Ok(is_known.then(|| measured::Peer {
        gpu: id.to_owned(),
        link: peer.link,
        to,
        from,
    }))
}
