//! What the Python half says now and then: who the rank is, what it intends, how it learns and ends.

use std::collections::BTreeMap;

use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::records::{Axis, End, Exception, Identity, Memory, Mesh, Plan, Reading};
use gpufleet_hooks_shm::words::{EndKind, FlopsSource, MeshSource};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::recorder::{Recorder, count};

/// Names with their values, as Python hands them over.
struct Named<'a, 'py>(&'a Bound<'py, PyDict>);

impl Named<'_, '_> {
    fn number(&self, name: &str, unknown: i64) -> PyResult<i64> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => value.extract(),
            _ => Ok(unknown),
        }
    }

    fn double(&self, name: &str) -> PyResult<f64> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => value.extract(),
            _ => Ok(0.0),
        }
    }

    fn text(&self, name: &str) -> PyResult<String> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => value.extract(),
            _ => Ok(String::new()),
        }
    }

    /// A dimension of the mesh: `(coordinate, size)`.
    fn axis(&self, name: &str) -> PyResult<Axis> {
        match self.0.get_item(name)? {
            Some(value) if !value.is_none() => {
                let (coordinate, size): (i64, i64) = value.extract()?;
                Ok(Axis {
                    coordinate,
                    size: count(size),
                })
            }
            _ => Ok(Axis::default()),
        }
    }
}

#[pymethods]
impl Recorder {
    /// Who this rank is; what is left out is unknown.
    #[pyo3(signature = (**named))]
    fn identity(&self, named: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let Some(named) = named.map(Named) else {
            return Ok(());
        };
        let source = named.text("mesh_source")?;
        self.writer.identity(&Identity {
            cluster: named.text("cluster")?,
            job_namespace: named.text("job_namespace")?,
            job_name: named.text("job_name")?,
            job_uid: named.text("job_uid")?,
            attempt: named.number("attempt", -1)?,
            rank: named.number("rank", -1)?,
            world: named.number("world", -1)?,
            local_rank: named.number("local_rank", -1)?,
            local_world: named.number("local_world", -1)?,
            mesh: Mesh {
                source: MeshSource::from_text(&source).unwrap_or(MeshSource::Unknown),
                dp: named.axis("dp")?,
                pp: named.axis("pp")?,
                tp: named.axis("tp")?,
                cp: named.axis("cp")?,
                ep: named.axis("ep")?,
            },
            framework: named.text("framework")?,
            gpu_uuid: named.text("gpu_uuid")?,
            cuda_device: named.number("cuda_device", -1)?,
            host_pid: named.number("host_pid", -1)?,
            launcher: named.text("launcher")?,
        });
        Ok(())
    }

    /// What the run intends; what is left out was not said.
    #[pyo3(signature = (**named))]
    fn plan(&self, named: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let Some(named) = named.map(Named) else {
            return Ok(());
        };
        let source = named.text("flops_source")?;
        self.writer.plan(&Plan {
            total_steps: count(named.number("total_steps", 0)?),
            total_tokens: count(named.number("total_tokens", 0)?),
            deadline_at: named.number("deadline_at", 0)?,
            flops_per_step: named.double("flops_per_step")?,
            flops_per_token: named.double("flops_per_token")?,
            hardware_flops_per_step: named.double("hardware_flops_per_step")?,
            flops_source: FlopsSource::from_text(&source).unwrap_or(FlopsSource::Unknown),
            parameters: count(named.number("parameters", 0)?),
            dtype: named.text("dtype")?,
        });
        Ok(())
    }

    /// A value of a step: loss, gradient_norm, learning_rate or evaluation_loss.
    fn reading(&self, name: &str, value: f64, step: i64) -> PyResult<()> {
        let reading = Reading {
            value,
            step: count(step),
            at: unix_ns(),
        };
        match name {
            "loss" => self.writer.loss(reading),
            "gradient_norm" => self.writer.gradient_norm(reading),
            "learning_rate" => self.writer.learning_rate(reading),
            "evaluation_loss" => self.writer.evaluation_loss(reading),
            _ => return Err(PyValueError::new_err(format!("there is no value `{name}`"))),
        }
        Ok(())
    }

    /// The gradient scaler skipped so many steps.
    fn scaler_skipped(&self, skips: i64) {
        self.writer.scaler_skipped(count(skips));
    }

    /// A checkpoint was saved.
    fn checkpoint_saved(&self, step: i64, duration_ns: i64) {
        self.writer
            .checkpoint_saved(count(step), count(duration_ns), unix_ns());
    }

    /// Saving one failed.
    fn checkpoint_failed(&self) {
        self.writer.checkpoint_failed();
    }

    /// One was gone back to.
    fn checkpoint_restored(&self, step: i64, duration_ns: i64) {
        self.writer
            .checkpoint_restored(count(step), count(duration_ns), unix_ns());
    }

    /// An evaluation was done.
    fn evaluated(&self, step: i64, duration_ns: i64) {
        self.writer
            .evaluated(count(step), count(duration_ns), unix_ns());
    }

    /// The allocator; what is left out is 0.
    #[pyo3(signature = (**named))]
    fn memory(&self, named: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let Some(named) = named.map(Named) else {
            return Ok(());
        };
        let bytes = |name| named.number(name, 0).map(count);
        self.writer.memory(&Memory {
            at: unix_ns(),
            allocated_bytes: bytes("allocated_bytes")?,
            reserved_bytes: bytes("reserved_bytes")?,
            peak_allocated_bytes: bytes("peak_allocated_bytes")?,
            peak_reserved_bytes: bytes("peak_reserved_bytes")?,
            limit_bytes: bytes("limit_bytes")?,
            retries: bytes("retries")?,
            out_of_memory: bytes("out_of_memory")?,
        });
        Ok(())
    }

    /// An exception that nobody caught.
    fn exception(&self, rank: i64, kind: String, message: String, traceback: String) {
        self.writer.exception(&Exception {
            at: unix_ns(),
            rank,
            step: self.last_step(),
            kind,
            message,
            traceback,
        });
    }

    /// The process ends: finished, stopped or exception. A status below 0 is not known.
    #[pyo3(signature = (kind, exit_status = -1))]
    fn end(&self, kind: &str, exit_status: i64) -> PyResult<()> {
        let kind = EndKind::from_text(kind)
            .ok_or_else(|| PyValueError::new_err(format!("nothing ends as `{kind}`")))?;
        self.writer.end(End {
            kind,
            at: unix_ns(),
            exit_status,
            step: self.last_step(),
        });
        Ok(())
    }

    /// What the run is made of.
    fn fingerprint(&self, pairs: BTreeMap<String, String>) {
        self.writer.fingerprint(&borrowed(&pairs));
    }

    /// What people call it.
    fn tags(&self, pairs: BTreeMap<String, String>) {
        self.writer.tags(&borrowed(&pairs));
    }
}

fn borrowed(pairs: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    pairs
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}
