// [parallel] tensor: which mode of tensor parallelism, over how many ranks, laid out along which axes. Needs no
// LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"

namespace colossal::parallel {

/// [parallel] tensor
struct TensorConfig {
  int64_t size = 1;
  std::string mode = "1d";
  int64_t depth = 1;
  bool keep_gathered = false;
  void fields(Fields& f);
};

/// The axes that a mesh needs for `config`, outermost first, to stand behind the batch axes; their sizes multiply to
/// config.size.
/// Errors ("parallel"): a size that the mode cannot be made of, with the nearest that it can.
std::vector<comm::Mesh::Axis> tensor_axes(const TensorConfig& config);

/// Ranks among which `config` deals out the rows of a batch.
int64_t batch_parts(const TensorConfig& config);

/// Errors ("2d", ...): a hidden size that does not divide by the ranks that split it, a batch (0: none known yet) that
/// does not divide by batch_parts(). Heads, ffn and vocabulary always fit: they are padded. No communication.
void check_sizes(const TensorConfig& config, int64_t hidden, int64_t batch);

}  // namespace colossal::parallel
