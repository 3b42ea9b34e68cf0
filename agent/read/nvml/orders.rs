//! Letting go of the driver on request, so that it can be reloaded or a GPU reset, and taking it
//! again.

use std::time::Duration;

use super::page::uptime;
use super::{Main, Nvml};
use crate::commands::{NvmlAction, NvmlOrder, NvmlOrders};
use crate::read::Turn;

/// How long a released child may take to end before it counts as stuck.
const RELEASE_PATIENCE: Duration = Duration::from_millis(300);

impl Nvml {
    /// Does what it was told to do between two rounds.
    pub(super) async fn obey(&mut self, turn: &Turn) {
        let next = |orders: &mut NvmlOrders| orders.try_recv().ok();
        while let Some(NvmlOrder { action, done }) = self.orders.as_mut().and_then(next) {
            let result = match action {
                NvmlAction::Release => self.release().await,
                NvmlAction::Acquire => {
                    if matches!(self.main, Main::Released) {
                        self.main = Main::down(Duration::ZERO, None);
                    }
                    Ok(())
                }
            };
            tracing::info!(?action, ?result, at = turn.at.0, "NVML order");
            // Whoever asked may have gone; the order is done all the same.
            let _ = done.send(result);
        }
    }

    /// Lets go of the driver: no process of this agent has it open afterwards.
    async fn release(&mut self) -> Result<(), String> {
        self.bury_main(Main::Released);
        if let Some((_, probe)) = self.probe.take() {
            self.yard.bury(probe.into_child());
        }
        // A killed process that was in no call is gone within moments.
        let patience = uptime() + RELEASE_PATIENCE;
        while self.yard.unreaped() > 0 && uptime() < patience {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.yard.reap();
        }
        match self.yard.unreaped() {
            0 => Ok(()),
            stuck => Err(format!(
                "{stuck} of the agent's processes hang in a driver call and cannot end"
            )),
        }
    }
}
