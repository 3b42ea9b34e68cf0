//! A listener that takes regions as the agent does: to look at what a script says, without an agent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::reader::{Learning, Snapshot};
use gpufleet_hooks_shm::records::{Axis, Mesh, Occasion, Pairs, Reading, Step};
use gpufleet_hooks_shm::server::{self, Client, ClientId, Event, Limits};
use gpufleet_hooks_shm::wire::Ask;
use gpufleet_hooks_shm::words::Untold;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Listens where an agent would.
#[pyclass(frozen, module = "gpufleet._native")]
pub(crate) struct Listener {
    inner: Mutex<Inner>,
}

struct Inner {
    listener: server::Listener,
    clients: BTreeMap<u64, (Client, bool)>,
}

#[pymethods]
impl Listener {
    /// Listens at `path`.
    ///
    /// Raises OSError where the socket cannot be made.
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let listener =
            server::Listener::bind(&path, Limits::default(), Box::new(server::cgroup))
                .map_err(|error| PyOSError::new_err(format!("{}: {error}", path.display())))?;
        Ok(Self {
            inner: Mutex::new(Inner {
                listener,
                clients: BTreeMap::new(),
            }),
        })
    }

    /// Waits up to `timeout` seconds for something to happen. How many clients there have been.
    fn turn(&self, py: Python<'_>, timeout: f64) -> PyResult<usize> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let events = inner.listener.turn(timeout)?;
            for event in events {
                match event {
                    Event::Joined(client) => {
                        inner.clients.insert(client.id.0, (*client, true));
                    }
                    Event::Left { id, .. } => {
                        if let Some((_, is_there)) = inner.clients.get_mut(&id.0) {
                            *is_there = false;
                        }
                    }
                    Event::Refused { .. } => {}
                }
            }
            Ok(inner.clients.len())
        })
    }

    /// Asks every client that takes it for a profile of so many steps; 0 withdraws it. How many were asked.
    fn ask(&self, number: u64, steps: u64) -> usize {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = 0;
        for (id, (client, is_there)) in &inner.clients {
            let header = client.reader.header(unix_ns());
            if *is_there && header.is_ok_and(|it| it.takes_profile) {
                inner.listener.ask(ClientId(*id), Ask { number, steps });
                asked += 1;
            }
        }
        asked
    }

    /// What each client says now, as dicts, also those that left.
    fn snapshots<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for (client, is_there) in inner.clients.values_mut() {
            let snapshot = client
                .reader
                .snapshot(unix_ns())
                .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
            let dict = shown(py, &snapshot)?;
            dict.set_item("pid", client.peer.pid)?;
            dict.set_item("is_there", *is_there)?;
            all.push(dict);
        }
        Ok(all)
    }
}

/// A snapshot as a dict of plain values.
pub(crate) fn shown<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let totals = &snapshot.totals;
    dict.set_item("steps_total", totals.steps)?;
    dict.set_item("tokens_total", totals.tokens)?;
    dict.set_item("samples_total", totals.samples)?;
    dict.set_item("wall_ns", totals.wall_ns)?;
    dict.set_item("busy_ns", totals.busy_ns)?;
    dict.set_item("data_wait_ns", totals.data_wait_ns)?;
    dict.set_item("checkpoint_ns", totals.checkpoint_ns)?;
    dict.set_item("evaluation_ns", totals.evaluation_ns)?;
    dict.set_item("model_flops", totals.model_flops)?;
    dict.set_item("last_step", totals.last_step)?;
    dict.set_item("steps_missed", snapshot.steps_missed)?;
    let steps: PyResult<Vec<_>> = snapshot.steps.iter().map(|it| step(py, it)).collect();
    dict.set_item("steps", PyList::new(py, steps?)?)?;
    let phases = PyDict::new(py);
    for phase in &snapshot.phases {
        phases.set_item(phase.phase.text(), (phase.total_ns, phase.count))?;
    }
    dict.set_item("phases", phases)?;
    let now = snapshot.now.map(|now| (now.phase.text(), now.since));
    dict.set_item("now", now)?;
    dict.set_item("learning", learning(py, &snapshot.learning)?)?;
    dict.set_item("checkpoint_saved", occasion(py, snapshot.checkpoint_saved)?)?;
    dict.set_item(
        "checkpoint_restored",
        occasion(py, snapshot.checkpoint_restored)?,
    )?;
    dict.set_item("evaluation", occasion(py, snapshot.evaluation)?)?;
    dict.set_item("identity", identity(py, snapshot)?)?;
    dict.set_item("plan", plan(py, snapshot)?)?;
    dict.set_item("memory", memory(py, snapshot)?)?;
    let probe = snapshot.probe.as_ref().map(|it| {
        let (verdict, reason) = (it.verdict.text(), it.reason.as_str());
        (verdict, reason, it.sm, it.step, it.runs)
    });
    dict.set_item("probe", probe)?;
    let profile = snapshot.profile.as_ref().map(|it| {
        let (state, text) = (it.state.text(), it.text.as_str());
        (it.number, state, it.step, it.steps, it.bytes, text)
    });
    dict.set_item("profile", profile)?;
    let gaps = snapshot.profile.as_ref().and_then(|it| it.gaps);
    let gaps = gaps.map(|it| {
        let times = (it.data_ns, it.synchronisation_ns, it.host_ns, it.launch_ns);
        let counts = (it.synchronisations, it.kernels, it.kernel_ns);
        (it.window_ns, times, counts)
    });
    dict.set_item("profile_gaps", gaps)?;
    let untold = snapshot.profile.as_ref().and_then(|it| it.untold);
    dict.set_item("profile_untold", untold.map(Untold::text))?;
    dict.set_item("fingerprint", pairs(py, snapshot.fingerprint.as_ref())?)?;
    dict.set_item("tags", pairs(py, snapshot.tags.as_ref())?)?;
    let exception = snapshot
        .exception
        .as_ref()
        .map(|it| (&it.kind, &it.message, &it.traceback, it.rank, it.step));
    dict.set_item("exception", exception)?;
    let end = snapshot
        .end
        .map(|end| (end.kind.text(), end.exit_status, end.step));
    dict.set_item("end", end)?;
    let together = &snapshot.together;
    let in_flight = together.in_flight.iter().map(|it| {
        let mut all = together.communicators.iter();
        let of = all.find(|of| of.index == it.communicator);
        let name = of.map_or("", |of| of.communicator.name.as_str());
        (name, it.function.text(), it.number, it.started_at)
    });
    dict.set_item("in_flight", in_flight.collect::<Vec<_>>())?;
    let refused: Vec<_> = snapshot
        .refused
        .iter()
        .map(|((section, reason), count)| (*section, reason.text(), *count))
        .collect();
    dict.set_item("refused", refused)?;
    dict.set_item("heartbeats", snapshot.header.heartbeats)?;
    dict.set_item("contended", snapshot.header.contended)?;
    Ok(dict)
}

fn step<'py>(py: Python<'py>, step: &Step) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("step", step.step)?;
    dict.set_item("ended_at", step.ended_at)?;
    dict.set_item("wall_ns", step.wall_ns)?;
    dict.set_item("busy_ns", step.busy_ns)?;
    dict.set_item("data_wait_ns", step.data_wait_ns)?;
    dict.set_item("checkpoint_ns", step.checkpoint_ns)?;
    dict.set_item("evaluation_ns", step.evaluation_ns)?;
    dict.set_item("tokens", step.tokens)?;
    dict.set_item("samples", step.samples)?;
    dict.set_item("model_flops", step.model_flops)?;
    Ok(dict)
}

fn learning<'py>(py: Python<'py>, learning: &Learning) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let pair = |it: Option<Reading>| it.map(|it| (it.value, it.step));
    dict.set_item("loss", pair(learning.loss))?;
    dict.set_item("gradient_norm", pair(learning.gradient_norm))?;
    dict.set_item("learning_rate", pair(learning.learning_rate))?;
    dict.set_item("evaluation_loss", pair(learning.evaluation_loss))?;
    dict.set_item("scaler_skips", learning.scaler_skips)?;
    dict.set_item("non_finite_losses", learning.non_finite_losses)?;
    dict.set_item("non_finite_gradients", learning.non_finite_gradients)?;
    Ok(dict)
}

fn occasion(py: Python<'_>, occasion: Option<Occasion>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(occasion) = occasion else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    dict.set_item("count", occasion.count)?;
    dict.set_item("total_ns", occasion.total_ns)?;
    dict.set_item("last_ns", occasion.last_ns)?;
    dict.set_item("last_step", occasion.last_step)?;
    dict.set_item("last_at", occasion.last_at)?;
    dict.set_item("failures", occasion.failures)?;
    Ok(Some(dict))
}

fn identity<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(identity) = &snapshot.identity else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    dict.set_item("cluster", &identity.cluster)?;
    dict.set_item("job_namespace", &identity.job_namespace)?;
    dict.set_item("job_name", &identity.job_name)?;
    dict.set_item("job_uid", &identity.job_uid)?;
    dict.set_item("attempt", identity.attempt)?;
    dict.set_item("rank", identity.rank)?;
    dict.set_item("world", identity.world)?;
    dict.set_item("local_rank", identity.local_rank)?;
    dict.set_item("local_world", identity.local_world)?;
    dict.set_item("framework", &identity.framework)?;
    dict.set_item("gpu_uuid", &identity.gpu_uuid)?;
    dict.set_item("cuda_device", identity.cuda_device)?;
    dict.set_item("launcher", &identity.launcher)?;
    mesh(&dict, &identity.mesh)?;
    Ok(Some(dict))
}

fn mesh(dict: &Bound<'_, PyDict>, mesh: &Mesh) -> PyResult<()> {
    dict.set_item("mesh_source", mesh.source.text())?;
    let axes = [
        ("dp", mesh.dp),
        ("pp", mesh.pp),
        ("tp", mesh.tp),
        ("cp", mesh.cp),
        ("ep", mesh.ep),
    ];
    for (name, Axis { coordinate, size }) in axes {
        dict.set_item(name, (coordinate, size))?;
    }
    Ok(())
}

fn plan<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(plan) = &snapshot.plan else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    dict.set_item("total_steps", plan.total_steps)?;
    dict.set_item("total_tokens", plan.total_tokens)?;
    dict.set_item("deadline_at", plan.deadline_at)?;
    dict.set_item("flops_per_step", plan.flops_per_step)?;
    dict.set_item("flops_per_token", plan.flops_per_token)?;
    dict.set_item("hardware_flops_per_step", plan.hardware_flops_per_step)?;
    dict.set_item("flops_source", plan.flops_source.text())?;
    dict.set_item("parameters", plan.parameters)?;
    dict.set_item("dtype", &plan.dtype)?;
    Ok(Some(dict))
}

fn memory<'py>(py: Python<'py>, snapshot: &Snapshot) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(memory) = &snapshot.memory else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    dict.set_item("allocated_bytes", memory.allocated_bytes)?;
    dict.set_item("reserved_bytes", memory.reserved_bytes)?;
    dict.set_item("peak_allocated_bytes", memory.peak_allocated_bytes)?;
    dict.set_item("peak_reserved_bytes", memory.peak_reserved_bytes)?;
    dict.set_item("limit_bytes", memory.limit_bytes)?;
    dict.set_item("retries", memory.retries)?;
    dict.set_item("out_of_memory", memory.out_of_memory)?;
    Ok(Some(dict))
}

fn pairs<'py>(py: Python<'py>, pairs: Option<&Pairs>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(pairs) = pairs else {
        return Ok(None);
    };
    let dict = PyDict::new(py);
    for (key, value) in &pairs.pairs {
        dict.set_item(key, value)?;
    }
    Ok(Some(dict))
}
