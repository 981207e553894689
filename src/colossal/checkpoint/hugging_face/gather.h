// Gathers whole tensors of a folder from the ranks that hold their parts.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/checkpoint/hugging_face/external_part.h"

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// Parts of one tensor of the folder.
using Parts = std::vector<const ExternalPart*>;

/// Returns the whole tensor in our orientation on the host of rank 0; undefined on other ranks.
/// Communication: every rank of `world` must call. Each primary block is sent to rank 0.
at::Tensor gather(const Parts& parts, const nn::Parameters& parameters, comm::Group& world);

}  // namespace colossal::checkpoint
