// Objectives of models with an encoder and a decoder: the target of a pair of texts, and hidden spans of a text.
#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/data/texts/corrupted_spans.h"
#include "colossal/data/texts/pair_samples.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/head_objective.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

data::PairSizes pair_sizes_of(const DataConfig& d, const models::Task& task) {
  const int64_t source = task.source_of(d.sequence);
  return {.source = source, .target = d.sequence - source, .start_id = task.start_id};
}

data::SpanOptions spans_of(const TargetKeys& keys) {
  return {.density = keys.noise_density, .mean_span = keys.mean_span};
}

std::vector<int64_t> sentinels_of(const data::PairSizes& sizes, const TargetKeys& keys,
                                  const text::Tokenizer& tokenizer) {
  return data::sentinel_ids(tokenizer, data::span_counts(sizes, spans_of(keys)).spans);
}

/// The objective for pairs of texts. Labels [B, T]: the target tokens for the source of each row.
class Target : public HeadObjective {
 public:
  Target(const Config& config, const models::ModelShape& shape, TargetKeys keys);
  OpenedData open(const DataRequest& request) const override;

 protected:
  const TargetKeys& keys() const { return keys_; }

 private:
  TargetKeys keys_;
};

/// The objective for plain text. Labels [B, T]: the spans of tokens that sentinels hide in the source
/// (data.noise_density).
class SpanCorruption : public Target {
 public:
  using Target::Target;
  OpenedData open(const DataRequest& request) const override;
  Ids ids(const text::Tokenizer& tokenizer) const override;
};

Target::Target(const Config& config, const models::ModelShape& shape, TargetKeys keys)
    : HeadObjective(config, shape), keys_(std::move(keys)) {
  const models::Task task = shape.task();
  check_head(task.reads_text() && task.answers(), "target", "answers a source text", shape);
  refuse_unused_data_keys(keys_, {{"mean_span", keys_.noise_density > 0, "data.noise_density above 0"}});
}

OpenedData Target::open(const DataRequest& request) const {
  const DataConfig& d = request.config.data;
  const text::Tokenizer& tokenizer = *request.tokenizer;
  const models::Task task = request.shape.task();
  require(d.path != "builtin", "data", "a model that ", task.purpose(),
          " reads pairs of texts from one data.path: name a .jsonl, or a file of lines `text<tab>answer`, with "
          "--data.path=PATH");
  const bool has_records = reads_records(d);
  check_unused_data_keys(d, {.records = has_records});
  refuse_unused_data_keys(keys(), {{"target_column", has_records, kRecords}});
  require(d.documents == "separate", "data",
          "documents must be separate for pairs of texts, which must not attend to padding: got ", d.documents);
  const data::TextPairs all = data::read_text_pairs(d.path, {.text_columns = d.text_columns,
                                                             .target_column = keys().target_column,
                                                             .max_line_bytes = d.max_line_bytes,
                                                             .on_error = on_error_of(d)});
  const data::PairSizes sizes = pair_sizes_of(d, task);
  const auto [training, held_out] = all.split(d.held_out);
  OpenedData parts{.training = std::make_shared<data::PairSamples>(training, tokenizer, sizes)};
  if (evaluates(request.config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::PairSamples>(held_out, tokenizer, sizes);
  return parts;
}

OpenedData SpanCorruption::open(const DataRequest& request) const {
  const DataConfig& d = request.config.data;
  require(!reads_records(d), "data",
          "noise_density needs plain text: got records in data.path; name a text file, a folder of "
          "text files or a token file with --data.path=PATH");
  require(d.documents == "joined", "data",
          "documents must be joined with noise_density, because the spans of all documents of a sample share one "
          "target: got ",
          d.documents);
  check_unused_data_keys(d, {});
  refuse_unused_data_keys(keys(), {{"target_column", false, "data.noise_density = 0"}});
  const models::Task task = request.shape.task();
  const data::PairSizes sizes = pair_sizes_of(d, task);
  const std::vector<int64_t> sentinels = sentinels_of(sizes, keys(), *request.tokenizer);
  const auto [training, held_out, notices, is_builtin] = open_plain_text(request);
  OpenedData parts{.training = std::make_shared<data::CorruptedSpans>(training, sizes, spans_of(keys()), sentinels),
                   .notices = notices,
                   .is_builtin = is_builtin};
  if (!evaluates(request.config) || d.held_out == 0) return parts;
  const int64_t sample = data::span_counts(sizes, spans_of(keys())).text;
  require(held_out.size() >= sample, "data", "the held-out part must hold a sample: got ", held_out.size(),
          " tokens, a sample has ", sample, ", because the text is too short for data.held_out = ", d.held_out,
          "; add text, raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0");
  parts.held_out = std::make_shared<data::CorruptedSpans>(held_out, sizes, spans_of(keys()), sentinels);
  return parts;
}

Objective::Ids SpanCorruption::ids(const text::Tokenizer& tokenizer) const {
  const int64_t words = tokenizer.vocabulary_size();
  int64_t ids = words;
  for (const int64_t id : sentinels_of(pair_sizes_of(config().data, shape().task()), keys(), tokenizer))
    ids = std::max(ids, id + 1);
  return {ids, ids == words ? "" : "the sentinels"};
}

}  // namespace

std::unique_ptr<Objective> make_target(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  const auto keys = tables.data<TargetKeys>();
  if (keys.noise_density > 0) return std::make_unique<SpanCorruption>(config, shape, keys);
  return std::make_unique<Target>(config, shape, keys);
}

}  // namespace colossal::run
