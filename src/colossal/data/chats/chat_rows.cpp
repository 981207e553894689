#include "colossal/data/chats/chat_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/data/batch_fields.h"
#include "colossal/data/chats/packing.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/texts/samples.h"

namespace colossal::data {
namespace {

constexpr const char* kTooLongNames[] = {"cut", "drop", "refuse"};

void check_kind(const ChatLine& line, ChatSamples samples) {
  const bool is_answer = line.kind == ChatKind::Answer || line.kind == ChatKind::Text;
  const bool is_pair = line.kind == ChatKind::Pair, is_ranking = line.kind == ChatKind::Ranking;
  const bool fits = samples == ChatSamples::Answers  ? is_answer
                    : samples == ChatSamples::Pairs  ? is_pair
                    : samples == ChatSamples::Ranked ? is_pair || is_ranking
                                                     : line.kind == ChatKind::Rated;
  const char* got = is_answer    ? "a chat or text"
                    : is_pair    ? "a pair (chosen and rejected)"
                    : is_ranking ? "a ranking (prompt and answers)"
                                 : "a rated answer (prompt, completion and label)";
  const char* wanted = samples == ChatSamples::Answers ? "chats, prompts with completions, or texts"
                       : samples == ChatSamples::Pairs ? "pairs (chosen and rejected)"
                       : samples == ChatSamples::Ranked
                           ? "pairs (chosen and rejected) and rankings (prompt and answers)"
                           : "rated answers (prompt, completion and label)";
  require(fits, "data", line.place, ": this method reads ", wanted, ": got ", got,
          "; change alignment.method or the data");
}

/// Returns the index of the first token that counts.
size_t answer_begin(const ChatText& text) {
  return static_cast<size_t>(std::find(text.counts.begin(), text.counts.end(), true) - text.counts.begin());
}

/// Returns the tokens of `prompt` before its answer and those of the answer of `other`.
ChatText mismatched(const ChatText& prompt, const ChatText& other, int64_t sequence) {
  const auto begin = static_cast<std::ptrdiff_t>(answer_begin(prompt));
  const auto from = static_cast<std::ptrdiff_t>(answer_begin(other));
  ChatText text{{prompt.ids.begin(), prompt.ids.begin() + begin}, std::vector<bool>(static_cast<size_t>(begin))};
  text.ids.insert(text.ids.end(), other.ids.begin() + from, other.ids.end());
  text.counts.insert(text.counts.end(), other.counts.begin() + from, other.counts.end());
  const auto size = static_cast<size_t>(std::min(text.size(), sequence));
  text.ids.resize(size);
  text.counts.resize(size);
  return text;
}

void count_loss(int64_t& count, std::vector<std::string>& notices, const std::string& what) {
  int64_t rounded = 1;
  while (rounded < count + 1) rounded *= 10;
  if (++count == rounded) notices.push_back(concat(what, " (", count, " so far)"));
}

}  // namespace

TooLong too_long_of(const std::string& name, const char* option) {
  const auto* found = std::find(std::begin(kTooLongNames), std::end(kTooLongNames), name);
  require(found != std::end(kTooLongNames), "data", option, " must be cut, drop or refuse: got ", printable(name));
  return static_cast<TooLong>(found - kTooLongNames);
}

int64_t ChatText::labels() const {
  return ids.empty() ? 0 : static_cast<int64_t>(std::count(counts.begin() + 1, counts.end(), true));
}

int64_t ChatSample::size() const {
  int64_t size = 0;
  for (const ChatText& text : texts) size += text.size();
  return size;
}

ChatSample fitted(const EncodedChat& chat, const ChatLine& line, const ChatRules& rules) {
  check_kind(line, rules.samples);
  const auto answers = static_cast<int64_t>(chat.texts.size());
  require(rules.samples != ChatSamples::Ranked || answers <= rules.answers, "data", line.place,
          ": a ranking must have at most alignment.answers = ", rules.answers, " answers: got ", answers,
          "; raise alignment.answers");
  ChatSample sample{.margin = line.margin, .is_desirable = line.is_desirable};
  const auto dropped = [&](ChatSample::Loss loss) { return ChatSample{.loss = loss, .tokens = sample.tokens}; };
  for (const LabelledTokens& tokens : chat.texts) {
    const auto size = static_cast<int64_t>(tokens.ids.size());
    sample.tokens = std::max(sample.tokens, size);
    if (size > rules.sequence) {
      require(rules.too_long != TooLong::Refuse, "data", line.place,
              ": a text must have at most data.sequence = ", rules.sequence, " tokens: got ", size,
              "; raise data.sequence or change data.too_long");
      if (rules.too_long == TooLong::Drop) return dropped(ChatSample::Loss::TooLong);
      sample.loss = ChatSample::Loss::Cut;
    }
    const auto kept = static_cast<std::ptrdiff_t>(std::min(size, rules.sequence));
    const LabelledTokens own{{tokens.ids.begin(), tokens.ids.begin() + kept},
                             {tokens.labels.begin(), tokens.labels.begin() + kept}};
    require(own.can_learn() || rules.samples == ChatSamples::Answers, "data", line.place,
            ": no token of the answer is trained, because the prompt must leave room for it in data.sequence = ",
            rules.sequence, " tokens: got ", size, " tokens with the answer; raise data.sequence");
    if (!own.can_learn()) return dropped(ChatSample::Loss::NoLabels);
    ChatText& text = sample.texts.emplace_back();
    text.ids.assign(own.ids.begin(), own.ids.end());
    for (const int64_t label : own.labels) text.counts.push_back(label != kIgnored);
  }
  return sample;
}

ChatSample chat_sample_of(const Record& record, const ChatEncoder& encoder, const ChatRules& rules) {
  if (rules.samples == ChatSamples::Prompts) return prompt_sample_of(record, encoder, rules);
  const ChatLine line = chat_line_of(parse_ordered_json_line(record.line, *record.path, record.number), record.place());
  return fitted(encoder.encode(line), line, rules);
}

std::vector<std::vector<size_t>> pack_samples(const std::vector<ChatSample>& samples, int64_t sequence) {
  std::vector<int64_t> sizes;
  for (const ChatSample& sample : samples) sizes.push_back(sample.size());
  return best_fit(sizes, sequence);
}

std::vector<const ChatText*> texts_of_row(const std::vector<ChatSample>& samples, const std::vector<size_t>& row) {
  std::vector<const ChatText*> texts;
  for (const size_t sample : row) texts.push_back(&samples[sample].texts[0]);
  return texts;
}

void add_mismatched(std::vector<ChatSample>& samples, int64_t sequence) {
  std::vector<ChatText> others;
  for (size_t i = 0; i < samples.size(); ++i) {
    const ChatSample& before = samples[i == 0 ? samples.size() - 1 : i - 1];
    others.push_back(mismatched(samples[i].texts[0], before.texts[0], sequence));
  }
  for (size_t i = 0; i < samples.size(); ++i) samples[i].texts.push_back(std::move(others[i]));
}

tensor::Batch make_chat_batch(int64_t rows, int64_t length, ChatSamples samples, int64_t answers) {
  const auto zeros = [&] { return at::zeros({rows, length}, at::kLong); };
  const auto column = [&](at::ScalarType type) {
    return tensor::Field{at::zeros({rows, 1}, type), {tensor::Dim::Row, tensor::Dim::Other}};
  };
  tensor::Batch batch = text_batch(zeros(), zeros(), zeros(), zeros());
  batch.add("lengths", column(at::kLong));
  const int64_t texts = samples == ChatSamples::Ranked ? answers : 2;
  if (samples != ChatSamples::Answers)
    batch.add("answer_lengths", {at::zeros({rows, texts}, at::kLong), {tensor::Dim::Row, tensor::Dim::Other}, 0});
  if (samples == ChatSamples::Pairs || samples == ChatSamples::Ranked) batch.add("margins", column(at::kFloat));
  if (samples == ChatSamples::Pairs) batch.add("mean_answer_length", column(at::kDouble));
  if (samples == ChatSamples::Rated) batch.add("desirable", column(at::kLong));
  return batch;
}

void fill_chat_row(const std::vector<const ChatText*>& texts, int64_t padding_id, const tensor::Batch& batch,
                   int64_t row) {
  int64_t *ids = row_of(batch, "ids", row), *labels = row_of(batch, "labels", row);
  int64_t *positions = row_of(batch, "positions", row), *documents = row_of(batch, "documents", row);
  const int64_t length = batch.at("ids").size(1);
  int64_t at = 0, document = 0;
  for (const ChatText* text : texts) {
    for (int64_t i = 0; i < text->size(); ++i, ++at) {
      const auto next = static_cast<size_t>(i + 1);
      ids[at] = text->ids[static_cast<size_t>(i)];
      labels[at] = next < text->ids.size() && text->counts[next] ? text->ids[next] : kIgnored;
      positions[at] = i;
      documents[at] = document;
    }
    ++document;
  }
  *row_of(batch, "lengths", row) = at;
  for (int64_t i = 0; at < length; ++i, ++at) {
    ids[at] = padding_id;
    labels[at] = kIgnored;
    positions[at] = i;
    documents[at] = document;
  }
}

double mean_answer_length(const std::vector<ChatSample>& samples) {
  int64_t labels = 0;
  for (const ChatSample& sample : samples) labels += sample.texts.at(0).labels();
  return static_cast<double>(labels) / static_cast<double>(std::max<size_t>(1, samples.size()));
}

void fill_chat_row(const ChatSample& sample, int64_t padding_id, const tensor::Batch& batch, int64_t row,
                   double mean_answer_length) {
  std::vector<const ChatText*> texts;
  for (const ChatText& text : sample.texts) texts.push_back(&text);
  fill_chat_row(texts, padding_id, batch, row);
  if (const at::Tensor lengths = batch.find("answer_lengths"); lengths.defined()) {
    const int64_t length = batch.at("ids").size(1), room = lengths.size(1), part = (length + room - 1) / room;
    if (texts.size() > 1)
      for (int64_t at = sample.size(), i = 0; at < length; ++at, ++i) row_of(batch, "positions", row)[at] = i % part;
    for (size_t text = 0; text < texts.size(); ++text)
      row_of(batch, "answer_lengths", row)[text] = texts[text]->labels();
  }
  if (const at::Tensor mean = batch.find("mean_answer_length"); mean.defined())
    mean.mutable_data_ptr<double>()[row] = mean_answer_length;
  if (const at::Tensor margins = batch.find("margins"); margins.defined())
    margins.mutable_data_ptr<float>()[row] = static_cast<float>(sample.margin);
  if (batch.find("desirable").defined()) *row_of(batch, "desirable", row) = sample.is_desirable ? 1 : 0;
}

void ChatLosses::add(const ChatSample& sample, const std::string& place, const ChatRules& rules) {
  const std::string too_long =
      concat(place, " has ", sample.tokens, " tokens, more than data.sequence = ", rules.sequence);
  switch (sample.loss) {
    case ChatSample::Loss::None:
      return;
    case ChatSample::Loss::Cut:
      return count_loss(cut, notices_, concat("cut: ", too_long));
    case ChatSample::Loss::TooLong:
      return count_loss(dropped, notices_, concat("dropped: ", too_long));
    case ChatSample::Loss::NoLabels:
      return count_loss(unlabelled, notices_,
                        concat("dropped: ", place, " has no token that is trained in its first ", rules.sequence));
  }
}

std::vector<std::string> ChatLosses::take_notices() { return std::exchange(notices_, {}); }

}  // namespace colossal::data
