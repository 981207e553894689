// Opens the chats of a run: records of JSON lines or Parquet, rendered by a chat template, with labels.
//
//   OpenedData data = open_chats(request, tables.data<ChatKeys>(), data::ChatSamples::Answers);
#pragma once
#include "colossal/data/chats/chat_rows.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Refuses keys of [data] that others leave without effect. Errors ("data").
void check_chat_keys(const Config& config, const ChatKeys& keys);

/// Opens chats as rows of data.sequence tokens, or of several texts of at most as many (data::ChatStream). The second
/// text of a rated answer is its mismatched one. `answers`: data::ChatRules::answers. The template is
/// data.chat_template, or that of the tokenizer's folder or of model.from; texts that are no chats need none.
/// Errors ("data"): data.path without records; errors of reading, by file and line; a held-out part without a sample; a
///                  tokenizer with ids outside the model's vocabulary.
OpenedData open_chats(const DataRequest& request, const ChatKeys& keys, data::ChatSamples samples, int64_t answers = 2);

}  // namespace colossal::run
