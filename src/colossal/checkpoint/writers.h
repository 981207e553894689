// Chooses the rank that writes a block: one of the ranks that hold it, so that all finish at about the same time.
#pragma once
#include <vector>

#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

struct WrittenBlock {
  const NamedTensor* tensor;
  tensor::Block block;
};

/// The blocks of `state` that the rank at `place` writes: over all ranks of the mesh each logical element once. A block
/// that several ranks hold goes to the one of them that has least to write so far, so that ranks that hold the same
/// write the same bytes but for one block at most.
///
/// A function of names, specs, parts and dtypes: all ranks that hold a block agree on who writes it, without
/// communication. Not of Block::primary, which norms count by. Copies in other stages of a pipeline are left out: the
/// first stage writes.
/// Cost: tensors times ranks of a stage, no tensor is read.
std::vector<WrittenBlock> written_blocks(const TrainingState& state, const tensor::Place& place);

}  // namespace colossal::checkpoint
