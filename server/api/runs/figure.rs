//! A number, or why there is none.

use serde::Serialize;
use utoipa::ToSchema;

/// A figure, or why there is none.
#[derive(Debug, Serialize, ToSchema)]
pub struct Figure {
    /// The value.
    pub value: Option<f64>,
    /// Why there is none.
    pub missing: Option<String>,
}

impl Figure {
    pub(in crate::api) fn of<E: Into<String>>(figure: Result<f64, E>) -> Self {
        match figure {
            Ok(value) => Self {
                value: Some(value),
                missing: None,
            },
            Err(why) => Self {
                value: None,
                missing: Some(why.into()),
            },
        }
    }
}
