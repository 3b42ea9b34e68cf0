//! Which rank a process says it is, and what it says of itself besides.

use gpufleet_hooks_shm::reader::Snapshot;
use gpufleet_hooks_shm::records::{Axis, Communicator, Identity};
use gpufleet_hooks_shm::words;
use gpufleet_telemetry::identity::{Resource, attribute};
use gpufleet_telemetry::training::{JobId, Mesh, MeshSource, Place, RankId};

/// Most tags of a rank: a resource has at most 64 attributes on the wire.
const MAX_TAGS: usize = 16;

/// What of a region becomes attributes of its rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Who it says it is.
    pub identity: Identity,
    mesh: Mesh,
    mesh_source: Option<MeshSource>,
    data_type: String,
    flops_source: Option<words::FlopsSource>,
    tags: Vec<(String, String)>,
}

/// A rank that cannot be: its number or its attempt is beyond what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRank;

impl Said {
    /// What the script of a process says; nothing before it says who it is. `all` are the process'
    /// regions: where the script does not know its place in the mesh, communicators may.
    pub fn of<'a>(script: &Snapshot, all: impl Iterator<Item = &'a Snapshot>) -> Option<Self> {
        let plan = script.plan.as_ref();
        let tags = script.tags.as_ref();
        let tags = tags.map_or(&[][..], |it| it.pairs.as_slice());
        let identity = script.identity.clone()?;
        let source = MeshSource::parse(identity.mesh.source.text());
        let source = source.filter(|it| *it != MeshSource::Unknown);
        let (mesh, mesh_source) = match source {
            Some(source) => (mesh(&identity), Some(source)),
            None => {
                let communicators = all.flat_map(|it| &it.together.communicators);
                let found = communicated(communicators.map(|it| &it.communicator));
                let is_any = found != Mesh::default();
                (found, is_any.then_some(MeshSource::Communicators))
            }
        };
        Some(Self {
            identity,
            mesh,
            mesh_source,
            data_type: plan.map(|it| it.dtype.clone()).unwrap_or_default(),
            flops_source: plan.map(|it| it.flops_source),
            tags: tags.iter().take(MAX_TAGS).cloned().collect(),
        })
    }

    /// The resource with what is said here as its attributes.
    pub fn describe(&self, resource: Resource, rank: &RankId) -> Resource {
        let identity = &self.identity;
        let number = |number: i64| (number >= 0).then(|| number.to_string());
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let flops_source = self.flops_source.map_or("", words::FlopsSource::text);
        let known = [
            (attribute::JOB, Some(rank.job.to_string())),
            (attribute::ATTEMPT, Some(rank.attempt.to_string())),
            (attribute::RANK, Some(rank.rank.to_string())),
            (attribute::WORLD, number(identity.world)),
            (attribute::LOCAL_RANK, number(identity.local_rank)),
            (attribute::MESH, text(&self.mesh.to_string())),
            (
                attribute::MESH_SOURCE,
                self.mesh_source.map(|it| it.name().to_owned()),
            ),
            (attribute::FRAMEWORK, text(&identity.framework)),
            (attribute::LAUNCHER, text(&identity.launcher)),
            (attribute::DATA_TYPE, text(&self.data_type)),
            (attribute::FLOPS_SOURCE, text(flops_source)),
        ];
        let known = known.into_iter();
        let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let tags = self.tags.iter();
        let tags = tags.map(|(name, value)| {
            let name = format!("{}{name}", attribute::TAG_PREFIX);
            (name, value.clone())
        });
        known.chain(tags).fold(resource, |resource, (name, value)| {
            resource.with(&name, value)
        })
    }
}

/// Which rank it says that it is; none while it has not said it whole: one that says no number may be any of several,
/// and is none before it says that it is alone.
///
/// # Errors
/// It says a rank or an attempt that cannot be.
pub fn rank_id(identity: &Identity) -> Option<Result<RankId, NoRank>> {
    if identity.job_name.is_empty() || (identity.rank < 0 && identity.world != 1) {
        return None;
    }
    // A process that is alone is rank 0; an attempt that nobody counts is the first.
    let rank = u32::try_from(identity.rank.max(0));
    let attempt = u32::try_from(identity.attempt.max(0));
    let (Ok(rank), Ok(attempt)) = (rank, attempt) else {
        return Some(Err(NoRank));
    };
    Some(Ok(RankId {
        job: JobId {
            namespace: identity.job_namespace.clone(),
            name: identity.job_name.clone(),
            uid: identity.job_uid.clone(),
        },
        attempt,
        rank,
    }))
}

fn mesh(identity: &Identity) -> Mesh {
    let place = |axis: Axis| {
        let at = u32::try_from(axis.coordinate).ok()?;
        let of = u32::try_from(axis.size).ok()?;
        (of == 0 || at < of).then_some(Place { at, of })
    };
    let of = &identity.mesh;
    Mesh {
        dp: place(of.dp),
        pp: place(of.pp),
        tp: place(of.tp),
        cp: place(of.cp),
        ep: place(of.ep),
    }
}

/// The place in the mesh by the communicators that frameworks name after its dimensions:
/// `TENSOR_MODEL_PARALLEL_GROUP`, `mesh_dp`. One that spans two dimensions says nothing of either.
fn communicated<'a>(all: impl Iterator<Item = &'a Communicator>) -> Mesh {
    let mut mesh = Mesh::default();
    for communicator in all {
        let mut found = axes(&communicator.name);
        let (Some(axis), None) = (found.next(), found.next()) else {
            continue;
        };
        let place = match axis {
            Dimension::Data => &mut mesh.dp,
            Dimension::Pipeline => &mut mesh.pp,
            Dimension::Tensor => &mut mesh.tp,
            Dimension::Context => &mut mesh.cp,
            Dimension::Expert => &mut mesh.ep,
        };
        let at = u32::try_from(communicator.rank).ok();
        let of = u32::try_from(communicator.ranks).ok();
        if let (Some(at), Some(of)) = (at, of)
            && at < of
        {
            *place = Some(Place { at, of });
        }
    }
    mesh
}

/// A dimension of the mesh.
enum Dimension {
    Data,
    Pipeline,
    Tensor,
    Context,
    Expert,
}

/// The dimensions that a communicator's name has words of.
fn axes(name: &str) -> impl Iterator<Item = Dimension> {
    let words = name.split(|it: char| !it.is_ascii_alphanumeric());
    words.filter_map(|word| match word.to_ascii_lowercase().as_str() {
        "dp" | "data" | "fsdp" => Some(Dimension::Data),
        "pp" | "pipeline" | "pipe" => Some(Dimension::Pipeline),
        "tp" | "tensor" => Some(Dimension::Tensor),
        "cp" | "context" => Some(Dimension::Context),
        "ep" | "expert" => Some(Dimension::Expert),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_no_number_is_rank_0_only_of_a_world_of_one() {
        for (rank, world, expected) in [
            (3, 8, Some(3)),
            (3, -1, Some(3)),
            (-1, 1, Some(0)),
            (-1, -1, None),
            (-1, 0, None),
            (-1, 8, None),
        ] {
            let identity = Identity {
                job_name: "llama".to_owned(),
                rank,
                world,
                ..Identity::default()
            };
            let found = rank_id(&identity).map(|it| it.expect("it can be").rank);
            assert_eq!(found, expected, "rank {rank} of {world}");
        }
    }

    #[test]
    fn communicators_that_are_named_after_one_dimension_place_a_rank_and_others_do_not() {
        let of = |name: &str, rank, ranks| Communicator {
            hash: 1,
            ranks,
            rank,
            nodes: 1,
            name: name.to_owned(),
        };
        let all = [
            of("default_pg", 21, 32),
            of("TENSOR_MODEL_PARALLEL_GROUP", 1, 4),
            of("mesh_dp", 2, 4),
            of("PIPELINE_MODEL_PARALLEL_GROUP", 5, 2),
            of("DATA_PARALLEL_GROUP_WITH_CP", 3, 8),
            of("EXPERT_DATA_PARALLEL_GROUP", 3, 8),
        ];
        let mesh = communicated(all.iter());
        let expected = Mesh {
            tp: Some(Place { at: 1, of: 4 }),
            dp: Some(Place { at: 2, of: 4 }),
            ..Mesh::default()
        };
        assert_eq!(mesh, expected);
        assert_eq!(communicated([].iter()), Mesh::default());
    }
}
