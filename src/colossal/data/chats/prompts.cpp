#include "colossal/data/chats/prompts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>

#include "colossal/base/error.h"
#include "colossal/data/streams/json_lines.h"

namespace colossal::data {
namespace {

using tensor::Dim;

/// Returns the JSON of a line, without what may stand around it: a byte order mark and white space.
std::string bare_json(std::string_view line) {
  const size_t begin = line.find('{');  // it is an object, as prompt_line_of() checks
  return std::string(line.substr(begin, line.find_last_of('}') + 1 - begin));
}

/// Calls rules.check_line. Its errors name the record, if they do not do so themselves.
void check_record(const Record& record, const ChatRules& rules) {
  if (!rules.check_line) return;
  const std::string place = record.place();
  try {
    rules.check_line({parse_json_line(record.line, *record.path, record.number), place});
  } catch (const Error& error) {
    const bool has_place = error.message().find(place) != std::string::npos;
    throw Error("data", has_place ? error.message() : concat(place, ": ", error.message()));
  }
}

/// Returns the first `length` elements of a row.
template <class T>
const T* begin_of_row(const at::Tensor& rows, int64_t row, int64_t length) {
  require(length >= 0 && length <= rows.size(1), "data", "a length must be at most that of the rows, ", rows.size(1),
          ": got ", length, " in row ", row);
  return rows.const_data_ptr<T>() + row * rows.size(1);
}

}  // namespace

ChatSample prompt_sample_of(const Record& record, const ChatEncoder& encoder, const ChatRules& rules) {
  const std::string place = record.place();
  const ChatLine line = prompt_line_of(parse_ordered_json_line(record.line, *record.path, record.number), place);
  const std::vector<int64_t> ids = encoder.encode_prompt(line);
  const auto size = static_cast<int64_t>(ids.size());
  require(size > 0, "data", place, ": a prompt must have a token: got none; write a text into prompt");
  require(size <= rules.sequence - rules.max_tokens, "data", place,
          ": a prompt must leave room for rollout.max_tokens = ", rules.max_tokens,
          " in data.sequence = ", rules.sequence, " tokens: got a prompt of ", size,
          "; raise data.sequence, lower rollout.max_tokens or shorten the prompt");
  check_record(record, rules);
  ChatSample sample{.tokens = size, .line = bare_json(record.line)};
  sample.texts.push_back({{ids.begin(), ids.end()}, std::vector<bool>(ids.size())});
  return sample;
}

tensor::Batch make_prompt_batch(const std::vector<const ChatSample*>& samples, int64_t padding_id) {
  const auto rows = static_cast<int64_t>(samples.size());
  int64_t tokens = 0, bytes = 0;
  for (const ChatSample* sample : samples) {
    tokens = std::max(tokens, sample->size());
    bytes = std::max(bytes, static_cast<int64_t>(sample->line.size()));
  }
  const at::Tensor ids = at::full({rows, tokens}, padding_id, at::kLong), lines = at::zeros({rows, bytes}, at::kByte);
  const at::Tensor lengths = at::zeros({rows, 1}, at::kLong), line_lengths = at::zeros({rows, 1}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const ChatSample& sample = *samples[static_cast<size_t>(row)];
    const std::vector<int32_t>& own = sample.texts.at(0).ids;
    std::copy(own.begin(), own.end(), ids.mutable_data_ptr<int64_t>() + row * tokens);
    std::copy(sample.line.begin(), sample.line.end(), lines.mutable_data_ptr<uint8_t>() + row * bytes);
    lengths.mutable_data_ptr<int64_t>()[row] = sample.size();
    line_lengths.mutable_data_ptr<int64_t>()[row] = static_cast<int64_t>(sample.line.size());
  }
  tensor::Batch batch;
  const auto add = [&](const char* name, const at::Tensor& values, Dim columns) {
    batch.add(name, {values, {Dim::Row, columns}, {}, /*stays_whole=*/true});
  };
  add("ids", ids, Dim::Token);
  add("lengths", lengths, Dim::Other);
  add("lines", lines, Dim::Other);
  add("line_lengths", line_lengths, Dim::Other);
  return batch;
}

std::vector<PromptOfBatch> prompts_of(const tensor::Batch& batch) {
  const auto values = [&](const char* name) { return batch.at(name).cpu().contiguous(); };
  const at::Tensor ids = values("ids"), lengths = values("lengths"), lines = values("lines"),
                   line_lengths = values("line_lengths");
  std::vector<PromptOfBatch> prompts;
  for (int64_t row = 0; row < batch.rows(); ++row) {
    const int64_t tokens = *begin_of_row<int64_t>(lengths, row, 1);
    const int64_t bytes = *begin_of_row<int64_t>(line_lengths, row, 1);
    const auto* own = begin_of_row<int64_t>(ids, row, tokens);
    const auto* line = begin_of_row<uint8_t>(lines, row, bytes);
    prompts.push_back({{own, own + tokens}, {line, line + bytes}});
  }
  return prompts;
}

}  // namespace colossal::data
