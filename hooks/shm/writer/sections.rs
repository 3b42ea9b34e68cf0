//! What is written now and then: identity, plan, last values, checkpoints, memory, how it ended.

use std::sync::atomic::{Ordering, fence};

use crate::cell::{self, Writing, add, set, set_text};
use crate::layout::{self, READINGS, Word};
use crate::records::{Axis, End, Exception, Identity, Memory, Plan, Probe, Profile, Reading};
use crate::wire::TAKES_PROFILE;
use crate::words::Untold;

use super::{Writer, text};

impl Writer {
    /// Takes a section, or counts that another thread has it.
    fn section(self, sequence: &'static Word) -> Option<Writing<'static>> {
        let writing = cell::write(sequence);
        if writing.is_none() {
            add(&self.region().header.contended, 1);
        }
        writing
    }

    /// Who this rank is. Texts are cut at 64 bytes.
    pub fn identity(self, identity: &Identity) {
        let section = &self.region().identity;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        let mesh = &identity.mesh;
        for (word, number) in [
            (&section.attempt, identity.attempt),
            (&section.rank, identity.rank),
            (&section.world, identity.world),
            (&section.local_rank, identity.local_rank),
            (&section.local_world, identity.local_world),
            (&section.cuda_device, identity.cuda_device),
            (&section.host_pid, identity.host_pid),
        ] {
            set(word, number as u64);
        }
        set(&section.mesh_source, mesh.source.number());
        set_axis(&section.dp, mesh.dp);
        set_axis(&section.pp, mesh.pp);
        set_axis(&section.tp, mesh.tp);
        set_axis(&section.cp, mesh.cp);
        set_axis(&section.ep, mesh.ep);
        set_text(&section.cluster, &identity.cluster);
        set_text(&section.job_namespace, &identity.job_namespace);
        set_text(&section.job_name, &identity.job_name);
        set_text(&section.job_uid, &identity.job_uid);
        set_text(&section.framework, &identity.framework);
        set_text(&section.gpu_uuid, &identity.gpu_uuid);
        set_text(&section.launcher, &identity.launcher);
    }

    /// What the run intends.
    pub fn plan(self, plan: &Plan) {
        let section = &self.region().plan;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.total_steps, plan.total_steps);
        set(&section.total_tokens, plan.total_tokens);
        set(&section.deadline_at, plan.deadline_at as u64);
        set(&section.flops_per_step, plan.flops_per_step.to_bits());
        set(&section.flops_per_token, plan.flops_per_token.to_bits());
        set(
            &section.hardware_flops_per_step,
            plan.hardware_flops_per_step.to_bits(),
        );
        set(&section.flops_source, plan.flops_source.number());
        set(&section.parameters, plan.parameters);
        set_text(&section.dtype, &plan.dtype);
    }

    /// The loss of a step; one that is not finite is counted.
    pub fn loss(self, reading: Reading) {
        let region = self.region();
        let learning = &region.learning;
        self.reading(&learning.loss, reading);
        record(&region.losses, reading);
        add(
            &learning.non_finite_losses,
            u64::from(!reading.value.is_finite()),
        );
    }

    /// The gradient norm of a step; one that is not finite is counted.
    pub fn gradient_norm(self, reading: Reading) {
        let region = self.region();
        let learning = &region.learning;
        self.reading(&learning.gradient_norm, reading);
        record(&region.gradient_norms, reading);
        add(
            &learning.non_finite_gradients,
            u64::from(!reading.value.is_finite()),
        );
    }

    /// The learning rate of a step.
    pub fn learning_rate(self, reading: Reading) {
        self.reading(&self.region().learning.learning_rate, reading);
    }

    /// The loss of an evaluation.
    pub fn evaluation_loss(self, reading: Reading) {
        self.reading(&self.region().learning.evaluation_loss, reading);
    }

    fn reading(self, section: &'static layout::Reading, reading: Reading) {
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.value, reading.value.to_bits());
        set(&section.step, reading.step);
        set(&section.at, reading.at as u64);
    }

    /// The gradient scaler skipped `count` steps.
    pub fn scaler_skipped(self, count: u64) {
        add(&self.region().learning.scaler_skips, count);
    }

    /// A checkpoint of `step` was saved; it ended `at` (Unix nanoseconds).
    pub fn checkpoint_saved(self, step: u64, duration_ns: u64, at: i64) {
        self.occasion(&self.region().checkpoint_saved, step, duration_ns, at);
    }

    /// Saving a checkpoint failed.
    pub fn checkpoint_failed(self) {
        add(&self.region().checkpoint_saved.failures, 1);
    }

    /// The checkpoint of `step` was restored; it ended `at`.
    pub fn checkpoint_restored(self, step: u64, duration_ns: u64, at: i64) {
        self.occasion(&self.region().checkpoint_restored, step, duration_ns, at);
    }

    /// An evaluation after `step` ended `at`.
    pub fn evaluated(self, step: u64, duration_ns: u64, at: i64) {
        self.occasion(&self.region().evaluation, step, duration_ns, at);
    }

    fn occasion(self, section: &'static layout::Occasion, step: u64, duration_ns: u64, at: i64) {
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        add(&section.count, 1);
        add(&section.total_ns, duration_ns);
        set(&section.last_ns, duration_ns);
        set(&section.last_step, step);
        set(&section.last_at, at as u64);
    }

    /// The framework's allocator.
    pub fn memory(self, memory: &Memory) {
        let section = &self.region().memory;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.at, memory.at as u64);
        set(&section.allocated_bytes, memory.allocated_bytes);
        set(&section.reserved_bytes, memory.reserved_bytes);
        set(&section.peak_allocated_bytes, memory.peak_allocated_bytes);
        set(&section.peak_reserved_bytes, memory.peak_reserved_bytes);
        set(&section.limit_bytes, memory.limit_bytes);
        set(&section.retries, memory.retries);
        set(&section.out_of_memory, memory.out_of_memory);
    }

    /// What a probe inside the process found. The reason is cut at 256 bytes.
    pub fn probe(self, probe: &Probe) {
        let section = &self.region().probe;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.at, probe.at as u64);
        set(&section.verdict, probe.verdict.number());
        set(&section.step, probe.step);
        set(&section.sm, probe.sm.map_or(0, |it| u64::from(it) + 1));
        set(&section.sms, probe.sms);
        set(&section.covered, probe.covered);
        set(&section.checked_bytes, probe.checked_bytes);
        set(&section.gpu_ns, probe.gpu_ns);
        set(&section.runs, probe.runs);
        set(&section.right, probe.right);
        set(&section.wrong, probe.wrong);
        set_text(&self.region().probe_reason, &probe.reason);
    }

    /// The process captures a profile when an agent asks for one, or does so no more.
    pub fn takes_profile(self, takes: bool) {
        set(
            &self.region().header.takes,
            TAKES_PROFILE * u64::from(takes),
        );
    }

    /// What became of a profile that was asked for. The text is cut at 512 bytes.
    pub fn profile(self, profile: &Profile) {
        let section = &self.region().profile;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.number, profile.number);
        set(&section.state, profile.state.number());
        set(&section.at, profile.at as u64);
        set(&section.step, profile.step);
        set(&section.steps, profile.steps);
        set(&section.bytes, profile.bytes);
        let gaps = profile.gaps.map_or([0; 8], |it| it.numbers());
        for (word, number) in section.gaps().into_iter().zip(gaps) {
            set(word, number);
        }
        set(&section.untold, profile.untold.map_or(0, Untold::number));
        set_text(&section.text, &profile.text);
    }

    /// An exception that nobody caught.
    pub fn exception(self, exception: &Exception) {
        let section = &self.region().exception;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.at, exception.at as u64);
        set(&section.rank, exception.rank as u64);
        set(&section.step, exception.step);
        set_text(&section.kind, &exception.kind);
        set_text(&section.message, &exception.message);
        let end = text::end(&exception.traceback, size_of_val(&section.traceback));
        set_text(&section.traceback, end);
    }

    /// The process ends. What is written last stands.
    pub fn end(self, end: End) {
        let section = &self.region().end;
        let Some(_writing) = self.section(&section.sequence) else {
            return;
        };
        set(&section.kind, end.kind.number());
        set(&section.at, end.at as u64);
        set(&section.exit_status, end.exit_status as u64);
        set(&section.step, end.step);
    }

    /// What the run is made of. Replaces what was said before; keys and values are cut at 64 bytes,
    /// pairs that do not fit into 8 KiB are left out and counted.
    pub fn fingerprint(self, pairs: &[(&str, &str)]) {
        let section = &self.region().fingerprint;
        let (text, left_out) = text::pairs(pairs, size_of_val(&section.text));
        if let Some(_writing) = self.section(&section.sequence) {
            set(&section.left_out, left_out);
            set_text(&section.text, &text);
        }
    }

    /// What people call the run, likewise, in 1 KiB.
    pub fn tags(self, pairs: &[(&str, &str)]) {
        let section = &self.region().tags;
        let (text, left_out) = text::pairs(pairs, size_of_val(&section.text));
        if let Some(_writing) = self.section(&section.sequence) {
            set(&section.left_out, left_out);
            set_text(&section.text, &text);
        }
    }
}

/// Writes one record of a ring: odd, the words, even.
fn record(ring: &layout::Readings, reading: Reading) {
    let number = ring.started.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let Some(record) = ring.recent.get(number as usize % READINGS) else {
        return;
    };
    let done = number.wrapping_mul(2);
    set(&record.state, done.wrapping_add(1));
    fence(Ordering::Release);
    set(&record.value, reading.value.to_bits());
    set(&record.step, reading.step);
    set(&record.at, reading.at as u64);
    record.state.store(done, Ordering::Release);
}

fn set_axis(section: &layout::Axis, axis: Axis) {
    set(&section.coordinate, axis.coordinate as u64);
    set(&section.size, axis.size);
}
