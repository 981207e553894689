// What a model reads and what is asked of it: that decides which data a run opens, what labels are, and which metrics
// an evaluation has.
#pragma once
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
  Target,       ///< labels [B, T]: the tokens that answer the source of each row, the T behind it
  Class,        ///< labels [B, 1]: what the whole sample is
};

struct Task {
  Reads reads = Reads::Tokens;
  Objective objective = Objective::NextToken;
  int64_t classes = 0;                     ///< of Objective::Class: labels are below it
  std::vector<std::string> class_names{};  ///< one for each class, or none
  int64_t channels = 0, side = 0;          ///< of Reads::Images
  int64_t source_tokens = 0;               ///< of Objective::Target: those of a row that the encoder reads; 0: half
  int64_t start_id = 0;                    ///< of Objective::Target: what the decoder reads in front of the answer
  /// Of a row of `tokens`, those of its source.
  int64_t source_of(int64_t tokens) const { return source_tokens > 0 ? source_tokens : tokens / 2; }
  /// Labels of a sample that has so many tokens.
  int64_t labels_of(int64_t tokens) const {
    return objective == Objective::Class ? 1 : objective == Objective::Target ? tokens - source_of(tokens) : tokens;
  }
  /// Whether a text can be continued or answered with it, token by token.
  bool generates() const { return objective == Objective::NextToken || objective == Objective::Target; }
  /// Whether an evaluation counts how often the most probable answer is the right one. Of a text's tokens it does not:
  /// that would cost the logits of every token, and perplexity says as much.
  bool has_accuracy() const { return !generates(); }
  /// What it does, behind "which": "continues text".
  const char* purpose() const;
};

}  // namespace colossal::models
