// The facts of an architecture that do not depend on how it is trained: its inputs, the text it can write, and its
// default objective, which a run uses if its config names no other (run/objective.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/shape.h"

namespace colossal::models {

/// The input of a model.
enum class Reads {
  Tokens,  ///< text: ids [B, S]
  Images,  ///< images [B, channels, side, side]
  Fields,  ///< its own fields, without a tokenizer or a vocabulary
};

/// What a model can write token by token, whichever objective has trained it.
enum class Writes {
  Continuation,  ///< the continuation of a text
  Answer,        ///< an answer to a source text, which the model reads first
  Nothing,
  Scores,  ///< no text but numbers: the model would continue text with another head (ModelShape::outputs)
};

/// The inputs, outputs and default objective of a model.
struct Task {
  Reads reads = Reads::Tokens;
  Writes writes = Writes::Continuation;
  /// Name of the default objective; empty = the model is part of others, and is not trained alone
  std::string objective = "next-token";
  /// Number of classes of a head that classifies whole samples; 0 = the head predicts tokens
  int64_t classes = 0;
  std::vector<std::string> class_names{};  ///< one name per class; empty = no names
  int64_t channels = 0, side = 0;          ///< image channels and side in pixels; 0 unless the model reads images
  /// Tokens of a row that the encoder reads, for a model that answers; 0 = half
  int64_t source_tokens = 0;
  int64_t start_id = 0;  ///< token id that the decoder reads before the answer, for a model that answers

  bool reads_text() const { return reads == Reads::Tokens; }
  bool continues() const { return writes == Writes::Continuation; }
  bool answers() const { return writes == Writes::Answer; }
  bool generates() const { return continues() || answers(); }
  bool scores() const { return writes == Writes::Scores; }
  /// Returns the number of source tokens of a row of `tokens` tokens.
  int64_t source_of(int64_t tokens) const { return source_tokens > 0 ? source_tokens : tokens / 2; }
  /// Returns the number of labels of a row of `tokens` tokens.
  int64_t labels_of(int64_t tokens) const { return classes > 0 ? 1 : answers() ? tokens - source_of(tokens) : tokens; }
  /// Returns a description of what the model does, for use after "which": "continues text".
  const char* purpose() const;
};

}  // namespace colossal::models
