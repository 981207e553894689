// Exchanges between ranks outside of the model: a common outcome, sums of numbers, texts.
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

// All functions below are collective among the ranks of `ranks`. Their tensors are on `device`; sum() uses the CPU.

/// Runs `work`, which must not communicate, on every rank. Returns if it returned on all ranks. Otherwise every rank
/// throws the Error of the lowest failing rank, marked as thrown on all ranks (Error::is_on_all_ranks). The message
/// names that rank and is the same everywhere.
///
/// Communication: one all_reduce of 8 bytes; if a rank failed, also two broadcasts that carry its message.
void agree(Group& ranks, at::Device device, const std::function<void()>& work);

/// Returns, on every rank, the error that agree() would throw, or nothing if no rank failed. Communication: as
/// agree().
std::optional<Error> agreed_error(Group& ranks, at::Device device, const std::function<void()>& work);

/// Returns the sum of every rank's value, in fp64, with the same bits on all ranks. Communication: one all_reduce of 8
/// bytes.
double sum(Group& ranks, double value);

/// Returns the text of rank `root` on every rank. Communication: two broadcasts, one of 8 bytes and one of the text.
std::string broadcast_text(Group& ranks, at::Device device, int root, const std::string& text);

/// Returns every rank's text, in rank order, on rank `root`; returns an empty vector on other ranks. Communication:
/// every other rank sends 8 bytes and its text to `root`, which receives them rank after rank.
std::vector<std::string> gather_text(Group& ranks, at::Device device, int root, const std::string& text);

/// Returns every rank's text, in rank order, on every rank. Communication: an all_gather of 8 bytes, and one of the
/// longest text.
std::vector<std::string> all_gather_text(Group& ranks, at::Device device, const std::string& text);

/// Describes a rank whose text differs from that of rank 0.
struct TextDifference {
  int rank = 0;              ///< the lowest rank that differs
  std::string first, other;  ///< texts of rank 0 and of `rank`
};

/// Compares the texts of all ranks. Returns nothing if they are equal, else the same difference on every rank.
///
/// Communication: one all_reduce of 16 bytes. If the texts differ, also one all_reduce of 8 bytes and two
/// broadcast_text().
std::optional<TextDifference> find_difference(Group& ranks, at::Device device, const std::string& text);

}  // namespace colossal::comm
