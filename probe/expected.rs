//! The answers that the probe's kernels must give, worked out here by the same formulas: whole numbers
//! and IEEE arithmetic, the same on every chip. The kernels are in `kernels/`.

use super::ptx::Work;

/// Threads of a block of the arithmetic, one expectation each.
pub const ARITHMETIC_THREADS: u32 = 512;

/// Threads of a block of tensor work: sixteen warps, each with the same answer.
pub const TENSOR_THREADS: u32 = 512;

/// Warps of a block of tensor work.
pub const TENSOR_WARPS: u32 = TENSOR_THREADS / 32;

/// Matrices A of a warp, and rows of each.
const A: i32 = 2;
const ROWS: i32 = 16;

/// What each thread of the arithmetic ends with: the integer below, the bits of the fp32 above.
pub fn arithmetic(rounds: u32) -> Vec<u64> {
    (0..ARITHMETIC_THREADS)
        .map(|it| thread(it, rounds))
        .collect()
}

fn thread(thread: u32, rounds: u32) -> u64 {
    let mut x = thread.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut y = !x;
    let mut f = (thread as f32).mul_add(0.000_976_562_5, 0.25);
    for _ in 0..rounds {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        y = (y ^ x).rotate_left(5).wrapping_add(x.count_ones());
        let high = ((u64::from(x) * u64::from(y)) >> 32) as u32;
        x ^= high.wrapping_add(y >> 7).wrapping_add(f.to_bits());
        // 2^-26: the upper 24 bits of the integer are a quarter at most.
        f = ((x >> 8) as f32).mul_add(f32::from_bits(0x3280_0000), 2.95 * (-f).mul_add(f, f));
    }
    u64::from(f.to_bits()) << 32 | u64::from(x ^ y)
}

/// The sums that each warp of tensor work ends with, as bits: tile after tile, row after row. The same
/// for any number of rounds, because a round takes away what it adds.
pub fn tensor(work: Work) -> Vec<u32> {
    let Some(shape) = work.shape() else {
        return Vec::new();
    };
    let mut sums = Vec::with_capacity((A * shape.tiles * ROWS * shape.columns) as usize);
    for i in 0..A {
        for j in 0..shape.tiles {
            for row in 0..ROWS {
                for column in 0..shape.columns {
                    let product = |k| a(i, row, k) * b(j, k, column);
                    let sum: i32 = (0..shape.depth).map(product).sum();
                    sums.push(match shape.is_integer {
                        true => sum as u32,
                        // A zero of either sign would be right; a sum of them that rounds to nearest
                        // is the positive one.
                        false => (sum as f32).to_bits(),
                    });
                }
            }
        }
    }
    sums
}

/// Element of the matrix A number `i`, -2 to 2.
fn a(i: i32, row: i32, k: i32) -> i32 {
    (row * 3 + k * 5 + i * 7 + row * k * (k + i + 1)) % 5 - 2
}

/// Element of the matrix B number `j`, -3 to 3.
fn b(j: i32, k: i32, column: i32) -> i32 {
    (k * 2 + column * 3 + j * 5 + k * column * (k + j + 1)) % 7 - 3
}

/// Operations of one warp in `rounds` rounds of tensor work.
pub fn operations(work: Work, rounds: u32) -> f64 {
    let Some(shape) = work.shape() else {
        return 0.0;
    };
    // A round has both matrices A with each B, and the same again to take it away; each twice, because
    // they change places. At the end there is half of a half.
    let products = f64::from(rounds) * 4.0 + 1.0;
    let one = 2.0 * f64::from(ROWS * shape.columns * shape.depth);
    products * f64::from(A * shape.tiles) * one
}

/// The same answers with one bit wrong: a kernel that does not see it sees nothing.
pub fn spoilt<T: Copy + std::ops::BitXor<Output = T> + From<u8>>(answers: &[T]) -> Vec<T> {
    let mut spoilt = answers.to_vec();
    if let Some(first) = spoilt.first_mut() {
        *first = *first ^ T::from(1);
    }
    spoilt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_is_different_in_every_thread_however_long_it_goes_on() {
        let answers = arithmetic(4_096);
        let integers: std::collections::BTreeSet<u32> =
            answers.iter().map(|it| *it as u32).collect();
        let floats: std::collections::BTreeSet<u32> =
            answers.iter().map(|it| (it >> 32) as u32).collect();
        assert_eq!(answers.len(), 512);
        assert_eq!(integers.len(), 512);
        assert_eq!(floats.len(), 512);
        for bits in floats {
            let value = f32::from_bits(bits);
            assert!((0.03..0.99).contains(&value), "{value}");
        }
        // Worked out by another program, with fractions that are rounded by hand.
        assert_eq!(arithmetic(100)[3], 0x3f14_a6a2_a62b_d533);
        assert_eq!(arithmetic(1_000)[511], 0x3ef4_6982_13f6_2c08);
    }

    #[test]
    fn tensor_sums_are_small_whole_numbers_and_differ_from_place_to_place() {
        for work in Work::ALL.into_iter().filter(|it| it.shape().is_some()) {
            let sums = tensor(work);
            assert_eq!(sums.len(), 2_048, "{work:?}");
            let values: std::collections::BTreeSet<u32> = sums.iter().copied().collect();
            assert!(values.len() > 40, "{work:?}: {}", values.len());
            let shape = work.shape().expect("it is tensor work");
            for bits in sums {
                let value = match shape.is_integer {
                    true => f64::from(bits as i32),
                    false => f64::from(f32::from_bits(bits)),
                };
                // fp8 keeps 13 bits of a sum on some chips.
                assert!(value.fract() == 0.0 && value.abs() * 2.0 < 4_096.0);
            }
        }
    }

    #[test]
    fn a_spoilt_answer_is_wrong_in_one_place() {
        let answers = tensor(Work::Fp16);
        let spoilt = spoilt(&answers);
        let differ = answers.iter().zip(&spoilt).filter(|(a, b)| a != b);
        assert_eq!(differ.count(), 1);
    }
}
