// The section [parallel] tensor: the mode of tensor parallelism, its number of ranks, and the mesh axes that it uses.
// Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"

namespace colossal::parallel {

/// The section [parallel] tensor.
struct TensorConfig {
  int64_t size = 1;
  std::string mode = "1d";
  int64_t depth = 1;
  bool keep_gathered = false;
  bool sequence = false;
  void fields(Fields& f);
};

/// The mesh axes that split each dimension of activations [B, S, features], the first axis outermost.
struct Split {
  std::vector<std::string> batch, sequence, columns;
};

/// Returns the allowed values of TensorConfig::mode: "1d", "2d", ...
std::vector<std::string> mode_names();

/// Returns the axes that a mesh needs for `config`, outermost first. They follow the batch axes; their sizes multiply
/// to config.size.
/// Errors ("2d", ...): a size that the mode does not support, with the nearest supported one.
/// Errors ("parallel"): no such mode; tensor.depth with another mode than 2.5d, tensor.sequence with another than 1d.
std::vector<comm::Mesh::Axis> tensor_axes(const TensorConfig& config);

/// Returns the number of ranks among which `config` splits the rows of a batch.
int64_t batch_parts(const TensorConfig& config);

/// Returns the number of ranks among which it splits the tokens of each row.
int64_t sequence_parts(const TensorConfig& config);

/// Returns the number of ranks among which it splits attention heads (nn::HeadSplit).
int64_t head_parts(const TensorConfig& config);

/// Checks sizes against the mode; 0 means that a size is not known yet. Heads, ffn and vocabulary always fit, because
/// they are padded. Does not communicate.
/// Errors ("2d", ...): a hidden size that does not divide by the ranks that split it, a batch that does not divide by
///                     batch_parts(), or a sequence that does not divide by sequence_parts().
void check_sizes(const TensorConfig& config, int64_t hidden, int64_t batch, int64_t sequence = 0);

}  // namespace colossal::parallel
