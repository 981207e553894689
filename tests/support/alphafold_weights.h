// Files of AlphaFold with small weights of golden values: ../shared/reference/folding.md, section (c), G36 and G38.
//
//   const std::string path = folder.write("params.npz", test::alphafold_npz(test::alphafold_golden_shapes(true)));
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::test {

/// Sizes of the tensors of a file, by their names, sorted as text.
using NamedShapes = std::map<std::string, std::vector<int64_t>>;

/// Returns the tensors of model_3_ptm of these tests, or with templates those of model_1_ptm.
NamedShapes alphafold_golden_shapes(bool templates);

/// Returns the bytes of an .npz file in fp64: element n of the t-th tensor is .2 sin(.7 n + t), plus 1 in those called
/// `scale`.
std::string alphafold_npz(const NamedShapes& shapes);

}  // namespace colossal::test
