//! Runs that are in trouble when the server starts anew.

use super::*;
use crate::detect::{DetectConfig, Detectors};

impl Training {
    /// The server starts anew; of runs it has the last steps, unless these are too old.
    pub(super) fn restarts(&mut self, has_steps: bool, config: &DetectConfig) {
        let (open, now) = (self.world.open(), self.world.hand.now());
        self.watch = Watch::default();
        self.watch.resume(&open);
        self.world.detectors = Detectors::new(config);
        self.world.detectors.resume(&open, now);
        if !has_steps {
            let fleet = self.world.app.config.fleet.clone();
            self.world.app.fleet = Arc::new(Fleet::new(fleet));
        }
    }
}

#[tokio::test]
async fn a_run_that_was_slower_before_a_restart_is_until_its_steps_are_as_fast_again() {
    let mut training = Training::new().await;
    let config = training.world.app.config.detect.clone();
    let longer = |_| Does {
        data_wait_ms: 220,
        ..WELL
    };
    training.longer_ms = 200;
    training.ticks(6, longer, |_| {}).await;
    let before = training.one();
    assert_eq!(before.family, Family::Slower);
    // All steps that it still has are as slow.
    training.restarts(false, &config);
    for _ in 0..40 {
        training.ticks(1, longer, |_| {}).await;
        assert_eq!(training.one().id, before.id);
    }
    training.longer_ms = 0;
    training.ticks(20, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_that_stood_before_a_restart_stands_since_then() {
    let mut training = Training::new().await;
    let config = DetectConfig {
        hang_after_s: 600.0,
        ..training.world.app.config.detect.clone()
    };
    training.world.detectors.set(&config);
    let stands = |it: u32| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (it != 9).then_some(700.0),
        ..WELL
    };
    training.ticks(62, stands, |_| {}).await;
    let before = training.one();
    assert_eq!(before.family, Family::Hang);
    training.restarts(true, &config);
    for _ in 0..20 {
        training.ticks(1, stands, |_| {}).await;
        let told = training.one();
        assert_eq!(told.id, before.id);
        assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
    }
    training.ticks(4, |_| WELL, |_| {}).await;
    assert_eq!(training.world.open(), []);
}

#[tokio::test]
async fn a_run_whose_last_steps_are_too_old_to_be_read_stands_by_the_number_of_its_last() {
    let stands = |it: u32| Does {
        busy_ms: None,
        phase: 5.0,
        collective_s: (it != 9).then_some(700.0),
        ..WELL
    };
    for (ticks, was_told) in [(14, true), (5, false)] {
        let mut training = Training::new().await;
        let config = training.world.app.config.detect.clone();
        training.says = Some(Box::new(|_, live| {
            set(live, &training::LAST_STEP, 159.0);
            set(live, &training::STEPS, 60.0);
        }));
        training.ticks(ticks, stands, |_| {}).await;
        let before = training.world.open();
        assert_eq!(before.len(), usize::from(was_told), "{before:#?}");
        training.restarts(false, &config);
        training.ticks(14, stands, |_| {}).await;
        let told = training.one();
        assert_eq!((told.family, told.place.rank), (Family::Hang, Some(9)));
        assert!(before.iter().all(|it| it.id == told.id));
        assert_eq!(told.unheard_since, None);
        assert_eq!(told.losing.milli_gpus, 16_000, "all of it stands");
        training.says = None;
        training.ticks(4, |_| WELL, |_| {}).await;
        assert_eq!(training.world.open(), []);
    }
}
