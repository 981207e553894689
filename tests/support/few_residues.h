// Tables of seven residue types, A R N D G P Y, for tests of geometry. Other types have no atoms.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/ops/geometry/residue_tables.h"

namespace colossal::test {

/// Returns the tables in fp64 on the CPU. Bounds of distances are 0.
ops::ResidueTables few_residues();
/// Returns the types of letters, [N] int64. Letters: A R N D G P Y.
at::Tensor types_of(const std::string& letters);
/// Returns the slot of 14 of an atom of a letter; throws if the type does not have it.
int64_t slot_of(char letter, const std::string& atom);
/// Returns cos(a n) for n from 0, row by row, in fp64.
at::Tensor cosines(double a, const std::vector<int64_t>& sizes);
/// Returns the sum of x_n sin(n + 1) over all elements in their order.
at::Tensor signature(const at::Tensor& x);

}  // namespace colossal::test
