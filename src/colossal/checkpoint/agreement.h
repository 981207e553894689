// One outcome for all ranks: what fails on one of them fails, with the same message, on every one.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// Runs `work`, which must not communicate, on every rank. Returns when it returned everywhere; else throws the Error
/// of the lowest failing rank, on every rank.
///
/// Communication: one all_reduce of 8 bytes; when a rank failed, two broadcasts that carry its message. Tensors on
///                `device`.
void agree(comm::Group& world, at::Device device, const std::function<void()>& work);

}  // namespace colossal::checkpoint
