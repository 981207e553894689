// One outcome for all ranks: what fails on one of them fails, with the same message, on every one.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "colossal/base/error.h"

namespace colossal::comm {
class Group;
}

namespace colossal::checkpoint {

/// Runs `work`, which must not communicate, on every rank. Returns when it returned everywhere; else throws the Error
/// of the lowest failing rank, on every rank, marked as such (Error::is_on_all_ranks).
///
/// Communication: one all_reduce of 8 bytes; when a rank failed, two broadcasts that carry its message. Tensors on
///                `device`.
void agree(comm::Group& world, at::Device device, const std::function<void()>& work);

/// What agree() would throw, if anything, returned on every rank. Communication: that of agree().
std::optional<Error> agreed_error(comm::Group& world, at::Device device, const std::function<void()>& work);

/// The text of rank `root`, on every rank; all must call. Communication: two broadcasts, on `device`: of 8 bytes, and
/// of the text.
std::string broadcast_text(comm::Group& world, at::Device device, int root, const std::string& text);

}  // namespace colossal::checkpoint
