// What somebody asks of a model, and what becomes of it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/infer/sampler.h"
#include "colossal/infer/token_constraint.h"

namespace colossal::infer {

struct Request {
  std::vector<int64_t> prompt;     ///< ids, at least one
  int64_t max_tokens = 100;        ///< new ones at most
  std::vector<int64_t> end_ids{};  ///< any of which ends the text, and is no part of it
  SamplingOptions sampling{};
  std::shared_ptr<TokenConstraint> constraint{};  ///< of this request alone; null: any token
};

enum class Ended {
  No,
  AtEnd,        ///< with an end id
  AtLength,     ///< after max_tokens
  AtPositions,  ///< at the model's last position
  Cancelled,
};

}  // namespace colossal::infer
