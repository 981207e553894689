// The section [parallel] sequence: the number of ranks that split the tokens of each row, and how their queries reach
// the keys of the other ranks. Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"

namespace colossal::parallel {

/// The section [parallel] sequence.
struct SequenceConfig {
  int64_t size = 1;
  std::string mode = "gather";
  int64_t ulysses = 1;
  int64_t node = 0;
  bool overlap = true;
  void fields(Fields& f);
};

/// Returns the values of SequenceConfig::mode for models that attend over one sequence: "gather", "ulysses", ...
std::vector<std::string> sequence_mode_names();
/// Returns all allowed values: also "dsp", for models that attend over one of two axes at a time, and "axial", for
/// folding models.
std::vector<std::string> all_sequence_mode_names();
/// Returns true if the mode moves the split of hidden states between two axes (nn::AxisSwitch).
bool switches_axes(const SequenceConfig& config);
/// Returns true if the mode cuts the representations of a folding model (nn::AxialRanks).
bool is_axial(const SequenceConfig& config);

/// Returns the axes that a mesh needs for `config`, outermost first. They go between the axes of rows and the axes of
/// the tensor mode. Each axis splits tokens, and their sizes multiply to config.size.
/// Errors ("parallel"): sequence.ulysses that does not divide sequence.size, or that is set for another mode than usp.
///                      sequence.node that does not divide sequence.size, cuts groups of sequence.ulysses, or is set
///                      for a mode without a ring. sequence.overlap = false with another mode than axial.
std::vector<comm::Mesh::Axis> sequence_axes(const SequenceConfig& config);

/// Returns those axes along which keys and values circulate, in mode ring or usp, outermost first. This is one axis,
/// or with sequence.node the axis of the outer ring and the axis of the inner rings.
std::vector<std::string> ring_axes(const SequenceConfig& config);

/// Checks that the mode can split `heads`, the query heads of each rank (nn::HeadSplit, if ranks split them by
/// parallel.tensor). Call it before groups are made; it does not communicate. Errors ("parallel"): as sequence_axes();
/// a number of heads that the mode cannot split.
void check_heads(const SequenceConfig& config, int64_t heads);

/// Checks the length of rows. `shares` is the number of ranks that share matrices and also split the tokens
/// (tensor.sequence). Errors ("parallel"): as sequence_axes(); rows of `tokens` that leave a rank without tokens; with
/// several shares, rows that do not divide by 2 * size * shares, and a mode that switches axes.
void check_sequence(const SequenceConfig& config, int64_t tokens, int64_t shares = 1);

/// Checks an axis of a hidden state with two axes, of `size` elements called `name`, for a mode that switches axes.
/// Errors ("parallel"): fewer of them than ranks.
void check_axis(int64_t ranks, int64_t size, const char* name);

}  // namespace colossal::parallel
