#include "colossal/data/texts/corrupted_spans.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::data {
namespace {

SpanCounts counts_of(int64_t text, const SpanOptions& options) {
  const auto rounded = [](double count) { return static_cast<int64_t>(std::llround(count)); };
  const int64_t hidden = std::clamp<int64_t>(rounded(options.density * static_cast<double>(text)), 1, text - 1);
  const int64_t spans = rounded(static_cast<double>(hidden) / options.mean_span);
  return {text, hidden, std::clamp<int64_t>(spans, 1, std::min(hidden, text - hidden))};
}

/// Divides `count` items into `parts` parts that are not empty, and returns their lengths. All divisions are equally
/// probable.
std::vector<int64_t> divided(int64_t count, int64_t parts, uint64_t seed) {
  std::vector<int64_t> borders;  // a border i is between the items i - 1 and i
  for (int64_t i = 1; i < count; ++i) borders.push_back(i);
  for (int64_t k = 0; k + 1 < parts; ++k)  // the first parts - 1 steps of a shuffle draw the borders
    std::swap(borders[k], borders[k + derive_seed(seed, k) % (borders.size() - static_cast<size_t>(k))]);
  borders.resize(static_cast<size_t>(parts - 1));
  std::sort(borders.begin(), borders.end());
  borders.push_back(count);
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < borders.size(); ++i) lengths.push_back(borders[i] - (i == 0 ? 0 : borders[i - 1]));
  return lengths;
}

}  // namespace

SpanCounts span_counts(const PairSizes& sizes, const SpanOptions& options) {
  require(options.density > 0 && options.density < 1, "data", "noise_density must be between 0 and 1: got ",
          options.density);
  require(options.mean_span >= 1, "data", "mean_span must be at least 1: got ", options.mean_span);
  SpanCounts longest{0, 0, 0};
  for (int64_t text = 2; text <= sizes.source + sizes.target; ++text) {
    const SpanCounts counts = counts_of(text, options);
    const bool fits = text - counts.hidden + counts.spans < sizes.source && counts.hidden + counts.spans < sizes.target;
    if (fits) longest = counts;
  }
  require(longest.text > 0, "data", "a row must hold a source and a target of at least 3 tokens: got ", sizes.source,
          " and ", sizes.target, " tokens; change data.sequence or model.source_tokens");
  return longest;
}

std::vector<int64_t> sentinel_ids(const text::Tokenizer& tokenizer, int64_t count) {
  const bool is_bytes = dynamic_cast<const text::ByteTokenizer*>(&tokenizer) != nullptr;
  std::map<std::string, int64_t> spelled;
  for (int64_t id = 0; id < tokenizer.vocabulary_size() && !is_bytes; ++id)
    if (std::string spelling = tokenizer.spelling(id); spelling.starts_with("<extra_id_"))
      spelled.emplace(std::move(spelling), id);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    const auto found = spelled.find(concat("<extra_id_", i, ">"));
    require(is_bytes || found != spelled.end(), "data", "the tokenizer must have a sentinel for each of the ", count,
            " spans of a sample: got no <extra_id_", i, ">; ",
            spelled.empty() ? "use a tokenizer.json that has them, or bytes"
                            : "lower data.sequence, or raise data.mean_span");
    ids.push_back(is_bytes ? tokenizer.vocabulary_size() + i : found->second);
  }
  return ids;
}

CorruptedSpans::CorruptedSpans(Corpus corpus, const PairSizes& sizes, const SpanOptions& options,
                               std::vector<int64_t> sentinels)
    : corpus_(std::move(corpus)),
      sizes_(sizes),
      options_(options),
      counts_(span_counts(sizes, options)),
      sentinels_(std::move(sentinels)) {
  require(corpus_.end_id() >= 0, "data", "span corruption needs a tokenizer with an end token");
  require(static_cast<int64_t>(sentinels_.size()) >= counts_.spans, "data", "there must be ", counts_.spans,
          " sentinels, one for each span: got ", sentinels_.size());
  require(count() > 0, "data", "the data is shorter than one sample: it has ", corpus_.size(), " tokens, a sample has ",
          counts_.text, "; name more text in data.path, or lower data.sequence or data.held_out");
}

void CorruptedSpans::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  std::vector<int64_t> ids(static_cast<size_t>(counts_.text));
  corpus_.read(index * counts_.text, counts_.text, ids.data());
  const std::vector<int64_t> visible = divided(counts_.text - counts_.hidden, counts_.spans, derive_seed(seed, 0)),
                             hidden = divided(counts_.hidden, counts_.spans, derive_seed(seed, 1));
  std::vector<int32_t> source, answer;
  auto next = ids.begin();
  for (size_t span = 0; span < hidden.size(); ++span) {
    source.insert(source.end(), next, next + visible[span]);
    next += visible[span];
    source.push_back(static_cast<int32_t>(sentinels_[span]));
    answer.push_back(static_cast<int32_t>(sentinels_[span]));
    answer.insert(answer.end(), next, next + hidden[span]);
    next += hidden[span];
  }
  source.push_back(static_cast<int32_t>(corpus_.end_id()));
  answer.push_back(static_cast<int32_t>(corpus_.end_id()));
  fill_pair_row(source, answer, sizes_, batch, row);
}

nlohmann::json CorruptedSpans::traits() const {
  nlohmann::json traits = corpus_.traits();
  traits.update({{"source", sizes_.source},
                 {"target", sizes_.target},
                 {"start_id", sizes_.start_id},
                 {"spans", {options_.density, options_.mean_span}},
                 {"sentinels", sentinels_}});
  return traits;
}

}  // namespace colossal::data
