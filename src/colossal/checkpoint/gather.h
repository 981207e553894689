// Whole tensors of a folder, put together from the ranks that hold their parts.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/checkpoint/external_part.h"

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// The parts that a tensor of the folder is made of.
using Parts = std::vector<const ExternalPart*>;

/// The tensor whole, in our orientation, on rank 0's host; undefined elsewhere.
/// Communication: every rank of `world` must call; each primary block is sent to rank 0.
at::Tensor gather(const Parts& parts, const nn::Parameters& parameters, comm::Group& world);

}  // namespace colossal::checkpoint
