//! A kubelet's PodResources socket as the real one is: gRPC over a Unix socket, that one service and no
//! other, every pod of the node with everything it was given and not only GPUs.
//!
//! The messages are written field by field, by the numbers of the kubelet's own definition, and with the
//! fields that the agent does not read: so an agent that takes one for another is found out.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::wait;

/// What is asked.
const LIST: &str = "/v1.PodResourcesLister/List";

/// What is asked while a pod holds a replica.
const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// How long it may take until the socket is there.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A pod that was given devices.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The one container it has.
    pub container: String,
    /// The resource, `nvidia.com/gpu`; of a claim its name.
    pub resource: String,
    /// Devices, as the plugin calls them.
    pub devices: Vec<String>,
    /// Whether they were allocated for a claim by `gpu.nvidia.com`.
    pub is_claim: bool,
}

/// A running kubelet; it stops when it is dropped.
#[derive(Debug)]
pub struct Kubelet {
    socket: PathBuf,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Debug, Default)]
struct Shared {
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    pods: Vec<Given>,
    delay: Duration,
    answers: u64,
    /// What it can give out; none: it does not know that question.
    allocatable: Option<Vec<String>>,
}

#[derive(Debug, Clone)]
struct Lister(Arc<Shared>);

/// Answers what can be given out.
#[derive(Debug, Clone)]
struct Allocatable(Vec<String>);

/// Bytes in, bytes out.
#[derive(Debug, Clone, Default)]
struct Raw;

impl Given {
    /// A pod `namespace/name` with these devices of `nvidia.com/gpu`.
    pub fn gpus(namespace: &str, pod: &str, devices: &[&str]) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            devices: devices.iter().map(|it| (*it).to_owned()).collect(),
            is_claim: false,
        }
    }
}

impl Kubelet {
    /// Starts one whose socket is `pod-resources/kubelet.sock` below `folder`.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn start(folder: &Path) -> Self {
        let socket = folder.join("pod-resources/kubelet.sock");
        let parent = socket.parent().expect("it was joined");
        std::fs::create_dir_all(parent).expect("the test's own folder can be written");
        let mut kubelet = Self {
            socket,
            shared: Arc::default(),
            runtime: None,
        };
        kubelet.begin();
        kubelet
    }

    /// Where its socket is.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it lists from now on; how often it had answered before.
    pub fn show(&self, pods: &[Given]) -> u64 {
        let mut shown = self.shown();
        shown.pods = pods.to_vec();
        shown.answers
    }

    /// Which devices of `nvidia.com/gpu` it can give out, given away or not; before, it does not know the question.
    pub fn gives_out(&self, devices: &[String]) {
        self.shown().allocatable = Some(devices.to_vec());
    }

    /// How often it has listed pods.
    pub fn answers(&self) -> u64 {
        self.shown().answers
    }

    /// How long it takes for an answer from now on.
    pub fn delay(&self, delay: Duration) {
        self.shown().delay = delay;
    }

    /// It dies as by kill -9: its socket's file stays, and nobody listens.
    pub fn die(&mut self) {
        self.runtime = None;
    }

    /// It begins, as a kubelet does: takes the file of its predecessor away and listens anew.
    ///
    /// # Panics
    /// When it runs already, or the socket cannot be bound.
    pub fn begin(&mut self) {
        assert!(self.runtime.is_none(), "it runs already");
        let _ = std::fs::remove_file(&self.socket);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a test may start a thread");
        let socket = self.socket.clone();
        let lister = Lister(Arc::clone(&self.shared));
        runtime.spawn(async move {
            let listener = UnixListener::bind(&socket).expect("the test's own folder");
            let incoming = futures::stream::unfold(listener, |listener| async {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            let mut server = tonic::transport::Server::builder();
            server
                .add_service(lister)
                .serve_with_incoming(incoming)
                .await
        });
        wait::until("the kubelet listens", START_LIMIT, || {
            std::os::unix::net::UnixStream::connect(&self.socket).ok()
        });
        self.runtime = Some(runtime);
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        let shown = self.shared.shown.lock();
        shown.unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamedService for Lister {
    const NAME: &'static str = "v1.PodResourcesLister";
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Lister {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_grpc = request.headers().get("content-type");
        let is_grpc = is_grpc.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"));
        if is_grpc && request.uri().path() == ALLOCATABLE {
            let shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(devices) = shown.allocatable.clone() {
                let given = Allocatable(devices);
                return Box::pin(async move { Ok(Grpc::new(Raw).unary(given, request).await) });
            }
        }
        if !is_grpc || request.uri().path() != LIST {
            let refused = Status::unimplemented(format!("unknown method {}", request.uri().path()));
            return Box::pin(ready(Ok(refused.into_http())));
        }
        let lister = self.clone();
        Box::pin(async move { Ok(Grpc::new(Raw).unary(lister, request).await) })
    }
}

impl UnaryService<Vec<u8>> for Lister {
    type Response = Vec<u8>;
    type Future = Answer<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            if !request.get_ref().is_empty() {
                return Err(Status::invalid_argument("List has no arguments"));
            }
            let delay = shared
                .shown
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .delay;
            tokio::time::sleep(delay).await;
            let mut shown = shared.shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.answers += 1;
            let pods = shown.pods.iter().flat_map(|it| field(1, &pod(it)));
            Ok(Response::new(pods.collect()))
        })
    }
}

/// `AllocatableResourcesResponse{devices=1, cpu_ids=2, memory=3}`.
impl UnaryService<Vec<u8>> for Allocatable {
    type Response = Vec<u8>;
    type Future = Answer<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        if !request.get_ref().is_empty() {
            let refused = Status::invalid_argument("GetAllocatableResources has no arguments");
            return Box::pin(ready(Err(refused)));
        }
        let other = devices("example.com/nic", &["mlx5_0".to_owned()]);
        let gpus = devices("nvidia.com/gpu", &self.0);
        let all = [field(1, &other), field(1, &gpus), field(2, &[0, 1, 2])].concat();
        Box::pin(ready(Ok(Response::new(all))))
    }
}

/// A field of bytes: its number, its length, itself.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        all.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    all.push(length as u8);
    all.extend_from_slice(bytes);
    all
}

/// `PodResources{name=1, namespace=2, containers=3, cpu_ids=4, memory=5}`.
fn pod(given: &Given) -> Vec<u8> {
    let container = field(3, &container(given));
    // CPUs 0 to 2, packed, as a node with static CPUs tells them.
    let cpus = field(4, &[0, 1, 2]);
    [
        field(1, given.pod.as_bytes()),
        field(2, given.namespace.as_bytes()),
        container,
        cpus,
    ]
    .concat()
}

/// `ContainerResources{name=1, devices=2, cpu_ids=3, memory=4, dynamic_resources=5}`.
fn container(given: &Given) -> Vec<u8> {
    let other = devices("example.com/nic", &["mlx5_0".to_owned()]);
    let given_to = match given.is_claim {
        true => field(5, &claim(given)),
        false => field(2, &devices(&given.resource, &given.devices)),
    };
    [
        field(1, given.container.as_bytes()),
        field(2, &other),
        field(3, &[0, 1, 2]),
        given_to,
    ]
    .concat()
}

/// `ContainerDevices{resource_name=1, device_ids=2, topology=3{nodes=1{ID=1}}}`.
fn devices(resource: &str, ids: &[String]) -> Vec<u8> {
    let ids = ids.iter().flat_map(|it| field(2, it.as_bytes()));
    let mut all = field(1, resource.as_bytes());
    all.extend(ids);
    all.extend(field(3, &field(1, &[0x08, 0x01])));
    all
}

/// `DynamicResource{claim_name=2, claim_namespace=3, claim_resources=4{driver_name=2, pool_name=3,
/// device_name=4}}`: the first field, the class' name, is no more.
fn claim(given: &Given) -> Vec<u8> {
    let allocated = given.devices.iter().flat_map(|device| {
        let device = [
            field(2, b"gpu.nvidia.com"),
            field(3, b"node-1"),
            field(4, device.as_bytes()),
        ];
        field(4, &device.concat())
    });
    let mut all = field(2, given.resource.as_bytes());
    all.extend(field(3, given.namespace.as_bytes()));
    all.extend(allocated);
    all
}

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; prost::bytes::Buf::remaining(from)];
        prost::bytes::Buf::copy_to_slice(from, &mut bytes);
        Ok(Some(bytes))
    }
}
