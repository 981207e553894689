// The prompts of a step with their answers and scores, as every rank has them.
//
//   const std::string bytes = bytes_of(groups);          // for other ranks and checkpoints
//   const std::vector<RolloutGroup> same = groups_of(bytes);
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/align/advantages.h"
#include "colossal/align/rollouts/rollout_record.h"

namespace colossal::align {

/// A prompt, and the answers to it in the order of their numbers. `scores` has one for each answer after they were
/// scored, and none before.
struct RolloutGroup {
  RolloutPrompt prompt{};
  std::vector<RolloutAnswer> answers{};
  std::vector<Score> scores{};
};

/// Returns the bytes of records one after another, each after its length.
std::string bytes_of(const std::vector<RolloutRecord>& records);
/// Returns the records of bytes_of(). Errors ("rollouts"): other bytes.
std::vector<RolloutRecord> records_of(std::string_view bytes);

/// Returns the bytes of groups. Floating-point numbers keep all bits.
std::string bytes_of(const std::vector<RolloutGroup>& groups);
/// Returns the groups of bytes_of(). Errors ("rollouts"): other bytes.
std::vector<RolloutGroup> groups_of(std::string_view bytes);

/// Returns the values of the scores.
std::vector<OptionalScore> values_of(const std::vector<Score>& scores);

}  // namespace colossal::align
