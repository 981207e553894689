// A run stores the prompts, answers and scores of each step. This header has these records and their bytes in a file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "colossal/align/rewards/scorer.h"

namespace colossal::align {

/// A prompt of a step.
struct RolloutPrompt {
  int64_t index = 0;           ///< its place among the prompts of the step, the same in every layout
  std::vector<int64_t> ids{};  ///< tokens that the model reads; at least one
  std::string line{};          ///< the line of the data, a JSON object
  bool operator==(const RolloutPrompt&) const = default;
};

/// An answer that was drawn.
struct RolloutAnswer {
  int64_t prompt = 0, number = 0;  ///< RolloutPrompt::index; which of the answers to it
  int64_t version = 0;             ///< number of updates that the weights had when they drew it
  std::string finish_reason{};     ///< "stop": an end token was drawn; "length": the limit of tokens was reached
  std::vector<int64_t> ids{};      ///< tokens that were drawn, with the end token
  /// Log-probability of each token in the distribution that it was drawn from: softmax(logits / temperature).
  std::vector<double> log_probabilities{};
};

/// The score of an answer.
struct RolloutScore {
  int64_t prompt = 0, number = 0;  ///< RolloutAnswer::prompt and number
  Score score{};
};

/// A prompt in a file.
struct PromptRecord {
  std::string draws;  ///< RolloutDigests::draws
  RolloutPrompt prompt;

  /// Returns the digest of everything that the answers depend on: `draws` and the prompt.
  std::string digest() const;
};

/// An answer in a file.
struct AnswerRecord {
  std::string digest;  ///< PromptRecord::digest()
  RolloutAnswer answer;
};

/// A score in a file.
struct ScoreRecord {
  std::string digest;  ///< PromptRecord::digest() of the answer
  std::string scores;  ///< RolloutDigests::scores
  RolloutScore score;
};

/// A record of a file. Files have the index of its kind, so a new kind is the last one.
using RolloutRecord = std::variant<PromptRecord, AnswerRecord, ScoreRecord>;

/// Returns the bytes of a record. Floating point numbers keep all bits, those of NaN too.
std::string bytes_of(const RolloutRecord& record);

/// Returns the record with these bytes; nothing if they are not one.
std::optional<RolloutRecord> record_of(std::string_view bytes);

}  // namespace colossal::align
