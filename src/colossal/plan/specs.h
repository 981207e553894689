// How a tensor is divided over the axes of a mesh: for each dimension no axis, one axis, or several.
//
//   const plan::Mesh mesh = plan::parse_mesh("data=2,tensor=4");
//   const plan::Spec spec = plan::parse_spec("[data+tensor, R]", mesh);
//   const bool divides = plan::is_legal(spec, {16, 8}, mesh);  // true: 16 rows over 8 ranks
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::plan {

/// One axis of a mesh of ranks.
struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

/// The axes of a mesh, the outermost first. A plan has at most two.
struct Mesh {
  std::vector<Axis> axes;

  int64_t ranks() const;
  /// Returns the index of the axis with this name, or -1.
  int find(std::string_view name) const;
  bool operator==(const Mesh&) const = default;
};

/// Returns the mesh that "data=2,tensor=4" means. Errors ("plan"): an axis that is not `data` or `tensor`; an axis that
/// is given twice; a size that is not between 1 and 65536.
Mesh parse_mesh(std::string_view text);
/// Returns "data=2,tensor=4".
std::string print_mesh(const Mesh& mesh);

/// For each dimension a set of axes: bit a is set if axis a divides the dimension. If several axes divide a dimension,
/// the first axis of the mesh makes the largest blocks.
using Spec = std::vector<uint8_t>;

/// Returns "[data, R]" or "[data+tensor, R]".
std::string print_spec(const Spec& spec, const Mesh& mesh);
/// Returns the spec that the text means. Errors ("plan"): the text is not a list in brackets; an entry is neither `R`
/// nor axes of the mesh in their order; an axis divides two dimensions.
Spec parse_spec(std::string_view text, const Mesh& mesh);

/// Returns the number of blocks that the axes of `set` make.
int64_t blocks_of(uint8_t set, const Mesh& mesh);
/// Returns the number of distinct blocks of a tensor with this spec.
int64_t blocks_of(const Spec& spec, const Mesh& mesh);

/// Returns true if the spec has an entry for each dimension, each axis divides at most one dimension, and each size is
/// a multiple of the number of its blocks.
bool is_legal(const Spec& spec, const std::vector<int64_t>& shape, const Mesh& mesh);
/// Returns every legal spec of a shape, the whole tensor first. At most (dims + 1)^axes.
std::vector<Spec> legal_specs(const std::vector<int64_t>& shape, const Mesh& mesh);

}  // namespace colossal::plan
