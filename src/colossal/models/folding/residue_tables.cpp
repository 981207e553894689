#include "colossal/models/folding/residue_tables.h"

#include <ATen/ATen.h>

#include <cstring>

#include "colossal/base/error.h"
#include "colossal/protein/residues.h"
#include "colossal/protein/stereochemistry.h"

namespace colossal::models {
namespace {

/// Returns the numbers of a nested array, in order. Its values are contiguous (protein::Table).
template <class Number, class Nested>
at::Tensor tensor_of(const Nested& nested, at::IntArrayRef sizes, at::ScalarType dtype) {
  static_assert(sizeof(Nested) % sizeof(Number) == 0);
  const at::Tensor values = at::empty(sizes, dtype);
  require(values.nbytes() == sizeof(Nested), "model", "a table of residues must fill its tensor: got ", sizeof(Nested),
          " bytes for ", values.nbytes());
  std::memcpy(values.mutable_data_ptr(), &nested, sizeof(Nested));
  return values;
}

}  // namespace

ops::ResidueTables residue_tables(const at::TensorOptions& options, double tolerance) {
  using namespace protein;
  const ResidueTables& all = protein::residue_tables();
  const Atom14Bounds bounds = atom14_bounds({.tolerance = tolerance});
  const auto numbers = [](const auto& nested, at::IntArrayRef sizes) {
    return tensor_of<double>(nested, sizes, at::kDouble);
  };
  const auto indices = [](const auto& nested, at::IntArrayRef sizes) {
    return tensor_of<int64_t>(nested, sizes, at::kLong);
  };
  const auto flags = [](const auto& nested, at::IntArrayRef sizes) {
    return tensor_of<bool>(nested, sizes, at::kBool).to(at::kDouble);
  };
  const at::Tensor frames = numbers(all.default_frame, {kTableTypes, kRigidGroups, 12});  // rows of R, then t
  const at::Tensor rotations = frames.narrow(2, 0, 9).view({kTableTypes, kRigidGroups, 3, 3});
  return ops::ResidueTables{.group_frames = at::cat({rotations, frames.narrow(2, 9, 3).unsqueeze(-1)}, -1),
                            .group14 = indices(all.atom14_group, {kTableTypes, kAtom14}),
                            .positions14 = numbers(all.atom14_position, {kTableTypes, kAtom14, 3}),
                            .mask14 = flags(all.atom14_exists, {kTableTypes, kAtom14}),
                            .names14 = indices(all.atom14_to_atom37, {kTableTypes, kAtom14}),
                            .slots37 = indices(all.atom37_to_atom14, {kTableTypes, kAtom37}),
                            .mask37 = flags(all.atom37_exists, {kTableTypes, kAtom37}),
                            .chi_atoms = indices(all.chi_atoms, {kTableTypes, 4, 4}),
                            .chi_mask = flags(all.chi_exists, {kTableTypes, 4}),
                            .chi_period = flags(all.chi_is_symmetric, {kTableTypes, 4}),
                            .renamed14 = indices(all.atom14_renamed, {kTableTypes, kAtom14}),
                            .radii14 = numbers(atom14_radii(), {kTableTypes, kAtom14}),
                            .shortest14 = numbers(bounds.lower, {kTableTypes, kAtom14, kAtom14}),
                            .longest14 = numbers(bounds.upper, {kTableTypes, kAtom14, kAtom14})}
      .to(options);
}

}  // namespace colossal::models
