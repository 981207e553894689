// Lists the blocks of the tensors of a state that a rank holds, and those that it writes. The value of a tensor may be
// the whole local tensor or a part of it.
#pragma once
#include <vector>

#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

/// Returns the blocks of the logical tensor that the value of `tensor` holds on the rank at `coordinates`.
std::vector<tensor::LocalBox> local_boxes_of(const NamedTensor& tensor, const tensor::MeshCoordinates& coordinates);
/// Returns the elements of `block`, one of local_boxes_of(), as a view of `value`, the loaded content of tensor.value.
at::Tensor at_local_box(const NamedTensor& tensor, const at::Tensor& value, const tensor::MeshCoordinates& coordinates,
                        const tensor::LocalBox& block);

/// A block that this rank writes. Of the ranks that hold it, one writes it, chosen so that all finish at about the same
/// time.
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
