//! Whether the driver answers at all. On a device that hangs a question to it may never come back, so it is put by a
//! thread that nobody waits for longer than they want to, and that holds nothing of the framework's.
//!
//! Limits: one question at a time; while one has not come back no other is put.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Cannot;
use super::driver::{self, Context, Driver, Event};

/// The device that a framework computes on.
pub struct Device {
    driver: Driver,
    context: Context,
    /// On a stream on which nothing else is, so that the GPU is soon past it, whatever training waits for.
    past: Event,
    /// A question that has not come back.
    asked: Mutex<Option<Receiver<()>>>,
}

impl Device {
    /// That of this thread, which is one that trains.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of_this_thread() -> Result<Self, Cannot> {
        let driver = Driver::find()?;
        let context = driver.context()?;
        let relaxed = driver.relaxed()?;
        let (stream, past) = (driver.stream()?, driver.event(false)?);
        driver.record(past, stream)?;
        drop(relaxed);
        Ok(Self {
            driver,
            context,
            past,
            asked: Mutex::default(),
        })
    }

    /// Whether the driver answers within this time whether the GPU is past an event, with whatever answer.
    pub fn answers(&self, within: Duration) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = asked.take()
            && before.try_recv() == Err(TryRecvError::Empty)
        {
            *asked = Some(before);
            return false;
        }
        let (answered, answer) = channel();
        let (driver, context, past) = (self.driver, self.context, self.past);
        let thread = std::thread::Builder::new().name("gpufleet-answers".to_owned());
        let thread = thread.spawn(move || {
            driver::block_signals();
            let asked = driver.relaxed().and_then(|_relaxed| {
                driver.enter(context)?;
                driver.is_past(past)
            });
            // A broken context answers too: with its error.
            drop((asked, answered));
        });
        if thread.is_err() {
            return false;
        }
        match answer.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => {
                *asked = Some(answer);
                false
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    /// From now on what this thread asks of the driver leaves captures of other threads alone.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn leave_captures_alone(&self) -> Result<(), Cannot> {
        // The thread is the caller's own and stays so.
        self.driver.relaxed().map(std::mem::forget)
    }
}
