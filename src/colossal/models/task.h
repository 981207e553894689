// The facts of an architecture that do not depend on how it is trained: what it reads, what it can write, and the
// objective that a run takes if its config names no other (run/objective.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/shape.h"

namespace colossal::models {

enum class Reads {
  Tokens,  ///< text: ids [B, S]
  Images,  ///< images [B, channels, side, side]
  Fields,  ///< fields of its own, without a tokenizer or a vocabulary
};

/// The text that a model can write, token by token, whatever objective has trained it.
enum class Writes {
  Continuation,  ///< what follows a text
  Answer,        ///< an answer to a source text, which it reads first
  Nothing,
};

struct Task {
  Reads reads = Reads::Tokens;
  Writes writes = Writes::Continuation;
  std::string objective = "next-token";    ///< name of the default objective
  int64_t classes = 0;                     ///< of a head that classifies whole samples; 0 = its head predicts tokens
  std::vector<std::string> class_names{};  ///< one for each class, or none
  int64_t channels = 0, side = 0;          ///< of Reads::Images
  int64_t source_tokens = 0;               ///< of Writes::Answer: tokens of a row that the encoder reads; 0 = half
  int64_t start_id = 0;                    ///< of Writes::Answer: what the decoder reads before the answer

  bool reads_text() const { return reads == Reads::Tokens; }
  bool continues() const { return writes == Writes::Continuation; }
  bool answers() const { return writes == Writes::Answer; }
  bool generates() const { return writes != Writes::Nothing; }
  /// Returns the source tokens of a row of `tokens`.
  int64_t source_of(int64_t tokens) const { return source_tokens > 0 ? source_tokens : tokens / 2; }
  /// Returns the number of labels of a row of `tokens`.
  int64_t labels_of(int64_t tokens) const { return classes > 0 ? 1 : answers() ? tokens - source_of(tokens) : tokens; }
  /// Returns what the model does, to be put after "which": "continues text".
  const char* purpose() const;
};

}  // namespace colossal::models
