//! The kubelet's list of which pod holds which device: PodResources v1, gRPC over a Unix socket.
//!
//! Each question has a connection of its own, so a kubelet that began anew is simply asked again.
//! The messages are written out here because there are seven, and protoc would be a build dependency.
//!
//! Limits: [`MAX_ANSWER_BYTES`], [`MAX_DEVICES`], [`DEADLINE`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufleet_program::reloaded::words;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::devices::Device;

/// The question, as the kubelet routes it.
pub const LIST: &str = "/v1.PodResourcesLister/List";

/// The question for all that it can give out.
pub const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// Most bytes of an answer. 250 pods with 8 GPUs and pinned CPUs each come to 0.3 MB; gRPC's own limit
/// is 4 MiB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// Most devices that are kept of an answer: 16 GPUs of 7 instances in 48 replicas each, and as many again
/// of pods that have ended. What is beyond them is counted.
pub const MAX_DEVICES: usize = 10_752;

/// How long the kubelet may take. It answers out of memory, in milliseconds; one that is being
/// restarted does not answer at all.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// The same for what it can give out, which is asked after the list while replicas are held.
const ALLOCATABLE_DEADLINE: Duration = Duration::from_secs(1);

/// What devices of NVIDIA's plugins are named by. Network cards are under this roof as well, and GPUs
/// that virtual machines have to themselves.
const RESOURCES: &str = "nvidia.com/";

/// How the resources begin of which every device is a GPU or a share of one: `gpu`, `gpu.shared`,
/// `mig-1g.10gb`.
const OF_GPUS: [&str; 2] = ["gpu", "mig-"];

/// How GPUs are called in resources that somebody gave another name.
const GPUS: [&str; 3] = ["GPU-", "MIG-", "nvidia"];

/// The driver of dynamic resources that hands out GPUs.
pub(super) const DRIVER: &str = "gpu.nvidia.com";

/// The question: everything.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListRequest {}

/// The question for what can be given out.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableRequest {}

/// All that device plugins have to give out, given away or not.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableResponse {
    /// Devices by resource.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// Every pod of the node that the kubelet gave something to.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What device plugins gave it.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// What drivers of dynamic resources gave it.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// `nvidia.com/gpu`.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices, as their plugin calls them.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// A claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DynamicResource {
    /// Its name.
    #[prost(string, tag = "1")]
    pub claim_name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub claim_namespace: String,
    /// What was allocated for it.
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device that was allocated for a claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimResource {
    /// Who allocated it.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// In which pool it is: the node's name.
    #[prost(string, tag = "3")]
    pub pool_name: String,
    /// The device, as its driver calls it.
    #[prost(string, tag = "4")]
    pub device_name: String,
}

/// A device that a pod holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container that it was given to.
    pub container: String,
    /// The device, as plugin or driver call it.
    pub device: String,
    /// The claim it was allocated for, `<namespace>/<name>`: pods may share one.
    pub claim: Option<String>,
}

/// What pods hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// The devices, in order.
    pub held: Vec<Held>,
    /// How many more there are.
    pub left_out: usize,
    /// All GPUs and shares that it can give out, or why it does not say; none where it was not asked, because nobody
    /// holds a replica.
    pub allocatable: Option<Result<Vec<String>, String>>,
}

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// Nobody listens, or who does cannot be reached.
    #[error("the kubelet's socket {}: {}; {}", .socket.display(), words(.source), way_out(.source))]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It took the question and did not answer in time.
    #[error("the kubelet did not answer within {} s; look at its log", DEADLINE.as_secs())]
    Slow,
    /// It answered with an error.
    #[error("the kubelet refuses to list the devices of pods: {0}")]
    Refused(String),
    /// It has no such service.
    #[error(
        "the kubelet does not know PodResources v1: it is older than 1.20, or something else listens"
    )]
    TooOld,
    /// It has just begun.
    #[error(
        "the kubelet does not list the agent's own pod {pod}: it has just begun and does not know its pods yet, or \
         attribute.pod_namespace and attribute.pod_name are another's"
    )]
    NotWhole {
        /// The agent's own, `<namespace>/<name>`.
        pod: String,
    },
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "mount hostPath /var/lib/kubelet/pod-resources into the agent's pod, or start the kubelet"
        }
        io::ErrorKind::PermissionDenied => {
            "run the agent as root, or set attribute.kubelet_socket = \"\" where no pods run"
        }
        _ => "restart the kubelet",
    }
}

/// What pods hold now. A kubelet lists every pod that it knows, and for some time after its start it knows none, or those
/// alone whose manifests lie on the node: so a list without `own`, namespace and name of the agent's pod, is not whole.
///
/// # Errors
/// See [`KubeletError`].
pub async fn list(socket: &Path, own: Option<(&str, &str)>) -> Result<List, KubeletError> {
    let asked = tokio::time::timeout(DEADLINE, ask(socket, LIST, ListRequest {})).await;
    let answer = asked.unwrap_or(Err(KubeletError::Slow))?;
    if let Some((namespace, name)) = own.filter(|it| !lists(&answer, *it)) {
        return Err(KubeletError::NotWhole {
            pod: format!("{namespace}/{name}"),
        });
    }
    let mut list = held(answer);
    let is_replica =
        |it: &Held| Device::of_plugin(&it.device).is_some_and(|it| it.replica.is_some());
    if list.held.iter().any(is_replica) {
        let asked = ask(socket, ALLOCATABLE, AllocatableRequest {});
        let asked = tokio::time::timeout(ALLOCATABLE_DEADLINE, asked).await;
        list.allocatable = Some(match asked {
            Ok(Ok(answer)) => allocatable(answer),
            Ok(Err(KubeletError::TooOld)) => Err(format!(
                "the kubelet does not know {ALLOCATABLE}: it is older than 1.23, or has it turned off"
            )),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(KubeletError::Slow.to_string()),
        });
    }
    Ok(list)
}

/// Whether a pod, by namespace and name, is in an answer.
fn lists(answer: &ListResponse, (namespace, name): (&str, &str)) -> bool {
    let mut pods = answer.pod_resources.iter();
    pods.any(|it| it.namespace == namespace && it.name == name)
}

/// The GPUs and shares among what can be given out.
fn allocatable(answer: AllocatableResponse) -> Result<Vec<String>, String> {
    let devices = answer.devices.into_iter().flat_map(|it| {
        let resource = it.resource_name;
        let ids = it.device_ids.into_iter();
        ids.filter(move |device| is_gpu(&resource, device))
    });
    let devices: Vec<String> = devices.take(MAX_DEVICES + 1).collect();
    match devices.len() {
        ..=MAX_DEVICES => Ok(devices),
        _ => Err(format!(
            "the kubelet gives out more than {MAX_DEVICES} devices"
        )),
    }
}

async fn ask<Question, Answer>(
    socket: &Path,
    path: &'static str,
    question: Question,
) -> Result<Answer, KubeletError>
where
    Question: prost::Message + 'static,
    Answer: prost::Message + Default + 'static,
{
    let unreachable = |source| KubeletError::Unreachable {
        socket: socket.to_owned(),
        source,
    };
    let mut stream = Some(UnixStream::connect(socket).await.map_err(unreachable)?);
    // One connection, made already; a second would be another kubelet's.
    let connect = service_fn(move |_: Uri| {
        let stream = stream.take().map(TokioIo::new);
        async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(connect)
        .await
        .map_err(|error| KubeletError::Refused(words(&error)))?;
    let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    grpc.ready()
        .await
        .map_err(|error| KubeletError::Refused(words(&error)))?;
    let codec: ProstCodec<Question, Answer> = ProstCodec::default();
    let request = tonic::Request::new(question);
    let answer = grpc.unary(request, PathAndQuery::from_static(path), codec);
    let answer = answer.await.map_err(|status| refused(&status))?;
    Ok(answer.into_inner())
}

fn refused(status: &Status) -> KubeletError {
    match status.code() {
        Code::Unimplemented => KubeletError::TooOld,
        code => KubeletError::Refused(format!("{code:?}: {}", status.message())),
    }
}

/// The GPUs in an answer, in an order of their own: the kubelet's changes from answer to answer.
fn held(answer: ListResponse) -> List {
    let mut list = List::default();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let of_plugins = container
                .devices
                .into_iter()
                .flat_map(|it| {
                    let resource = it.resource_name;
                    let ids = it.device_ids.into_iter();
                    ids.filter(move |device| is_gpu(&resource, device))
                })
                .map(|device| (device, None));
            let of_claims = container.dynamic_resources.into_iter().flat_map(|it| {
                let claim = format!("{}/{}", it.claim_namespace, it.claim_name);
                let devices = it.claim_resources.into_iter();
                let devices = devices.filter(|it| it.driver_name == DRIVER);
                devices.map(move |it| (it.device_name, Some(claim.clone())))
            });
            for (device, claim) in of_plugins.chain(of_claims) {
                if list.held.len() >= MAX_DEVICES {
                    list.left_out += 1;
                    continue;
                }
                list.held.push(Held {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                    device,
                    claim,
                });
            }
        }
    }
    list.held.sort_unstable();
    list
}

/// Whether these bytes are a list of the kubelet with a GPU in it, or what it can give out with one.
pub fn understands(bytes: &[u8]) -> bool {
    let answer = <ListResponse as prost::Message>::decode(bytes);
    let gives_out = <AllocatableResponse as prost::Message>::decode(bytes).map(allocatable);
    let is_list = answer.is_ok_and(|it| !held(it).held.is_empty());
    is_list || gives_out.is_ok_and(|it| it.is_ok_and(|it| !it.is_empty()))
}

/// Whether a plugin's device is a GPU or a share of one.
fn is_gpu(resource: &str, device: &str) -> bool {
    let begins = |text: &str, with: &[&str]| with.iter().any(|it| text.starts_with(it));
    resource
        .strip_prefix(RESOURCES)
        .is_some_and(|kind| begins(kind, &OF_GPUS) || begins(device, &GPUS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_everything_that_pods_were_given_only_gpus_count() {
        let devices = |resource: &str, ids: &[&str]| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|it| (*it).to_owned()).collect(),
        };
        let allocated = |driver: &str, device: &str| ClaimResource {
            driver_name: driver.to_owned(),
            pool_name: "node-1".to_owned(),
            device_name: device.to_owned(),
        };
        let container = ContainerResources {
            name: "train".to_owned(),
            devices: vec![
                devices("example.com/nic", &["mlx5_0"]),
                devices("nvidia.com/gpu", &["GPU-b", "GPU-a"]),
                devices("nvidia.com/big-gpu", &["GPU-d"]),
                devices("nvidia.com/hostdev", &["0000:81:00.0"]),
                devices("nvidia.com/mig-1g.10gb", &["MIG-c"]),
            ],
            dynamic_resources: vec![DynamicResource {
                claim_name: "claim".to_owned(),
                claim_namespace: "team-a".to_owned(),
                claim_resources: vec![
                    allocated("gpu.nvidia.com", "gpu-0"),
                    allocated("compute-domain.nvidia.com", "channel-0"),
                ],
            }],
        };
        let answer = ListResponse {
            pod_resources: vec![PodResources {
                name: "llm-0".to_owned(),
                namespace: "team-a".to_owned(),
                containers: vec![container],
            }],
        };
        let found: Vec<_> = held(answer)
            .held
            .into_iter()
            .map(|it| (it.container, it.device, it.claim))
            .collect();
        let of = |device: &str, claim: Option<&str>| {
            (
                "train".to_owned(),
                device.to_owned(),
                claim.map(str::to_owned),
            )
        };
        let expected = [
            of("GPU-a", None),
            of("GPU-b", None),
            of("GPU-d", None),
            of("MIG-c", None),
            of("gpu-0", Some("team-a/claim")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_is_in_a_list_by_namespace_and_name_whether_it_was_given_something_or_not() {
        let answer = ListResponse {
            pod_resources: vec![PodResources {
                name: "agent-1".to_owned(),
                namespace: "gpufleet".to_owned(),
                containers: Vec::new(),
            }],
        };
        assert!(lists(&answer, ("gpufleet", "agent-1")));
        for other in [("gpufleet", "agent-2"), ("other", "agent-1")] {
            assert!(!lists(&answer, other), "{other:?}");
        }
        assert!(!lists(&ListResponse::default(), ("gpufleet", "agent-1")));
    }

    #[test]
    fn of_all_that_can_be_given_out_only_gpus_count_and_too_many_are_not_counted() {
        let devices = |resource: &str, ids: Vec<String>| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids,
        };
        let answer = |count: usize| AllocatableResponse {
            devices: vec![
                devices("example.com/nic", vec!["mlx5_0".to_owned()]),
                devices(
                    "nvidia.com/gpu.shared",
                    vec!["nvidia0/vgpu1".to_owned(); count],
                ),
            ],
        };
        let found = allocatable(answer(2));
        assert_eq!(found, Ok(vec!["nvidia0/vgpu1".to_owned(); 2]));
        assert_eq!(
            allocatable(answer(MAX_DEVICES)).map(|it| it.len()),
            Ok(MAX_DEVICES)
        );
        let many = allocatable(answer(MAX_DEVICES + 1)).expect_err("more than are kept");
        assert!(many.contains(&MAX_DEVICES.to_string()), "{many}");
    }

    #[test]
    fn an_answer_without_end_is_cut_off_and_what_is_beyond_is_counted() {
        let pod = PodResources {
            containers: vec![ContainerResources {
                devices: vec![ContainerDevices {
                    resource_name: "nvidia.com/gpu".to_owned(),
                    device_ids: vec!["GPU-a::1".to_owned(); MAX_DEVICES],
                }],
                ..ContainerResources::default()
            }],
            ..PodResources::default()
        };
        let answer = ListResponse {
            pod_resources: vec![pod.clone(), pod],
        };
        let list = held(answer);
        assert_eq!((list.held.len(), list.left_out), (MAX_DEVICES, MAX_DEVICES));
    }
}
