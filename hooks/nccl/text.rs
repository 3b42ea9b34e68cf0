//! NCCL's names of functions and data types, from C strings to numbers.

use std::ffi::c_char;

use gpufleet_hooks_shm::words::{DataType, Function};

/// Longest name that is looked at: `ncclFloat8e5m2` has 14 letters. Longer ones are none of these.
const LONGEST: usize = 16;

/// A name of at most [`LONGEST`] bytes, its first letter lowest.
type Name = u128;

/// The name as a number.
const fn name(text: &str) -> Name {
    let bytes = text.as_bytes();
    assert!(bytes.len() <= LONGEST, "longer than any name looked at");
    let mut number = 0;
    let mut rest = bytes;
    while let [others @ .., last] = rest {
        number = number << 8 | *last as Name;
        rest = others;
    }
    number
}

/// Reads a C string; 0 for null and for one that is longer than any name.
///
/// # Safety
/// The pointer is null or leads to bytes that can be read up to a zero byte.
unsafe fn read(text: *const c_char) -> Name {
    if text.is_null() {
        return 0;
    }
    let mut halves = [0_u64; 2];
    for (half, number) in halves.iter_mut().enumerate() {
        for at in 0..8 {
            // SAFETY: every byte before this one was not zero, so this one can be read.
            let byte = unsafe { text.add(half << 3 | at).read() } as u8;
            if byte == 0 {
                let [low, high] = halves;
                return Name::from(high) << 64 | Name::from(low);
            }
            *number |= u64::from(byte) << (at << 3);
        }
    }
    0
}

/// What a function is called.
///
/// # Safety
/// As [`read`].
pub unsafe fn function(text: *const c_char) -> Function {
    const ALL_REDUCE: Name = name("AllReduce");
    const ALL_GATHER: Name = name("AllGather");
    const REDUCE_SCATTER: Name = name("ReduceScatter");
    const BROADCAST: Name = name("Broadcast");
    const REDUCE: Name = name("Reduce");
    const ALL_TO_ALL: Name = name("AlltoAll");
    const SEND: Name = name("Send");
    const RECEIVE: Name = name("Recv");
    // SAFETY: as the caller promises.
    match unsafe { read(text) } {
        ALL_REDUCE => Function::AllReduce,
        ALL_GATHER => Function::AllGather,
        REDUCE_SCATTER => Function::ReduceScatter,
        BROADCAST => Function::Broadcast,
        REDUCE => Function::Reduce,
        ALL_TO_ALL => Function::AllToAll,
        SEND | RECEIVE => Function::PointToPoint,
        _ => Function::Other,
    }
}

/// What a data type is called.
///
/// # Safety
/// As [`read`].
pub unsafe fn data_type(text: *const c_char) -> DataType {
    const INT8: Name = name("ncclInt8");
    const UINT8: Name = name("ncclUint8");
    const INT32: Name = name("ncclInt32");
    const UINT32: Name = name("ncclUint32");
    const INT64: Name = name("ncclInt64");
    const UINT64: Name = name("ncclUint64");
    const FLOAT16: Name = name("ncclFloat16");
    const FLOAT32: Name = name("ncclFloat32");
    const FLOAT64: Name = name("ncclFloat64");
    const BFLOAT16: Name = name("ncclBfloat16");
    const FLOAT8_E4M3: Name = name("ncclFloat8e4m3");
    const FLOAT8_E5M2: Name = name("ncclFloat8e5m2");
    // SAFETY: as the caller promises.
    match unsafe { read(text) } {
        INT8 => DataType::Int8,
        UINT8 => DataType::Uint8,
        INT32 => DataType::Int32,
        UINT32 => DataType::Uint32,
        INT64 => DataType::Int64,
        UINT64 => DataType::Uint64,
        FLOAT16 => DataType::Float16,
        FLOAT32 => DataType::Float32,
        FLOAT64 => DataType::Float64,
        BFLOAT16 => DataType::Bfloat16,
        FLOAT8_E4M3 => DataType::Float8E4m3,
        FLOAT8_E5M2 => DataType::Float8E5m2,
        _ => DataType::Unknown,
    }
}

/// Bytes of one element; 0 where the type is not known.
const fn element_bytes(data_type: DataType) -> u64 {
    match data_type {
        DataType::Unknown => 0,
        DataType::Int8 | DataType::Uint8 | DataType::Float8E4m3 | DataType::Float8E5m2 => 1,
        DataType::Float16 | DataType::Bfloat16 => 2,
        DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
        DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
    }
}

/// Bytes of a collective as nccl-tests counts its message, the larger of what one rank sends and
/// receives: NCCL's count is per rank where every rank has a part of its own.
pub const fn bytes(function: Function, data_type: DataType, count: u64, ranks: u64) -> u64 {
    let parts = match function {
        Function::AllGather | Function::ReduceScatter | Function::AllToAll => ranks,
        _ => 1,
    };
    count
        .saturating_mul(element_bytes(data_type))
        .saturating_mul(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_nccl_is_known() {
        let functions = [
            (c"AllReduce", Function::AllReduce),
            (c"AllGather", Function::AllGather),
            (c"ReduceScatter", Function::ReduceScatter),
            (c"Broadcast", Function::Broadcast),
            (c"Reduce", Function::Reduce),
            (c"AlltoAll", Function::AllToAll),
            (c"Send", Function::PointToPoint),
            (c"Recv", Function::PointToPoint),
            (c"Gather", Function::Other),
            (c"AllReduceAndMuchMore", Function::Other),
            (c"ReduceScatter123", Function::Other),
            (c"", Function::Other),
        ];
        for (text, expected) in functions {
            // SAFETY: the text ends with a zero byte.
            assert_eq!(unsafe { function(text.as_ptr()) }, expected, "{text:?}");
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { function(std::ptr::null()) }, Function::Other);
        let types = [
            (c"ncclInt8", DataType::Int8),
            (c"ncclBfloat16", DataType::Bfloat16),
            (c"ncclFloat8e5m2", DataType::Float8E5m2),
            (c"ncclFloat32", DataType::Float32),
            (c"ncclUint64", DataType::Uint64),
            (c"ncclFloat4", DataType::Unknown),
        ];
        for (text, expected) in types {
            // SAFETY: the text ends with a zero byte.
            assert_eq!(unsafe { data_type(text.as_ptr()) }, expected, "{text:?}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_larger_buffer_of_one_rank() {
        let check = |function, data_type, count, ranks, expected| {
            assert_eq!(bytes(function, data_type, count, ranks), expected);
        };
        check(Function::AllReduce, DataType::Bfloat16, 1000, 8, 2000);
        check(Function::AllGather, DataType::Int8, 1000, 8, 8000);
        check(Function::ReduceScatter, DataType::Float32, 1000, 8, 32000);
        check(Function::AllToAll, DataType::Float32, 10, 4, 160);
        check(Function::Broadcast, DataType::Int8, 1000, 8, 1000);
        check(Function::PointToPoint, DataType::Float64, 10, 8, 80);
        check(Function::AllReduce, DataType::Unknown, 10, 8, 0);
        check(Function::AllGather, DataType::Int64, u64::MAX, 8, u64::MAX);
    }
}
