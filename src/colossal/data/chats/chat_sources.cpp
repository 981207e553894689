// The functions of chat_stream.h: the first records of sources of chats, and those that are held out.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/chats/chat_stream.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/source_records.h"

namespace colossal::data {
namespace {

// Records of a source that are read until one shows how answers end; of prompts all of them.
constexpr int kMaxFirstRecords = 100;

/// Rows in memory.
class HeldOutChats final : public Samples {
 public:
  HeldOutChats(tensor::Batch rows, nlohmann::json traits) : rows_(std::move(rows)), traits_(std::move(traits)) {}
  int64_t count() const override { return rows_.rows(); }
  tensor::Batch make(int64_t rows) const override {
    return rows_.map([&](const tensor::Field& field) {
      std::vector<int64_t> sizes = field.tensor.sizes().vec();
      sizes[0] = rows;
      return at::zeros(sizes, field.tensor.options());
    });
  }
  void fill(int64_t index, uint64_t /*seed*/, tensor::Batch& batch, int64_t row) const override {
    for (const auto& [name, field] : batch.fields()) field.tensor[row].copy_(rows_.at(name)[index]);
  }
  nlohmann::json traits() const override { return traits_; }

 private:
  tensor::Batch rows_;
  nlohmann::json traits_;
};

tensor::Batch rows_of(std::vector<ChatSample> samples, const ChatEncoder& encoder, const ChatStreamOptions& options) {
  const int64_t padding = encoder.padding_id();
  if (options.packs()) {
    const auto rows = pack_samples(samples, options.rules.sequence);
    tensor::Batch batch =
        make_chat_batch(static_cast<int64_t>(rows.size()), options.rules.sequence, options.rules.samples);
    for (size_t row = 0; row < rows.size(); ++row)
      fill_chat_row(texts_of_row(samples, rows[row]), padding, batch, static_cast<int64_t>(row));
    return batch;
  }
  if (options.mismatched) add_mismatched(samples, options.rules.sequence);
  int64_t longest = 1;
  for (const ChatSample& sample : samples) longest = std::max(longest, sample.size());
  tensor::Batch batch = make_chat_batch(static_cast<int64_t>(samples.size()), options.row_length(longest),
                                        options.rules.samples, options.rules.answers);
  const double mean = mean_answer_length(samples);
  for (size_t row = 0; row < samples.size(); ++row)
    fill_chat_row(samples[row], padding, batch, static_cast<int64_t>(row), mean);
  return batch;
}

/// Returns a prompt with an answer, so that its encoding shows how answers end; nothing if it cannot be encoded.
EncodedChat answered(ChatLine line, const ChatEncoder& encoder) {
  line.kind = ChatKind::Answer;
  Dialogue& dialogue = line.dialogues.at(0);
  if (dialogue.has_messages()) {
    dialogue.messages.push_back({{"role", "assistant"}, {"content", "1"}});
    dialogue.uses.push_back(MessageUse::Answer);
  } else {
    dialogue.completion = "1";
  }
  try {
    return encoder.encode(line);
  } catch (const Error&) {
    return {};
  }
}

/// Returns one of the first records as tokens, after all its checks.
EncodedChat first_chat_of(const Record& record, const ChatEncoder& encoder, const ChatRules& rules) {
  const auto json = parse_ordered_json_line(record.line, *record.path, record.number);
  EncodedChat chat;
  if (rules.samples == ChatSamples::Prompts) {
    prompt_sample_of(record, encoder, rules);
    const ChatLine line = prompt_line_of(json, record.place());
    chat = answered(line, encoder);
    chat.appends_end = chat.appends_end && line.dialogues[0].has_messages();
    return chat;
  }
  const ChatLine line = chat_line_of(json, record.place());
  chat = encoder.encode(line);
  fitted(chat, line, rules);
  chat.appends_end = chat.appends_end && line.kind != ChatKind::Text && line.dialogues[0].has_messages();
  return chat;
}

}  // namespace

std::vector<int64_t> check_first_chats(const std::vector<StreamSource>& sources, const ChatEncoder& encoder,
                                       const ChatStreamOptions& options, std::vector<std::string>& notices) {
  const bool reads_prompts = options.rules.samples == ChatSamples::Prompts;
  std::set<int64_t> turn_ends;
  for (const StreamSource& source : sources) {
    EncodedChat shown;
    int read = 0;
    for_first_lines({source}, options.records, [&](const Record& record) {
      try {
        EncodedChat chat = first_chat_of(record, encoder, options.rules);
        if (shown.turn_ends.empty()) shown = std::move(chat);
      } catch (const Error& error) {
        if (options.records.on_error == OnError::Refuse && (read == 0 || reads_prompts))
          throw Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\""));
      }
      return ++read < kMaxFirstRecords && (reads_prompts || shown.turn_ends.empty());
    });
    turn_ends.insert(shown.turn_ends.begin(), shown.turn_ends.end());
    if (shown.appends_end)
      notices.push_back(concat("source ", source.name, ": the chat template writes no end token after an answer, so ",
                               text::description_of(encoder.tokenizer(), encoder.tokenizer().end_id()),
                               reads_prompts ? " ends answers" : " is appended",
                               "; other templates are named with data.chat_template"));
    if (read > 0 && shown.turn_ends.empty())
      notices.push_back(concat(
          "source ", source.name, ": no token ends an answer, so ",
          reads_prompts ? "answers end at the maximum of tokens alone" : "the model does not learn to stop",
          "; name a chat template that writes one with data.chat_template, or use a tokenizer with an end token"));
  }
  return {turn_ends.begin(), turn_ends.end()};
}

std::shared_ptr<const Samples> read_held_out_chats(const std::vector<StreamSource>& sources, const ChatEncoder& encoder,
                                                   const ChatStreamOptions& options, int64_t rows,
                                                   std::vector<std::string>& notices) {
  std::vector<ChatSample> samples;
  ChatLosses losses;
  int64_t size = 0, wanted = 0;  // tokens with packing, else samples
  read_held_out_records(sources, options.records,
                        {.begin =
                             [&](const StreamSource& source, double sum) {
                               const double share = static_cast<double>(rows) * source.weight / sum;
                               const double of_row = options.packs() ? static_cast<double>(options.rules.sequence) : 1;
                               wanted = size + static_cast<int64_t>(std::ceil(share * of_row));
                             },
                         .wants_more = [&] { return size < wanted; },
                         .read =
                             [&](const Record& record) {
                               ChatSample sample = chat_sample_of(record, encoder, options.rules);
                               losses.add(sample, record.place(), options.rules);
                               if (sample.texts.empty()) return;
                               size += options.packs() ? sample.size() : 1;
                               samples.push_back(std::move(sample));
                             }},
                        notices);
  for (const std::string& notice : losses.take_notices()) notices.push_back("held out: " + notice);
  nlohmann::json traits = encoder.traits();
  traits["sequence"] = options.rules.sequence;
  return std::make_shared<HeldOutChats>(rows_of(std::move(samples), encoder, options), std::move(traits));
}

}  // namespace colossal::data
