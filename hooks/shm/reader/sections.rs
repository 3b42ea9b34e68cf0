//! The sections that are written now and then.

use crate::cell::{get, get_bytes, get_double, get_signed, read};
use crate::layout::{self, Region, Word};
use crate::records::{
    Axis, End, Exception, Gaps, Identity, Memory, Mesh, Now, Occasion, Pairs, Plan, Probe, Profile,
    Reading,
};
use crate::wire::MAX_PROFILE_STEPS;
use crate::words::{EndKind, FlopsSource, MeshSource, Phase, ProbeVerdict, ProfileState, Untold};

use super::check::{Check, Reason};
use super::ring::{self, MOST_RECORDS, Record};
use super::{Learning, PhaseTotal, ReadError};
use crate::MAX_NAME_BYTES;

/// Most ranks of a job: a hundred times the largest of today.
const MOST_RANKS: i64 = 10_000_000;

/// Most SMs of a GPU: rows of what the probe's kernels write.
const MOST_SMS: u64 = 1_024;

/// Most pairs of a fingerprint: as many as fit, one letter and one digit each.
const MOST_PAIRS: usize = 512;

/// Who the rank says it is.
pub(super) fn identity(region: &Region, check: &mut Check) -> Option<Identity> {
    let section = &region.identity;
    // The texts are only cleaned after the copy is known to be whole.
    let copied = read(&section.sequence, || {
        let numbers = [
            &section.attempt,
            &section.rank,
            &section.world,
            &section.local_rank,
            &section.local_world,
            &section.cuda_device,
            &section.host_pid,
        ]
        .map(get_signed);
        let axes = [
            &section.dp,
            &section.pp,
            &section.tp,
            &section.cp,
            &section.ep,
        ]
        .map(axis);
        let texts = [
            &section.cluster,
            &section.job_namespace,
            &section.job_name,
            &section.job_uid,
            &section.framework,
            &section.gpu_uuid,
            &section.launcher,
        ]
        .map(|text| get_bytes(text));
        (numbers, get(&section.mesh_source), axes, texts)
    });
    let (numbers, source, axes, texts) = check.whole("identity", copied)?;
    let [
        attempt,
        rank,
        world,
        local_rank,
        local_world,
        cuda_device,
        host_pid,
    ] = numbers;
    let fits = |rank: i64, world: i64| world == -1 || rank < world;
    let is_good = numbers.iter().all(|it| (-1..=MOST_RANKS).contains(it))
        && fits(rank, world)
        && fits(local_rank, local_world)
        && axes.iter().all(is_axis);
    check.only_if(is_good, "identity", Reason::Number, ())?;
    let source = MeshSource::from_number(source);
    check.only_if(source.is_some(), "identity", Reason::Word, ());
    let [
        cluster,
        job_namespace,
        job_name,
        job_uid,
        framework,
        gpu_uuid,
        launcher,
    ] = texts.map(|bytes| check.text("identity", &bytes, |_| false));
    let [dp, pp, tp, cp, ep] = axes;
    Some(Identity {
        cluster,
        job_namespace,
        job_name,
        job_uid,
        attempt,
        rank,
        world,
        local_rank,
        local_world,
        mesh: Mesh {
            source: source.unwrap_or(MeshSource::Unknown),
            dp,
            pp,
            tp,
            cp,
            ep,
        },
        framework,
        gpu_uuid,
        cuda_device,
        host_pid,
        launcher,
    })
}

fn axis(section: &layout::Axis) -> Axis {
    Axis {
        coordinate: get_signed(&section.coordinate),
        size: get(&section.size),
    }
}

fn is_axis(axis: &Axis) -> bool {
    let is_inside = axis.size == 0 || axis.coordinate < axis.size as i64;
    axis.coordinate >= -1 && axis.size <= MOST_RANKS as u64 && is_inside
}

/// What the run intends.
pub(super) fn plan(region: &Region, check: &mut Check) -> Option<Plan> {
    let section = &region.plan;
    let copied = read(&section.sequence, || {
        (
            Plan {
                total_steps: get(&section.total_steps),
                total_tokens: get(&section.total_tokens),
                deadline_at: get_signed(&section.deadline_at),
                flops_per_step: get_double(&section.flops_per_step),
                flops_per_token: get_double(&section.flops_per_token),
                hardware_flops_per_step: get_double(&section.hardware_flops_per_step),
                flops_source: FlopsSource::Unknown,
                parameters: get(&section.parameters),
                dtype: String::new(),
            },
            get(&section.flops_source),
            get_bytes(&section.dtype),
        )
    });
    let (mut plan, source, dtype) = check.whole("plan", copied)?;
    check.deadline("plan", plan.deadline_at)?;
    check.flops("plan", plan.flops_per_step)?;
    check.flops("plan", plan.flops_per_token)?;
    check.flops("plan", plan.hardware_flops_per_step)?;
    let source = FlopsSource::from_number(source);
    check.only_if(source.is_some(), "plan", Reason::Word, ());
    plan.flops_source = source.unwrap_or(FlopsSource::Unknown);
    plan.dtype = check.text("plan", &dtype, |_| false);
    Some(plan)
}

/// How the learning goes.
pub(super) fn learning(region: &Region, check: &mut Check) -> Learning {
    let section = &region.learning;
    Learning {
        loss: reading(&section.loss, check),
        gradient_norm: reading(&section.gradient_norm, check),
        learning_rate: reading(&section.learning_rate, check),
        evaluation_loss: reading(&section.evaluation_loss, check),
        scaler_skips: get(&section.scaler_skips),
        non_finite_losses: get(&section.non_finite_losses),
        non_finite_gradients: get(&section.non_finite_gradients),
    }
}

fn reading(section: &layout::Reading, check: &mut Check) -> Option<Reading> {
    let copied = read(&section.sequence, || Reading {
        value: get_double(&section.value),
        step: get(&section.step),
        at: get_signed(&section.at),
    });
    let reading = check.whole("learning", copied)?;
    check.time("learning", reading.at)?;
    Some(reading)
}

/// The values of a kind that were read since record `read_upto`, which becomes the last one looked at.
pub(super) fn readings(
    of: &layout::Readings,
    read_upto: &mut u64,
    check: &mut Check,
) -> Result<Vec<Reading>, ReadError> {
    let found = ring::since(&of.recent, &of.started, *read_upto)?;
    *read_upto = found.upto;
    let mut good = |it: Reading| {
        check.time("learning", it.at)?;
        check.only_if(it.step <= MOST_RECORDS, "learning", Reason::Number, it)
    };
    let records = found.records.into_iter();
    Ok(records.filter_map(|(_, it)| good(it)).collect())
}

impl Record for layout::ReadingRecord {
    type Copied = Reading;

    fn state(&self) -> &Word {
        &self.state
    }

    fn copied(&self) -> Reading {
        Reading {
            value: get_double(&self.value),
            step: get(&self.step),
            at: get_signed(&self.at),
        }
    }
}

/// Something that happens now and then.
pub(super) fn occasion(section: &layout::Occasion, check: &mut Check) -> Option<Occasion> {
    let copied = read(&section.sequence, || Occasion {
        count: get(&section.count),
        total_ns: get(&section.total_ns),
        last_ns: get(&section.last_ns),
        last_step: get(&section.last_step),
        last_at: get_signed(&section.last_at),
        failures: 0,
    });
    // A failure is counted outside the section: it can be all there ever was.
    let failures = get(&section.failures);
    let Some(mut occasion) = check.whole("occasion", copied) else {
        return (failures != 0).then(|| Occasion {
            failures,
            ..Occasion::default()
        });
    };
    check.time("occasion", occasion.last_at)?;
    check.duration("occasion", occasion.last_ns)?;
    occasion.failures = failures;
    Some(occasion)
}

/// The phase the process is in.
pub(super) fn now(region: &Region, check: &mut Check) -> Option<Now> {
    let word = get(&region.phases.now);
    if word == 0 {
        return None;
    }
    let now = Now::unpacked(word);
    check.only_if(now.is_some(), "phases", Reason::Word, ())?;
    check.time("phases", now?.since)?;
    now
}

/// Phases that happened at least once.
pub(super) fn phases(region: &Region) -> Vec<PhaseTotal> {
    let total = |phase: &Phase| {
        let total = region.phases.totals.get(*phase as usize)?;
        let (total_ns, count) = (get(&total.total_ns), get(&total.count));
        (count != 0).then_some(PhaseTotal {
            phase: *phase,
            total_ns,
            count,
        })
    };
    Phase::ALL.iter().filter_map(total).collect()
}

/// The allocator.
pub(super) fn memory(region: &Region, check: &mut Check) -> Option<Memory> {
    let section = &region.memory;
    let copied = read(&section.sequence, || Memory {
        at: get_signed(&section.at),
        allocated_bytes: get(&section.allocated_bytes),
        reserved_bytes: get(&section.reserved_bytes),
        peak_allocated_bytes: get(&section.peak_allocated_bytes),
        peak_reserved_bytes: get(&section.peak_reserved_bytes),
        limit_bytes: get(&section.limit_bytes),
        retries: get(&section.retries),
        out_of_memory: get(&section.out_of_memory),
    });
    let memory = check.whole("memory", copied)?;
    check.time("memory", memory.at)?;
    let is_good = memory.allocated_bytes <= memory.peak_allocated_bytes.max(memory.reserved_bytes);
    check.only_if(is_good, "memory", Reason::Parts, memory)
}

/// The last profile that was asked for.
pub(super) fn profile(region: &Region, check: &mut Check) -> Option<Profile> {
    let section = &region.profile;
    let copied = read(&section.sequence, || {
        let numbers = [
            &section.number,
            &section.state,
            &section.step,
            &section.steps,
            &section.bytes,
            &section.untold,
        ]
        .map(get);
        let gaps = Gaps::of(section.gaps().map(get));
        let (at, text) = (get_signed(&section.at), get_bytes(&section.text));
        (at, numbers, gaps, text)
    });
    let (at, numbers, gaps, text) = check.whole("profile", copied)?;
    let [number, state, step, steps, bytes, untold] = numbers;
    let state = ProfileState::from_number(state);
    check.only_if(state.is_some(), "profile", Reason::Word, ())?;
    check.time("profile", at)?;
    let is_good = steps <= MAX_PROFILE_STEPS && step <= MOST_RECORDS;
    check.only_if(is_good, "profile", Reason::Number, ())?;
    // A client that does not measure them leaves 0. What cannot be is not told; the file is there all the same.
    let gaps = Some(gaps)
        .filter(|it| it.window_ns > 0)
        .and_then(|it| check.only_if(it.can_be(), "profile", Reason::Parts, it))
        .filter(|it| check.duration("profile", it.window_ns).is_some());
    Some(Profile {
        number,
        state: state?,
        at,
        step,
        steps,
        bytes,
        gaps,
        untold: Untold::from_number(untold),
        text: check.text("profile", &text, |_| false),
    })
}

/// What a probe inside the process found.
pub(super) fn probe(region: &Region, check: &mut Check) -> Option<Probe> {
    let section = &region.probe;
    let copied = read(&section.sequence, || {
        let numbers = [
            &section.verdict,
            &section.step,
            &section.sm,
            &section.sms,
            &section.covered,
            &section.checked_bytes,
            &section.gpu_ns,
            &section.runs,
            &section.right,
            &section.wrong,
        ]
        .map(get);
        let at = get_signed(&section.at);
        (at, numbers, get_bytes(&region.probe_reason))
    });
    let (at, numbers, reason) = check.whole("probe", copied)?;
    let [
        verdict,
        step,
        sm,
        sms,
        covered,
        checked_bytes,
        gpu_ns,
        runs,
        right,
        wrong,
    ] = numbers;
    let verdict = ProbeVerdict::from_number(verdict);
    check.only_if(verdict.is_some(), "probe", Reason::Word, ())?;
    check.time("probe", at)?;
    check.duration("probe", gpu_ns)?;
    let is_good = sm <= MOST_SMS && sms <= MOST_SMS && covered <= sms;
    check.only_if(is_good, "probe", Reason::Number, ())?;
    Some(Probe {
        at,
        verdict: verdict?,
        step,
        sm: sm.checked_sub(1).and_then(|it| u32::try_from(it).ok()),
        sms,
        covered,
        checked_bytes,
        gpu_ns,
        runs,
        right,
        wrong,
        reason: check.text("probe", &reason, |_| false),
    })
}

/// The last exception that nobody caught.
pub(super) fn exception(region: &Region, check: &mut Check) -> Option<Exception> {
    let section = &region.exception;
    let copied = read(&section.sequence, || {
        (
            Exception {
                at: get_signed(&section.at),
                rank: get_signed(&section.rank),
                step: get(&section.step),
                ..Exception::default()
            },
            get_bytes(&section.kind),
            get_bytes(&section.message),
            get_bytes(&section.traceback),
        )
    });
    let (mut exception, kind, message, traceback) = check.whole("exception", copied)?;
    check.time("exception", exception.at)?;
    let is_good = (-1..=MOST_RANKS).contains(&exception.rank);
    check.only_if(is_good, "exception", Reason::Number, ())?;
    exception.kind = check.text("exception", &kind, |_| false);
    exception.message = check.text("exception", &message, |_| false);
    exception.traceback = check.text("exception", &traceback, |it| matches!(it, '\n' | '\t'));
    Some(exception)
}

/// What the run is made of.
pub(super) fn fingerprint(region: &Region, check: &mut Check) -> Option<Pairs> {
    let section = &region.fingerprint;
    let copied = read(&section.sequence, || {
        let sequence = get(&section.sequence);
        (sequence, get(&section.left_out), get_bytes(&section.text))
    });
    let copied = check.whole("fingerprint", copied)?;
    Some(pairs("fingerprint", copied, check))
}

/// What people call the run.
pub(super) fn tags(region: &Region, check: &mut Check) -> Option<Pairs> {
    let section = &region.tags;
    let copied = read(&section.sequence, || {
        let sequence = get(&section.sequence);
        (sequence, get(&section.left_out), get_bytes(&section.text))
    });
    let copied = check.whole("tags", copied)?;
    Some(pairs("tags", copied, check))
}

fn pairs(
    section: &'static str,
    (sequence, left_out, bytes): (u64, u64, Vec<u8>),
    check: &mut Check,
) -> Pairs {
    let text = check.text(section, &bytes, |it| it == '\n');
    let lines: Vec<_> = text.lines().collect();
    let pairs: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split_once('='))
        .filter(|(key, value)| !key.is_empty() && key.len().max(value.len()) <= MAX_NAME_BYTES)
        .take(MOST_PAIRS)
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    Pairs {
        generation: sequence / 2,
        left_out: left_out.saturating_add((lines.len() - pairs.len()) as u64),
        pairs,
    }
}

/// How the process said that it ended.
pub(super) fn end(region: &Region, check: &mut Check) -> Option<End> {
    let section = &region.end;
    let copied = read(&section.sequence, || {
        let kind = get(&section.kind);
        let at = get_signed(&section.at);
        (
            kind,
            at,
            get_signed(&section.exit_status),
            get(&section.step),
        )
    });
    let (kind, at, exit_status, step) = check.whole("end", copied)?;
    let kind = EndKind::from_number(kind);
    check.only_if(kind.is_some(), "end", Reason::Word, ());
    check.time("end", at)?;
    Some(End {
        kind: kind?,
        at,
        exit_status,
        step,
    })
}
