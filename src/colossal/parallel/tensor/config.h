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
  bool sequence = false;
  void fields(Fields& f);
};

/// How activations [B, S, features] are cut: each dimension over some mesh axes, the first one outermost.
struct Split {
  std::vector<std::string> batch, sequence, columns;
};

/// "1d", "2d", ...: what TensorConfig::mode may be.
std::vector<std::string> mode_names();

/// The axes that a mesh needs for `config`, outermost first, to stand behind the batch axes; their sizes multiply to
/// config.size.
/// Errors ("parallel"): a size that the mode cannot be made of, with the nearest that it can.
std::vector<comm::Mesh::Axis> tensor_axes(const TensorConfig& config);

/// Ranks among which `config` deals out the rows of a batch.
int64_t batch_parts(const TensorConfig& config);

/// Ranks among which it deals out the tokens of each row.
int64_t sequence_parts(const TensorConfig& config);

/// Ranks among which it deals out attention heads (nn::HeadSplit).
int64_t head_parts(const TensorConfig& config);

/// Errors ("2d", ...): a hidden size that does not divide by the ranks that split it, a batch that does not divide by
/// batch_parts(), a sequence that does not divide by sequence_parts(); 0 where one is not known yet. Heads,
/// ffn and vocabulary always fit: they are padded. No communication.
void check_sizes(const TensorConfig& config, int64_t hidden, int64_t batch, int64_t sequence = 0);

}  // namespace colossal::parallel
