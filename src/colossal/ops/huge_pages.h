// Memory for weights that are read from beginning to end. Reading them in small pages costs a TLB miss for each, and
// writing them for the first time a page fault for each.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns a new tensor on the CPU without values, in huge pages if the system has them and the tensor fills one. The
/// rest of its last huge page is in small pages. The memory is 64-byte aligned.
at::Tensor empty_in_huge_pages(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace colossal::ops
