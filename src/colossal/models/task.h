// What a model reads and what is asked of it: that decides which data a run opens, what labels are, and which metrics
// an evaluation has.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/shape.h"

namespace colossal::models {

enum class Reads {
  Tokens,  ///< ids [B, S]
  Images,  ///< [B, channels, side, side]
};

enum class Objective {
  NextToken,    ///< labels [B, S]: the token that follows
  MaskedToken,  ///< labels [B, S]: the token that was hidden, at the places where one was
  Class,        ///< labels [B, 1]: what the whole sample is
};

struct Task {
  Reads reads = Reads::Tokens;
  Objective objective = Objective::NextToken;
  int64_t classes = 0;                     ///< of Objective::Class: labels are below it
  std::vector<std::string> class_names{};  ///< one for each class, or none
  int64_t channels = 0, side = 0;          ///< of Reads::Images
  /// Whether a text can be continued with it, token by token.
  bool generates() const { return objective == Objective::NextToken; }
  /// Whether an evaluation counts how often the most probable answer is the right one. Of the next token it does not:
  /// that would cost the logits of every token, and perplexity says as much.
  bool has_accuracy() const { return objective != Objective::NextToken; }
  /// What it does, behind "which": "continues text".
  const char* purpose() const;
};

/// Errors, of a batch that the model does not have: ids or labels outside the vocabulary, images of other sizes, labels
/// that are no classes ("data"), more tokens than positions ("model"). What the layers are given was checked by this
/// before any communication.
void check_batch(const ModelShape& shape, const at::Tensor& inputs, const at::Tensor& labels);

}  // namespace colossal::models
