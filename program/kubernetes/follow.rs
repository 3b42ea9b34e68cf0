//! Keeps what the Kubernetes API has of a kind of object: a list once, then a watch.
//!
//! A server that is slow, gone or restarted costs freshness and nothing else: what was known stays known
//! until the server says otherwise. Every way round has its pause, because whoever asks does so when the
//! server is at its weakest: longer each time until a watch has lasted ([`LASTED`]).
//!
//! Limits: [`PAGE`], [`MAX_PAGES`], [`WATCH_FOR`], [`LONGEST_PAUSE`]; what is kept of the objects is who
//! follows to bound.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{Api, ApiError, escaped};

/// Most objects that are asked for at once: nodes with their images come to 50 KB each.
const PAGE: usize = 250;

/// Most pages of one list: 500,000 objects, three times what Kubernetes is made for.
const MAX_PAGES: usize = 2_000;

/// How long a watch lasts before it is begun anew, seconds. A connection that died without a word is
/// noticed after it and [`WATCH_SLACK`].
const WATCH_FOR: u64 = 120;
const WATCH_SLACK: Duration = Duration::from_secs(20);

/// For so long the server's word counts: within it a watch ends or fails.
pub const TOLD_FOR: Duration = Duration::from_secs(WATCH_FOR + 30);

/// The pause between two watches, and after a failure; doubled each time up to the longest: a server that
/// comes back is not overrun by those who ask.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A watch that lasted this long worked: the next pause is the shortest again.
const LASTED: Duration = Duration::from_secs(5);

/// Who wants to know all objects of a kind.
pub trait Follow: Sync {
    /// Of an object this much is read.
    type Object: DeserializeOwned + Send;
    /// What a list comes to.
    type All: Default + Send;

    /// Whether a list may come out of the server's cache in one piece, for what has few objects: it may be
    /// a little old, and the watch tells the rest.
    const IS_SHORT: bool;

    /// What is listed: `/api/v1/nodes`, with or without a selector.
    fn path(&self) -> String;

    /// Who is asked.
    fn api(&self) -> impl Future<Output = &Api> + Send;

    /// One object of a list.
    fn gather(&self, all: &mut Self::All, object: Self::Object);

    /// The list is whole.
    fn replace(&self, all: Self::All);

    /// One object is new, or changed.
    fn put(&self, object: Self::Object);

    /// One object is gone.
    fn remove(&self, object: Self::Object);

    /// The server said something that fits.
    fn heard(&self);

    /// It failed.
    fn failed(&self, why: &ApiError);
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// An object is new, or changed.
    Put(T),
    /// It is gone.
    Removed(T),
    /// Only how far the server is.
    Bookmark,
}

#[derive(Debug, Deserialize)]
#[serde(default, bound = "T: DeserializeOwned")]
struct List<T> {
    metadata: ListMeta,
    /// Go writes a list that was never made as `null`.
    items: Option<Vec<T>>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            metadata: ListMeta::default(),
            items: None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    go_on: String,
}

/// What every line of a watch has.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Head,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: ListMeta,
    /// Of an error.
    code: u16,
    message: String,
}

#[derive(Debug, Deserialize)]
struct Body<T> {
    object: T,
}

/// Follows for ever.
pub async fn follow(of: &impl Follow) {
    keep(&Following(of)).await;
}

/// What a line of a watch says, and from where to watch on; that is empty where the line does not say it.
///
/// # Errors
/// When the line is none, or says that the watch failed.
pub fn read<T: DeserializeOwned>(line: &[u8], path: &str) -> Result<(Event<T>, String), ApiError> {
    let malformed = |error: serde_json::Error| ApiError::Malformed {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let Line { kind, object } = serde_json::from_slice(line).map_err(malformed)?;
    if kind == "ERROR" {
        let status = StatusCode::from_u16(object.code);
        return Err(ApiError::Status {
            path: path.to_owned(),
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            message: object.message,
            way_out: String::new(),
        });
    }
    let body = || serde_json::from_slice::<Body<T>>(line).map_err(malformed);
    let event = match kind.as_str() {
        "ADDED" | "MODIFIED" => Event::Put(body()?.object),
        "DELETED" => Event::Removed(body()?.object),
        _ => Event::Bookmark,
    };
    Ok((event, object.metadata.resource_version))
}

/// What is listed and then watched.
trait Watched: Sync {
    /// All of it as it is now; returns from where to watch on.
    fn list(&self) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// One watch, until the server ends it; returns from where to watch on.
    fn watch(&self, version: String) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// Takes note that it failed.
    fn failed(&self, why: &ApiError);
}

/// Who follows, over the API.
struct Following<'a, T>(&'a T);

impl<T: Follow> Following<'_, T> {
    /// What is asked, with these questions.
    fn asked(&self, questions: &str) -> String {
        let path = self.0.path();
        let joint = if path.contains('?') { '&' } else { '?' };
        format!("{path}{joint}{questions}")
    }
}

impl<T: Follow> Watched for Following<'_, T> {
    async fn list(&self) -> Result<String, ApiError> {
        let api = self.0.api().await;
        let pages = self.asked(&format!("limit={PAGE}"));
        // Out of the cache it takes no heed of pages, so more than an answer may have is asked for anew,
        // page by page.
        let mut in_one = T::IS_SHORT;
        let mut path = match in_one {
            true => format!("{pages}&resourceVersion=0"),
            false => pages.clone(),
        };
        let mut all = T::All::default();
        for _ in 0..MAX_PAGES {
            let list: List<T::Object> = match api.get(&path).await {
                Err(ApiError::TooLarge { .. }) if in_one => {
                    in_one = false;
                    path.clone_from(&pages);
                    continue;
                }
                answer => answer?,
            };
            for object in list.items.unwrap_or_default() {
                self.0.gather(&mut all, object);
            }
            if list.metadata.go_on.is_empty() {
                self.0.replace(all);
                return Ok(list.metadata.resource_version);
            }
            path = format!("{pages}&continue={}", escaped(&list.metadata.go_on));
        }
        Err(ApiError::Malformed {
            path,
            why: format!("a list of more than {MAX_PAGES} pages"),
        })
    }

    async fn watch(&self, mut version: String) -> Result<String, ApiError> {
        let path = self.asked(&format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_FOR}&resourceVersion={}",
            escaped(&version)
        ));
        let mut lines = self.0.api().await.watch(&path).await?;
        self.0.heard();
        let until = Instant::now() + Duration::from_secs(WATCH_FOR) + WATCH_SLACK;
        loop {
            // A dead connection ends like one that the server ended.
            let Ok(line) = tokio::time::timeout_at(until, lines.next()).await else {
                return Ok(version);
            };
            let Some(line) = line? else {
                return Ok(version);
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let (event, newer) = read(&line, &path)?;
            if !newer.is_empty() {
                version = newer;
            }
            self.0.heard();
            match event {
                Event::Put(object) => self.0.put(object),
                Event::Removed(object) => self.0.remove(object),
                Event::Bookmark => {}
            }
        }
    }

    fn failed(&self, why: &ApiError) {
        self.0.failed(why);
    }
}

/// Lists and watches for ever.
async fn keep(of: &impl Watched) {
    let mut pause = SHORTEST_PAUSE;
    // From where to watch on; none where it is to be listed.
    let mut from = None;
    loop {
        let listed = match from.take() {
            Some(version) => Ok(version),
            None => of.list().await,
        };
        let began = Instant::now();
        let watched = match listed {
            Ok(version) => of.watch(version).await,
            Err(error) => Err(error),
        };
        if began.elapsed() >= LASTED {
            pause = SHORTEST_PAUSE;
        }
        match watched {
            Ok(version) => from = Some(version),
            // Not a failure: the server forgot what lies that far back.
            Err(error) if error.is_gone() => {}
            Err(error) => of.failed(&error),
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
