// Chooses the rank that writes a block: one of the ranks that hold it, so that all finish at about the same time.
#pragma once
#include <vector>

#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

struct WrittenBlock {
  const NamedTensor* tensor;
  tensor::LocalBox block;
};

/// Returns the blocks of `state` that the rank at `coordinates` writes. Over all ranks of the mesh, each logical
/// element is written once. If several ranks hold a block, the rank with the fewest bytes so far writes it. So ranks
/// with the same blocks write the same number of bytes, up to one block.
///
/// The result is a function of names, specs, parts and dtypes: all ranks that hold a block agree on its writer without
/// communication. It does not use LocalBox::primary, by which norms count. The first pipeline stage writes tensors of
/// which other stages have copies.
/// Cost: tensors times ranks of a stage. No tensor is read.
std::vector<WrittenBlock> written_blocks(const TrainingState& state, const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::checkpoint
