// Opens the prompts of a run that draws answers to them: records of JSON lines or Parquet, rendered by a chat template.
//
//   OpenedData data = open_prompts(request, tables.data<ChatKeys>(), /*prompts=*/16, /*max_tokens=*/12,
//                                  [&](const text::PromptLine& line) { verifiers.check(line); });
//   for (const data::PromptOfBatch& prompt : data::prompts_of(data.stream->next({}))) ...     // 16 prompts
#pragma once
#include <cstdint>
#include <functional>

#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::run {

/// Refuses keys of [data] that have no effect on prompts: those of check_chat_keys(), `answers`, `packing`, `too_long`
/// and `held_out`. Errors ("data"): such a key that differs from its default; held_out may also be 0.
void check_prompt_keys(const Config& config, const ChatKeys& keys);

/// Opens prompts, `prompts` of them in each batch of data::make_prompt_batch(). Every replica reads all of them. There
/// is no held-out part. Of the result, `stream`, `end_ids`, `chat_template`, `encode_prompt` and `notices` are set as
/// open_chats() does; `end_ids` are the tokens that end an answer of the template, or of a text after a prompt.
/// `max_tokens` is the number of tokens that data.sequence leaves for an answer.
///
/// `check_line` is called for each record, for the first 100 of each source before this function returns; null = no
/// check. A record that it refuses with an Error is treated as data.on_error says.
/// Thread safety: the stream calls `check_line` on its own threads, one call at a time. What it uses must live as long
///         as the stream, and no other thread may use it.
/// Errors ("data"): data.path without records; errors of reading, and those of data::prompt_sample_of(), by file and
///         line; a tokenizer with ids outside the model's vocabulary. ("rollout"): `prompts` or `max_tokens` below 1;
///         `max_tokens` that leaves no room for prompts.
OpenedData open_prompts(const DataRequest& request, const ChatKeys& keys, int64_t prompts, int64_t max_tokens,
                        const std::function<void(const text::PromptLine&)>& check_line);

}  // namespace colossal::run
