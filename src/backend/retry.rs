//! Failures, and when another attempt follows them.

use std::time::Duration;

use serde::Serialize;

use super::wire::{ErrorReply, Members, Raw, duration};

/// `options.retry`.
#[derive(Debug)]
pub(super) struct Retry {
    pub max_attempts: u32,
    initial: Duration,
    longest: Duration,
    coefficient: f64,
    linear: bool,
    pub jitter: bool,
    fatal: Vec<String>,
    pub keeps_dead: bool,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            max_attempts: 3,
            initial: Duration::from_secs(1),
            longest: Duration::from_secs(300),
            coefficient: 2.0,
            linear: false,
            jitter: true,
            fatal: Vec::new(),
            keeps_dead: false,
        }
    }
}

impl Retry {
    pub(super) fn parse(members: &Members) -> Result<Retry, ErrorReply> {
        let invalid = |message: String| ErrorReply::new(422, "validation_error", message);
        let mut retry = Retry::default();
        if let Some(max) = members.read::<i64>("max_attempts")? {
            retry.max_attempts = u32::try_from(max)
                .map_err(|_| invalid(format!("retry.max_attempts must not be {max}")))?;
        }
        if let Some(coefficient) = members.read::<f64>("backoff_coefficient")? {
            if coefficient < 1.0 {
                return Err(invalid(
                    "retry.backoff_coefficient must be at least 1.0".into(),
                ));
            }
            retry.coefficient = coefficient;
        }
        for (name, field) in [
            ("initial_interval", &mut retry.initial),
            ("max_interval", &mut retry.longest),
        ] {
            if let Some(text) = members.read::<String>(name)? {
                *field = duration(&text)
                    .ok_or_else(|| invalid(format!("retry.{name} is not a duration")))?;
            }
        }
        retry.linear = members.read::<String>("backoff_strategy")?.as_deref() == Some("linear");
        retry.jitter = members.read("jitter")?.unwrap_or(true);
        retry.fatal = members.read("non_retryable_errors")?.unwrap_or_default();
        retry.keeps_dead =
            members.read::<String>("on_exhaustion")?.as_deref() == Some("dead_letter");
        Ok(retry)
    }

    /// The wait after the `attempt`th failure, before jitter.
    pub(super) fn delay(&self, attempt: u32) -> Duration {
        let initial = self.initial.as_secs_f64();
        let wait = match self.linear {
            true => initial * f64::from(attempt.max(1)),
            false => initial * self.coefficient.powf(f64::from(attempt.max(1) - 1)),
        };
        Duration::from_secs_f64(wait.min(self.longest.as_secs_f64()))
    }

    /// Whether `error` is one that the policy names as not worth another attempt; `Auth.*` names
    /// all that begin with `Auth.`.
    pub(super) fn is_fatal(&self, error: &JobError) -> bool {
        let class = error.details.as_ref().and_then(|details| {
            let details: serde_json::Value = serde_json::from_str(details.get()).ok()?;
            Some(details.get("error_class")?.as_str()?.to_owned())
        });
        let names = [
            error.kind.as_str(),
            error.code.as_str(),
            class.as_deref().unwrap_or_default(),
        ];
        self.fatal
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => names.iter().any(|name| name.starts_with(prefix)),
                None => names.iter().any(|name| name == pattern),
            })
    }
}

/// One failed attempt.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct JobError {
    pub code: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Raw>,
    pub attempt: u32,
    #[serde(rename = "occurred_at")]
    pub at: String,
}

impl JobError {
    /// The `error` of a nack; one that is missing is a failure without a name.
    pub(super) fn parse(members: &Members) -> Result<JobError, ErrorReply> {
        let code: Option<String> = members.read("code")?;
        let kind: Option<String> = members.read("type")?;
        Ok(JobError {
            kind: kind
                .or_else(|| code.clone())
                .unwrap_or_else(|| "error".into()),
            code: code.unwrap_or_else(|| "handler_error".into()),
            message: members.read("message")?.unwrap_or_default(),
            retryable: members.read("retryable")?,
            details: members.read("details")?,
            ..JobError::default()
        })
    }
}
