//! Why attempts to ship fail, by reason: for the agent's own metrics and its /healthz.

use gpufleet_telemetry::wire::Refusal;
use tonic::Code;

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nobody answers at the address, or the connection broke off.
    Unreachable,
    /// TLS fails: a certificate is not trusted, has expired, or is refused.
    Tls,
    /// No answer in time.
    TimedOut,
    /// The server wants a token (401).
    Unauthenticated,
    /// The token does not allow it, or is another cluster's (403).
    Forbidden,
    /// The request is larger than the server, or a proxy on the way, takes (413).
    TooLarge,
    /// The server will never take the request.
    Invalid,
    /// The server has no room now.
    Full,
    /// The seq is not the one that the server wants next.
    WrongSeq,
    /// Another process sends under this agent's id.
    AgentIdConflict,
    /// The clocks of agent and server are too far apart.
    ClockQuarantine,
    /// Anything else: the log says what.
    Other,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Unreachable,
        Self::Tls,
        Self::TimedOut,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::TooLarge,
        Self::Invalid,
        Self::Full,
        Self::WrongSeq,
        Self::AgentIdConflict,
        Self::ClockQuarantine,
        Self::Other,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::TimedOut => "timed_out",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
            Self::Full => "full",
            Self::WrongSeq => "wrong_seq",
            Self::AgentIdConflict => "agent_id_conflict",
            Self::ClockQuarantine => "clock_quarantine",
            Self::Other => "other",
        }
    }

    /// The reason of an answer: our server's word where it gives one, the code otherwise.
    pub(super) fn of(refusal: Option<Refusal>, code: Code, message: &str) -> Self {
        match (refusal, code) {
            // What is too large is refused for ever too, by the word; the code tells them apart.
            (Some(Refusal::Invalid), Code::ResourceExhausted) => Self::TooLarge,
            (Some(Refusal::Invalid), _) => Self::Invalid,
            (Some(Refusal::Full), _) => Self::Full,
            (Some(Refusal::WrongSeq), _) => Self::WrongSeq,
            (Some(Refusal::AgentIdConflict), _) => Self::AgentIdConflict,
            (Some(Refusal::ClockQuarantine), _) => Self::ClockQuarantine,
            (None, Code::Unauthenticated) => Self::Unauthenticated,
            (None, Code::PermissionDenied) => Self::Forbidden,
            (None, Code::OutOfRange) => Self::TooLarge,
            (None, Code::DeadlineExceeded | Code::Cancelled) => Self::TimedOut,
            (None, Code::ResourceExhausted) => Self::Full,
            (None, Code::Unavailable) => Self::Unreachable,
            // A proxy that does not speak gRPC; the code of HTTP is in the message alone.
            (None, _) if message.contains("413") => Self::TooLarge,
            (None, _) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_reason_that_its_server_or_a_proxy_meant() {
        for (refusal, code, message, expected) in [
            (
                Some(Refusal::Full),
                Code::ResourceExhausted,
                "",
                Reason::Full,
            ),
            (
                Some(Refusal::Invalid),
                Code::ResourceExhausted,
                "",
                Reason::TooLarge,
            ),
            (
                Some(Refusal::Invalid),
                Code::InvalidArgument,
                "",
                Reason::Invalid,
            ),
            (None, Code::Unauthenticated, "", Reason::Unauthenticated),
            (None, Code::PermissionDenied, "", Reason::Forbidden),
            (
                None,
                Code::Unknown,
                "grpc-status header missing, mapped from HTTP status code 413",
                Reason::TooLarge,
            ),
            (
                None,
                Code::Unavailable,
                "tcp connect error",
                Reason::Unreachable,
            ),
            (None, Code::Unknown, "", Reason::Other),
        ] {
            assert_eq!(Reason::of(refusal, code, message), expected, "{code:?}");
        }
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "counted by their place in the list");
        }
    }
}
