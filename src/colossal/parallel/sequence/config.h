// [parallel] sequence: among how many ranks the tokens of each row are dealt out, and how their queries meet the keys
// of the others. Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"

namespace colossal::parallel {

/// [parallel] sequence
struct SequenceConfig {
  int64_t size = 1;
  std::string mode = "gather";
  int64_t ulysses = 1;
  int64_t node = 0;
  void fields(Fields& f);
};

/// "gather", "ulysses", ...: what SequenceConfig::mode may be.
std::vector<std::string> sequence_mode_names();

/// The axes that a mesh needs for `config`, outermost first, to stand between those of rows and those of the tensor
/// mode; each deals out tokens, and their sizes multiply to config.size.
/// Errors ("parallel"): sequence.ulysses that does not divide sequence.size, or beside another mode than usp;
/// sequence.node that does not divide it, cuts groups of sequence.ulysses, or is given to a mode without a ring.
std::vector<comm::Mesh::Axis> sequence_axes(const SequenceConfig& config);

/// The axes of those along which keys and values go round, in mode ring or usp, outermost first: one, or with
/// sequence.node those of the outer and of the inner rings.
std::vector<std::string> ring_axes(const SequenceConfig& config);

/// Errors ("parallel"): those of sequence_axes(); `heads` query heads of each rank (nn::HeadSplit, where ranks split
/// them by parallel.tensor) that the mode cannot deal out. No communication: to be asked before groups are made.
void check_heads(const SequenceConfig& config, int64_t heads);

/// Errors ("parallel"): those of sequence_axes(); rows of `tokens` that have none for some rank; where ranks that share
/// matrices deal out the tokens too, `shares` of them (tensor.sequence), rows that do not divide by 2 * size * shares.
void check_sequence(const SequenceConfig& config, int64_t tokens, int64_t shares = 1);

}  // namespace colossal::parallel
