// What ranks tell each other outside of the model: one outcome for all of them, sums of numbers, texts.
//
//   comm::agree(world, at::kCPU, [&] { require(file_exists(path), "data", "there is no ", path); });
//   const double tokens = comm::sum(world, own_tokens);
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::comm {

class Group;

// All of these are collective among the ranks of `ranks`. Their tensors are on `device`, those of sum() on the CPU.

/// Runs `work`, which must not communicate, on every rank. Returns when it returned everywhere; else throws the Error
/// of the lowest failing rank, on every rank, marked as such (Error::is_on_all_ranks): what fails on one rank fails,
/// with the same message, on every one.
///
/// Communication: one all_reduce of 8 bytes; when a rank failed, two broadcasts that carry its message.
void agree(Group& ranks, at::Device device, const std::function<void()>& work);

/// What agree() would throw, if anything, returned on every rank. Communication: that of agree().
std::optional<Error> agreed_error(Group& ranks, at::Device device, const std::function<void()>& work);

/// The sum of every rank's value, in fp64, with the same bits on all ranks. Communication: one all_reduce of 8 bytes.
double sum(Group& ranks, double value);

/// The text of rank `root`, on every rank. Communication: two broadcasts: of 8 bytes, and of the text.
std::string broadcast_text(Group& ranks, at::Device device, int root, const std::string& text);

/// Every rank's text, in rank order, on rank `root`; elsewhere nothing. Communication: every other rank sends 8 bytes
/// and its text to `root`, which receives them rank after rank.
std::vector<std::string> gather_text(Group& ranks, at::Device device, int root, const std::string& text);

/// A rank whose text is not that of rank 0.
struct TextDifference {
  int rank = 0;              ///< the lowest such rank
  std::string first, other;  ///< the texts of rank 0 and of `rank`
};

/// Compares the texts of all ranks. Returns nothing if they are equal, else the same difference on every rank.
///
/// Communication: one all_reduce of 16 bytes; if the texts differ also one of 8 bytes and two broadcast_text().
std::optional<TextDifference> find_difference(Group& ranks, at::Device device, const std::string& text);

}  // namespace colossal::comm
