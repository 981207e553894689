#include "colossal/data/streams/document_stream.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"

namespace colossal::data {
namespace {

constexpr size_t kRecordsAhead = 256;
constexpr int64_t kBytesAhead = 1 << 20;

std::vector<int64_t> tokens_of(const Record& record, const std::vector<std::string>& columns,
                               const text::Tokenizer& tokenizer) {
  const nlohmann::json object = parse_json_line(record.line, *record.path, record.number);
  const std::string text = text_of_columns(object, columns, *record.path, record.number);
  try {
    std::vector<int64_t> tokens = tokenizer.encode(text);
    if (tokenizer.end_id() >= 0) tokens.push_back(tokenizer.end_id());
    return tokens;
  } catch (const Error& error) {
    throw Error("data", concat(record.place(), ": ", error.message()));
  }
}

/// Returns a checksum that differs if the tokenizer has other tokens or splits text in another way.
std::string checksum_of(const text::Tokenizer& tokenizer) {
  constexpr const char* kText =
      "The 3 quick  brown\tfoxes' 1,234.5 jumps\n\n  don't_stop; na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd "
      "\xf0\x9f\x99\x82 int main() { return x->y != 0xFF; }";
  Checksum sum;
  for (int64_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string token = tokenizer.spelling(id) + "\n";
    sum.update(token.data(), token.size());
  }
  const std::vector<int64_t> tokens = tokenizer.encode(kText);
  sum.update(tokens.data(), tokens.size() * sizeof(int64_t));
  return "checksum " + sum.hex().substr(0, 16);
}

RecordOptions records_of(const DocumentStreamOptions& options) {
  RecordOptions records = options.records;
  records.columns = options.columns;
  return records;
}

int64_t epochs_of(const MixPosition& position) {
  int64_t epochs = 0;
  for (const auto& [name, source] : position.sources) epochs += source.epoch;
  return epochs;
}

nlohmann::json describe(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                        const DocumentStreamOptions& o) {
  nlohmann::json each = nlohmann::json::object();
  for (const StreamSource& source : sources)
    each[source.name] = {{"weight", source.weight}, {"files", source.contents()}};
  nlohmann::json traits = {{"sources", each},
                           {"columns", o.columns},
                           {"held_out", o.records.held_out},
                           {"shuffle_bytes", o.records.shuffle ? o.records.shuffle_bytes : 0},
                           {"longest_line", o.records.max_line_bytes},
                           {"tokenizer", checksum_of(tokenizer)},
                           {"end_id", tokenizer.end_id()},
                           {"vocabulary", tokenizer.vocabulary_size()},
                           {"sequence", o.sequence},
                           {"seed", o.records.seed}};
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
      mix_(sources, records_of(options_)) {
  const DocumentStreamOptions& o = options_;
  require(o.sequence >= 1 && o.threads >= 1 && !o.columns.empty(), "data",
          "sequence, threads and the number of columns must be at least 1: got ", o.sequence, ", ", o.threads, ", ",
          o.columns.size());
  own_.check();
}

void DocumentStream::encode(Document& document) const {
  try {
    document.tokens = tokens_of(document.record, options_.columns, *tokenizer_);
  } catch (const Error& error) {
    if (options_.records.on_error == OnError::Skip) {
      document.faults.push_back(error.message());
    } else {
      document.failure = std::make_exception_ptr(
          Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\"")));
    }
  } catch (...) {
    document.failure = std::current_exception();
  }
  document.record.line.clear();
}

/// Reads some records and encodes them on all threads.
void DocumentStream::encode_ahead() {
  for (int64_t bytes = 0; encoded_.size() < kRecordsAhead && bytes < kBytesAhead;) {
    Document document{.at = mix_.position()};
    try {
      document.record = mix_.next();
    } catch (...) {  // kept for the row that needs this record, because earlier rows can still be returned
      document.failure = std::current_exception();
    }
    document.faults = mix_.take_faults();
    bytes += static_cast<int64_t>(document.record.line.size());
    encoded_.push_back(std::move(document));
    if (encoded_.back().failure) break;
  }
  text::for_each_index(encoded_.size(), options_.threads, [&](size_t i) {
    if (!encoded_[i].failure) encode(encoded_[i]);
  });
}

void DocumentStream::take_document() {
  if (encoded_.empty()) encode_ahead();
  Document document = std::move(encoded_.front());
  encoded_.pop_front();
  document.skipped_records = skipped_records_.count();
  for (const std::string& fault : document.faults) skipped_records_.add(fault);
  if (document.failure) std::rethrow_exception(document.failure);
  const int64_t epochs = epochs_of(document.at);
  if (document.tokens.empty()) {
    require(epochs - first_epochs_ <= static_cast<int64_t>(document.at.sources.size()) + 1, "data",
            "whole epochs of the data held no text; ", skipped_records_.count(),
            " lines or files could not be read; the ", "last line was ", document.record.place());
    return;
  }
  first_epochs_ = epochs;
  require(!taken_.empty() || before_ < static_cast<int64_t>(document.tokens.size()), "data",
          "the checkpoint's data position is damaged: token ", before_, " of ", document.record.place(), ", which has ",
          document.tokens.size());
  available_ += static_cast<int64_t>(document.tokens.size());
  taken_.push_back(std::move(document));
}

/// Copies tokens [first, first + count) of taken_ to `out`.
void DocumentStream::copy_tokens(int64_t first, int64_t count, int64_t* out) const {
  for (const Document& document : taken_) {
    const auto size = static_cast<int64_t>(document.tokens.size());
    const int64_t begin = std::min(first, size), copied = std::min(count, size - begin);
    out = std::copy_n(document.tokens.begin() + begin, copied, out);
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
  while (!taken_.empty() && before_ >= static_cast<int64_t>(taken_.front().tokens.size())) {
    const auto size = static_cast<int64_t>(taken_.front().tokens.size());
    before_ -= size;
    available_ -= size;
    taken_.pop_front();
  }
  return batch;
}

nlohmann::json DocumentStream::position() const {
  const bool begun = !taken_.empty();
  const MixPosition at = begun ? taken_.front().at : !encoded_.empty() ? encoded_.front().at : mix_.position();
  return {{"row", row_},
          {"tokens_before", before_},
          {"passed_over", begun ? taken_.front().skipped_records : skipped_records_.count()},
          {"at", at.encode()}};
}

nlohmann::json DocumentStream::traits() const { return *traits_; }

void DocumentStream::seek(const nlohmann::json& position) {
  const int64_t row = position_number(position, "row"), before = position_number(position, "tokens_before");
  const int64_t skipped_records = position_number(position, "passed_over");
  const MixPosition at = MixPosition::decode(position.at("at"));
  mix_.seek(at);
  encoded_.clear();
  taken_.clear();
  available_ = 0;
  before_ = before;
  row_ = row;
  skipped_records_.begin_at(skipped_records);
  first_epochs_ = epochs_of(at);
}

std::vector<std::string> DocumentStream::take_notices() { return skipped_records_.take_notices(); }

void check_first_records(const std::vector<StreamSource>& sources, const DocumentStreamOptions& options) {
  if (options.records.on_error != OnError::Refuse) return;
  for (const StreamSource& source : sources) {
    const std::string& path = source.paths.front();
    const auto lines = RecordLines::open(path, options.records.max_line_bytes, {}, options.columns);
    std::string line;
    for (int64_t number = 1; lines->next(line) && !lines->is_cut(); ++number) {
      if (is_blank(line)) continue;
      nlohmann::json record;
      try {
        record = parse_json_line(line, path, number);
      } catch (const Error&) {
        break;  // the stream reports it, and how to skip it
      }
      text_of_columns(record, options.columns, path, number);
      break;
    }
  }
}

Corpus read_held_out(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                     const DocumentStreamOptions& options, int64_t tokens, std::vector<std::string>& notices) {
  RecordOptions held_out = records_of(options);
  held_out.part = Part::HeldOut;
  held_out.shuffle = false;
  double sum = 0;
  std::map<std::string, const StreamSource*> by_name;  // makes the text independent of the order of `sources`
  for (const StreamSource& source : sources) sum += source.weight, by_name[source.name] = &source;
  std::vector<uint32_t> ids;
  SkippedRecords skipped_records;
  for (const auto& [name, source] : by_name) {
    RecordSource records(source->paths, source->names, held_out);
    const auto share = static_cast<int64_t>(static_cast<double>(tokens) * source->weight / sum) + 1;
    const size_t most = ids.size() + static_cast<size_t>(share);
    while (ids.size() < most && !records.at_end()) {
      try {
        for (const int64_t token : tokens_of(records.next(), options.columns, tokenizer))
          ids.push_back(static_cast<uint32_t>(token));
      } catch (const Error& error) {
        if (held_out.on_error == OnError::Refuse) throw;
        skipped_records.add(error.message());
      }
    }
    for (const std::string& fault : records.take_faults()) skipped_records.add(fault);
  }
  for (const std::string& notice : skipped_records.take_notices()) notices.push_back("held out: " + notice);
  return Corpus::of(std::move(ids), tokenizer.end_id(), tokenizer.vocabulary_size());
}

}  // namespace colossal::data
