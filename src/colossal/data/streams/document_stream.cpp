#include "colossal/data/streams/document_stream.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/source_records.h"

namespace colossal::data {
namespace {

std::vector<int64_t> tokens_of(const Record& record, const std::vector<std::string>& columns,
                               const text::Tokenizer& tokenizer) {
  const nlohmann::json object = parse_json_line(record.line, *record.path, record.number);
  const std::string text = text_of_columns(object, columns, *record.path, record.number);
  try {
    return tokenizer.encode_document(text);
  } catch (const Error& error) {
    throw Error("data", concat(record.place(), ": ", error.message()));
  }
}

RecordOptions records_of(const DocumentStreamOptions& options) {
  RecordOptions records = options.records;
  records.columns = options.columns;
  return records;
}

nlohmann::json describe(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                        const DocumentStreamOptions& o) {
  nlohmann::json traits = stream_traits(sources, tokenizer, o.records);
  traits["columns"] = o.columns;
  traits["sequence"] = o.sequence;
  if (o.masking) traits["masked"] = {o.masking->share, o.masking->random, o.masking->kept, o.masking->mask_id};
  return traits;
}

}  // namespace

DocumentStream::DocumentStream(std::vector<StreamSource> sources, std::shared_ptr<const text::Tokenizer> tokenizer,
                               DocumentStreamOptions options)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      own_{options_.batch_size, options_.micro_batches, options_.rank, options_.ranks},
      traits_(std::make_shared<nlohmann::json>(describe(sources, *tokenizer_, options_))),
      documents_(RecordMix(sources, records_of(options_)), options_.records.on_error, options_.threads,
                 [columns = options_.columns, shared = tokenizer_](const Record& record) {
                   return tokens_of(record, columns, *shared);
                 }) {
  const DocumentStreamOptions& o = options_;
  require(o.sequence >= 1 && o.threads >= 1 && !o.columns.empty(), "data",
          "sequence, threads and the number of columns must be at least 1: got ", o.sequence, ", ", o.threads, ", ",
          o.columns.size());
  own_.check();
}

void DocumentStream::take_document() {
  Document document = documents_.take();
  const int64_t epochs = document.at.epochs();
  if (document.encoded.empty()) {
    require(epochs - first_epochs_ <= static_cast<int64_t>(document.at.sources.size()) + 1, "data",
            "whole epochs of the data held no text; ", documents_.skipped_records().count(),
            " lines or files could not be read; the ", "last line was ", document.record.place());
    return;
  }
  first_epochs_ = epochs;
  require(!taken_.empty() || before_ < static_cast<int64_t>(document.encoded.size()), "data",
          "the checkpoint's data position is damaged: token ", before_, " of ", document.record.place(), ", which has ",
          document.encoded.size());
  available_ += static_cast<int64_t>(document.encoded.size());
  taken_.push_back(std::move(document));
}

/// Copies tokens [first, first + count) of taken_ to `out`.
void DocumentStream::copy_tokens(int64_t first, int64_t count, int64_t* out) const {
  for (const Document& document : taken_) {
    const auto size = static_cast<int64_t>(document.encoded.size());
    const int64_t begin = std::min(first, size), copied = std::min(count, size - begin);
    out = std::copy_n(document.encoded.begin() + begin, copied, out);
    first -= begin;
    count -= copied;
    if (count == 0) return;
  }
}

tensor::Batch DocumentStream::next(const std::vector<tensor::TokenRun>& wanted) {
  const int64_t sequence = options_.sequence, taken = options_.batch_size * sequence;
  while (available_ - before_ < taken + 1) take_document();
  const int64_t rows = own_.count(), run = own_.of_micro_batch();
  tensor::Batch batch = make_text_batch(rows, sequence, options_.documents);
  batch.wanted = wanted;
  std::vector<int64_t> ids(run * sequence + 1);  // the tokens of consecutive rows, and the last label
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t of_all = own_.global(row), in_run = row % run;
    if (in_run == 0) copy_tokens(before_ + of_all * sequence, run * sequence + 1, ids.data());
    fill_text_row(ids.data() + in_run * sequence, options_.documents, tokenizer_->end_id(), batch, row);
    const uint64_t seed = derive_seed(derive_seed(options_.records.seed, "rows"), static_cast<uint64_t>(row_ + of_all));
    if (options_.masking) hide_tokens(batch, row, seed, tokenizer_->end_id(), *options_.masking);
  }
  row_ += options_.batch_size;
  before_ += taken;
  while (!taken_.empty() && before_ >= static_cast<int64_t>(taken_.front().encoded.size())) {
    const auto size = static_cast<int64_t>(taken_.front().encoded.size());
    before_ -= size;
    available_ -= size;
    taken_.pop_front();
  }
  return batch;
}

nlohmann::json DocumentStream::position() const {
  const bool begun = !taken_.empty();
  const MixPosition at = begun ? taken_.front().at : documents_.position();
  return {{"row", row_},
          {"tokens_before", before_},
          {"passed_over", begun ? taken_.front().skipped_records : documents_.skipped_records().count()},
          {"at", at.encode()}};
}

nlohmann::json DocumentStream::traits() const { return *traits_; }

void DocumentStream::seek(const nlohmann::json& position) {
  const int64_t row = position_number(position, "row"), before = position_number(position, "tokens_before");
  const int64_t skipped_records = position_number(position, "passed_over");
  const MixPosition at = MixPosition::decode(position.at("at"));
  documents_.seek(at, skipped_records);
  taken_.clear();
  available_ = 0;
  before_ = before;
  row_ = row;
  first_epochs_ = at.epochs();
}

std::vector<std::string> DocumentStream::take_notices() { return documents_.skipped_records().take_notices(); }

void check_first_records(const std::vector<StreamSource>& sources, const DocumentStreamOptions& options) {
  if (options.records.on_error != OnError::Refuse) return;
  for_first_lines(sources, records_of(options), [&](const Record& line) {
    nlohmann::json record;
    try {
      record = parse_json_line(line.line, *line.path, line.number);
    } catch (const Error&) {
      return false;  // the stream reports it, and how to skip it
    }
    text_of_columns(record, options.columns, *line.path, line.number);
    return false;
  });
}

Corpus read_held_out(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                     const DocumentStreamOptions& options, int64_t tokens, std::vector<std::string>& notices) {
  std::vector<uint32_t> ids;
  size_t most = 0;
  read_held_out_records(sources, records_of(options),
                        {.begin =
                             [&](const StreamSource& source, double sum) {
                               const auto share =
                                   static_cast<int64_t>(static_cast<double>(tokens) * source.weight / sum) + 1;
                               most = ids.size() + static_cast<size_t>(share);
                             },
                         .wants_more = [&] { return ids.size() < most; },
                         .read =
                             [&](const Record& record) {
                               for (const int64_t token : tokens_of(record, options.columns, tokenizer))
                                 ids.push_back(static_cast<uint32_t>(token));
                             }},
                        notices);
  return Corpus::of(std::move(ids), tokenizer.end_id(), tokenizer.vocabulary_size());
}

}  // namespace colossal::data
