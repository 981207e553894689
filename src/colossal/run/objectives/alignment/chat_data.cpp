#include "colossal/run/objectives/alignment/chat_data.h"

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/data/chats/chat_stream.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
namespace {

// Rows that are not packed end at a multiple of this, so that few lengths occur.
constexpr int64_t kRowMultiple = 64;

/// Returns the template of data.chat_template, of the tokenizer or of model.from; nothing if there is none. `text` gets
/// its source, unless it is among the files of the tokenizer.
std::optional<text::ChatTemplate> find_template(const Config& config, const ChatKeys& keys, std::string& text) {
  auto found = text::ChatTemplate::find(keys.chat_template, {config.tokenizer()});
  const bool is_of_tokenizer = found && keys.chat_template.empty();
  // Special tokens of another folder would be lost: chats of the run find those of its tokenizer alone.
  if (!found) found = text::ChatTemplate::find("", {config.model.from});
  if (found && !is_of_tokenizer) text = found->source();
  return found;
}

data::ChatStreamOptions options_of(const DataRequest& request, const ChatKeys& keys, data::ChatSamples samples,
                                   int64_t answers) {
  const Config& config = request.config;
  const DataConfig& d = config.data;
  const tensor::ReplicaRows rows = config.replica_rows(request.replica);
  const int64_t parts = 2 * config.parallel.sequence.size * config.parallel.tensor.size;  // parts of a row in a layout
  return {.batch_size = rows.batch_size,
          .rank = static_cast<int>(rows.replica),
          .ranks = static_cast<int>(rows.replicas),
          .micro_batches = rows.micro_batches,
          .rules = {.samples = samples,
                    .sequence = d.sequence,
                    .too_long = data::too_long_of(keys.too_long, "data.too_long"),
                    .answers = answers},
          .packing = keys.packing,
          .row_multiple = std::min(d.sequence, std::lcm(kRowMultiple, parts)),
          .mismatched = samples == data::ChatSamples::Rated,
          .threads = static_cast<int>(d.threads),
          .records = chat_records(config, keys)};
}

}  // namespace

void check_chat_keys(const Config& config, const ChatKeys& keys) {
  const DataConfig& d = config.data;
  check_stream_keys(keys.stream);
  check_unused_data_keys(d, {.records = false});
  require(d.documents == "separate", "data",
          "documents must be separate for chats, which must not attend to one another"
          ": got ",
          d.documents);
}

data::RecordOptions chat_records(const Config& config, const ChatKeys& keys) {
  return {.seed = static_cast<uint64_t>(config.training.seed),
          .shuffle = keys.stream.shuffle_bytes > 0,
          .shuffle_bytes = keys.stream.shuffle_bytes,
          .max_line_bytes = config.data.max_line_bytes,
          .held_out = config.data.held_out,
          .part = data::Part::Training,
          .on_error = on_error_of(config.data)};
}

ChatSources open_chat_sources(const DataRequest& request, const ChatKeys& keys, OpenedData& opened) {
  const Config& config = request.config;
  const DataConfig& d = config.data;
  require(!keys.stream.sources.empty() || reads_records(d), "data",
          "the objective alignment reads chats and prompts from JSON lines or Parquet: got data.path = ", d.path,
          "; name a .jsonl or .parquet file, or a folder of them, with --data.path=PATH");
  std::optional<text::ChatTemplate> chat_template = find_template(config, keys, opened.chat_template);
  const std::string folder = text::folder_of_tokenizer(config.tokenizer());
  const auto encoder = std::make_shared<const data::ChatEncoder>(
      request.tokenizer, std::move(chat_template),
      data::ChatEncoderOptions{.answers = data::answers_of(keys.answers, "data.answers"),
                               .end_ids = text::end_ids(folder, *request.tokenizer),
                               .vocabulary = request.shape.vocabulary});
  ChatSources chats{sources_of(d, keys.stream), encoder};
  opened.encode_prompt = [encoder](const std::string& prompt) { return encoder->encode_prompt(prompt); };
  for (const data::StreamSource& source : chats.sources)
    if (source.left_out) opened.notices.push_back(*source.left_out);
  return chats;
}

OpenedData open_chats(const DataRequest& request, const ChatKeys& keys, data::ChatSamples samples, int64_t answers) {
  const Config& config = request.config;
  const DataConfig& d = config.data;
  OpenedData data;
  const auto [sources, encoder] = open_chat_sources(request, keys, data);
  const data::ChatStreamOptions options = options_of(request, keys, samples, answers);
  data.end_ids = data::check_first_chats(sources, *encoder, options, data.notices);
  if (evaluates(config) && d.held_out > 0) {
    data.held_out = data::read_held_out_chats(
        sources, *encoder, options, config.training.evaluate_batches * config.training.batch_size, data.notices);
    require(data.held_out->count() > 0, "data",
            "the held-out part must hold a chat: got none, because the data are too "
            "few for data.held_out = ",
            d.held_out, "; add chats, raise data.held_out, or set data.held_out = 0 or training.evaluate_batches = 0");
  }
  data.stream = std::make_unique<data::ChatStream>(sources, encoder, options);
  return data;
}

}  // namespace colossal::run
