// Opens the chats of a run: records of JSON lines or Parquet, rendered by a chat template, with labels.
//
//   OpenedData data = open_chats(request, tables.data<ChatKeys>(), data::ChatSamples::Answers);
#pragma once
#include <memory>
#include <vector>

#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/chats/chat_rows.h"
#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Refuses keys of [data] that others leave without effect. Errors ("data").
void check_chat_keys(const Config& config, const ChatKeys& keys);

/// The records of [data] and their encoder.
struct ChatSources {
  std::vector<data::StreamSource> sources;
  std::shared_ptr<const data::ChatEncoder> encoder;
};

/// Opens data.sources or data.path, with the template of data.chat_template, of the tokenizer's folder or of
/// model.from. `opened` gets its chat_template and encode_prompt, and a notice about files that are not read.
/// Errors ("data"): no records; the errors of sources_of() and text::ChatTemplate::find().
ChatSources open_chat_sources(const DataRequest& request, const ChatKeys& keys, OpenedData& opened);

/// Returns how records of [data] are read: shuffled, without those that are held out.
data::RecordOptions chat_records(const Config& config, const ChatKeys& keys);

/// Opens chats as rows of data.sequence tokens, or of several texts of at most as many (data::ChatStream). The second
/// text of a rated answer is its mismatched one. `answers`: data::ChatRules::answers. The template is
/// data.chat_template, or that of the tokenizer's folder or of model.from; texts that are no chats need none.
/// Errors ("data"): data.path without records; errors of reading, by file and line; a held-out part without a sample; a
///                  tokenizer with ids outside the model's vocabulary.
OpenedData open_chats(const DataRequest& request, const ChatKeys& keys, data::ChatSamples samples, int64_t answers = 2);

}  // namespace colossal::run
