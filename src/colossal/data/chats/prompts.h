// Prompts of rollouts as samples and rows of batches. Each has its tokens and its record, which scorers read.
//
//   const data::ChatRules rules{.samples = data::ChatSamples::Prompts, .sequence = 128, .max_tokens = 12};
//   const data::ChatSample sample = data::prompt_sample_of(record, encoder, rules);
//   const tensor::Batch batch = data::make_prompt_batch({&sample}, encoder.padding_id());
//   data::prompts_of(batch)[0].line;                                // {"prompt": "31415926=", "answer": "11234569"}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/chats/chat_rows.h"

namespace colossal::data {

/// A prompt of a batch.
struct PromptOfBatch {
  std::vector<int64_t> ids{};  ///< tokens up to where the answer begins, at least one
  std::string line{};          ///< the record: a JSON object in one line
  bool operator==(const PromptOfBatch&) const = default;
};

/// Returns the sample of a record: one text with the tokens of its prompt, none of which counts, and the record itself.
/// Of JSON lines that is the text of the line without white space at its ends, so all members keep their spelling.
/// Errors ("data"), beginning with the record's place: those of parse_ordered_json_line(), prompt_line_of() and
///         ChatEncoder::encode_prompt(); a prompt without a token; a prompt that does not leave ChatRules::max_tokens
///         of ChatRules::sequence; those of ChatRules::check_line, which may name the place elsewhere.
ChatSample prompt_sample_of(const Record& record, const ChatEncoder& encoder, const ChatRules& rules);

/// Returns a batch of these samples of prompts, one row each. Its fields stay on the host:
///   ids [B, T]           int64, the tokens, and `padding_id` after them; T is the length of the longest
///   lengths [B, 1]       int64, tokens of the row that are not padding
///   lines [B, L]         uint8, the bytes of the record, and zeros after them; L is the length of the longest
///   line_lengths [B, 1]  int64, bytes of the record
tensor::Batch make_prompt_batch(const std::vector<const ChatSample*>& samples, int64_t padding_id);

/// Returns the prompts of a batch of make_prompt_batch(), in the order of its rows.
/// Errors ("data"): a batch without these fields, or with lengths beyond its rows.
std::vector<PromptOfBatch> prompts_of(const tensor::Batch& batch);

}  // namespace colossal::data
