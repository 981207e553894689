// Elementwise reduction of several arrays into one, in a fixed order, so that every rank gets the same result.
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "colossal/comm/group.h"

namespace colossal::comm {

/// Errors: throws Error("comm", ...) for dtypes other than f64 f32 bf16 f16 i64 i32 u8 bool.
void check_reducible(at::ScalarType dtype);

/// out[i] <- in[0][i] op in[1][i] op ... op in[num_in-1][i], evaluated from the left.
///
/// bf16 and f16 are added in fp32 and rounded once; a bool sum is an or; integer sums wrap; Max and Min pass NaN on.
/// `out` may be one of the inputs.
/// Cost: memory bound; each input is read once and `out` written once.
void reduce_arrays(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype, Reduce op);

/// The type of the kernels: one per instruction set, picked at run time.
using ReduceArrays = void (*)(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype,
                              Reduce op);
void reduce_arrays_avx2(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype, Reduce op);

}  // namespace colossal::comm
