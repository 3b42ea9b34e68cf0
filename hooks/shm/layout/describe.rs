//! One declaration per section gives the struct, and what the documentation says of each field.

use std::sync::atomic::AtomicU64;

/// One field of the region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its path, the first element standing for all of an array: `steps[0].wall_ns`.
    pub path: String,
    /// Where it lies, in bytes from the region's start.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
    /// The arrays it lies in: `2048 × 96 B`.
    pub repeated: String,
    /// What it says.
    pub help: String,
}

/// Something the region is made of.
pub(super) trait Described {
    /// Whether it is a single word: an array of those is one field.
    const IS_WORD: bool;

    /// Adds the fields of `Self`, found at `path` and `offset`.
    fn describe(path: &str, offset: usize, repeated: &str, help: &str, fields: &mut Vec<Field>);
}

impl Described for AtomicU64 {
    const IS_WORD: bool = true;

    fn describe(path: &str, offset: usize, repeated: &str, help: &str, fields: &mut Vec<Field>) {
        fields.push(Field {
            path: path.to_owned(),
            offset,
            bytes: size_of::<Self>(),
            repeated: repeated.to_owned(),
            help: help.trim().to_owned(),
        });
    }
}

impl<T: Described, const N: usize> Described for [T; N] {
    const IS_WORD: bool = false;

    fn describe(path: &str, offset: usize, repeated: &str, help: &str, fields: &mut Vec<Field>) {
        if T::IS_WORD {
            AtomicU64::describe(path, offset, repeated, help, fields);
            if let Some(field) = fields.last_mut() {
                field.bytes = size_of::<Self>();
            }
            return;
        }
        let mut times = format!("{N} × {} B", size_of::<T>());
        if !repeated.is_empty() {
            times = format!("{repeated}, {times}");
        }
        T::describe(&format!("{path}[0]"), offset, &times, help, fields);
    }
}

/// The path of a field inside `path`.
pub(super) fn inside(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

/// Declares one section: its struct, and its place in [`super::fields`].
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $help:literal])* $field:ident: $type:ty,)*
    }) => {
        $(#[doc = $about])*
        #[repr(C)]
        pub struct $name {
            $($(#[doc = $help])* pub $field: $type,)*
        }

        impl Described for $name {
            const IS_WORD: bool = false;

            fn describe(
                path: &str,
                offset: usize,
                repeated: &str,
                _help: &str,
                fields: &mut Vec<Field>,
            ) {
                $(<$type as Described>::describe(
                    &describe::inside(path, stringify!($field)),
                    offset + std::mem::offset_of!($name, $field),
                    repeated,
                    concat!($($help),*),
                    fields,
                );)*
            }
        }
    };
}

pub(super) use section;
