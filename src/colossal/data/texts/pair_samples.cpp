#include "colossal/data/texts/pair_samples.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/base/text_start.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/streams/unpacked_file.h"
#include "colossal/data/texts/samples.h"

namespace colossal::data {
namespace {

constexpr int64_t kMaxPairFileBytes = int64_t{1} << 30;

using SourceAndTarget = std::pair<std::string, std::string>;

SourceAndTarget pair_of_line(const std::string& line, const std::string& path, int64_t number,
                             const PairOptions& options) {
  if (!is_record_file(path)) {
    const size_t tab = line.find('\t');
    require(tab != std::string::npos, "data", path, ":", number, ": a line must be `text<tab>answer`: got one without ",
            "a tab, of ", line.size(), " bytes");
    return {line.substr(0, tab), line.substr(tab + 1)};
  }
  const auto record = parse_json_line(line, path, number);
  return {text_of_columns(record, options.text_columns, path, number),
          text_of_columns(record, {options.target_column}, path, number)};
}

/// Returns at most `room` tokens of a text. The last one is the end token.
std::vector<int32_t> tokens_of(const std::string& text, const text::Tokenizer& tokenizer, int64_t room) {
  std::vector<int64_t> ids = tokenizer.encode(text);
  ids.resize(std::min<size_t>(ids.size(), room - 1));
  ids.push_back(tokenizer.end_id());
  return {ids.begin(), ids.end()};
}

}  // namespace

TextPairs read_text_pairs(const std::string& path, const PairOptions& options) {
  TextPairs read;
  if (!is_record_file(path) && !is_packed(path)) require_text_file(path, "data");
  std::vector<std::string> columns = options.text_columns;
  columns.push_back(options.target_column);
  const auto lines = RecordLines::open(path, options.max_line_bytes, {}, columns);
  Checksum sum;
  int64_t left_out = 0, bytes = 0;
  for (std::string line; lines->next(line);) {
    const int64_t number = lines->position().lines;
    bytes += static_cast<int64_t>(line.size()) + 1;
    require(bytes <= kMaxPairFileBytes, "data", path, " has more than ", kMaxPairFileBytes, " bytes unpacked");
    sum.update(line.data(), line.size());
    sum.update("\n", 1);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (is_blank(line)) continue;
    try {
      require(!lines->is_cut(), "data", path, ":", number, ": a line must have at most ", options.max_line_bytes,
              " bytes; raise data.max_line_bytes");
      auto [source, target] = pair_of_line(line, path, number, options);
      read.sources.push_back(std::move(source));
      read.targets.push_back(std::move(target));
    } catch (const Error&) {
      if (options.on_error == OnError::Refuse) throw;
      ++left_out;
    }
  }
  require(!read.sources.empty(), "data", path, " holds no pairs of texts",
          left_out > 0 ? concat(": ", left_out, " lines were skipped") : "");
  read.fingerprint = concat(read.sources.size(), " pairs, ", sum.hex());
  return read;
}

std::pair<TextPairs, TextPairs> TextPairs::split(double held_out) const {
  TextPairs parts[2];
  for (TextPairs& part : parts) part.fingerprint = fingerprint;
  const uint64_t seed = derive_seed(0, "held out");
  for (size_t i = 0; i < sources.size(); ++i) {
    TextPairs& part = parts[static_cast<double>(derive_seed(seed, i) >> 11) * 0x1p-53 < held_out ? 1 : 0];
    part.sources.push_back(sources[i]);
    part.targets.push_back(targets[i]);
  }
  return {std::move(parts[0]), std::move(parts[1])};
}

PairSamples::PairSamples(const TextPairs& texts, const text::Tokenizer& tokenizer, const PairSizes& sizes)
    : sizes_(sizes), fingerprint_(texts.fingerprint) {
  require(!texts.sources.empty(), "data", "there must be pairs of texts; change data.held_out or name another file");
  require(sizes.source >= 2 && sizes.target >= 2, "data",
          "a row must hold a token and an end token of the source, and of the answer: got ", sizes.source, " and ",
          sizes.target, " tokens; change data.sequence or model.source_tokens");
  require(tokenizer.end_id() >= 0, "data", "pairs of texts need a tokenizer with an end token");
  Checksum sum;
  for (size_t i = 0; i < texts.sources.size(); ++i) {
    const Pair& pair = pairs_.emplace_back(Pair{tokens_of(texts.sources[i], tokenizer, sizes.source),
                                                tokens_of(texts.targets[i], tokenizer, sizes.target)});
    for (const std::vector<int32_t>* ids : {&pair.source, &pair.target}) {
      const auto length = static_cast<int64_t>(ids->size());
      sum.update(&length, sizeof length);
      sum.update(ids->data(), ids->size() * sizeof(int32_t));
    }
  }
  tokens_fingerprint_ = concat(sizes.start_id, " ", sum.hex());
}

void PairSamples::fill(int64_t index, uint64_t /*seed*/, tensor::Batch& batch, int64_t row) const {
  const Pair& pair = pairs_[static_cast<size_t>(index)];
  fill_pair_row(pair.source, pair.target, sizes_, batch, row);
}

tensor::Batch make_pair_batch(int64_t rows, const PairSizes& sizes, bool hides_padding) {
  const auto zeros = [&](int64_t columns) { return at::zeros({rows, columns}, at::kLong); };
  const int64_t all = sizes.source + sizes.target;
  return text_batch(zeros(all), zeros(sizes.target), zeros(all), hides_padding ? zeros(all) : at::Tensor());
}

void fill_pair_row(const std::vector<int32_t>& source, const std::vector<int32_t>& answer, const PairSizes& sizes,
                   tensor::Batch& batch, int64_t row) {
  int64_t *tokens = row_of(batch, "ids", row), *positions = row_of(batch, "positions", row);
  int64_t* documents = batch.find("documents").defined() ? row_of(batch, "documents", row) : nullptr;
  int64_t* labels = row_of(batch, "labels", row);
  const auto source_size = static_cast<int64_t>(source.size()), answer_size = static_cast<int64_t>(answer.size());
  for (int64_t i = 0; i < sizes.source; ++i) {
    tokens[i] = i < source_size ? source[i] : sizes.start_id;
    positions[i] = i;
    if (documents) documents[i] = i < source_size ? 0 : 1;
  }
  for (int64_t i = 0; i < sizes.target; ++i) {
    const int64_t at = sizes.source + i;
    tokens[at] = i > 0 && i < answer_size ? answer[i - 1] : sizes.start_id;
    positions[at] = i;
    if (documents) documents[at] = 0;
    labels[i] = i < answer_size ? answer[i] : kIgnored;
  }
}

nlohmann::json PairSamples::traits() const {
  return {{"texts", fingerprint_},
          {"tokens", tokens_fingerprint_},
          {"source", sizes_.source},
          {"target", sizes_.target},
          {"samples", count()}};
}

}  // namespace colossal::data
