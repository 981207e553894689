// Text that is read from the disk and encoded while a model trains on it. Files of JSON lines may have any size,
// because they are never in memory as a whole.
//
//   const auto web = data::StreamSource::open("web", "web.jsonl.zst", 3), books = ...;
//   data::Batches batches(std::make_unique<data::DocumentStream>(std::vector{web, books}, tokenizer, options), false);
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/streams/encode_ahead.h"
#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/data/texts/corpus.h"
#include "colossal/data/texts/samples.h"
#include "colossal/tensor/replica_rows.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// Options of a DocumentStream.
struct DocumentStreamOptions {
  int64_t batch_size = 0;     ///< global batch size B in rows, of all replicas; a multiple of ranks * micro_batches
  int rank = 0, ranks = 1;    ///< index and number of the replicas that read other rows
  int64_t micro_batches = 1;  ///< number of micro-batches, of each of which a replica reads its part (ReplicaRows)
  int64_t sequence = 0;       ///< tokens S of a row
  Documents documents = Documents::Separate;
  std::optional<Masking> masking{};             ///< masking of tokens; no value = the model predicts the next token
  std::vector<std::string> columns = {"text"};  ///< columns of a record whose texts form its document
  int threads = 1;                              ///< number of threads that parse and encode
  RecordOptions records{};
};

/// A stream of the documents of records, one after the other, each followed by the tokenizer's end token if it has one.
/// Row r has the tokens [r S, r S + S) of the stream. Without masking, its labels are the tokens shifted by one. The
/// tokens depend on the sources, their weights, the columns, the tokenizer and the options of records. They do not
/// depend on ranks, batch sizes, micro-batches or threads.
///
/// Every rank reads and encodes the whole stream and takes its own rows (tensor::ReplicaRows). A position names the
/// record in which a row begins, the number of its tokens before the row, and the number of skipped records. seek()
/// reads the blocks of lines around the position again. The traits identify a source by its name. They identify the
/// tokenizer by a checksum of its vocabulary and of the tokens of a fixed text.
/// Memory: a block of lines of each source (RecordOptions::shuffle_bytes) and 1 MiB of text that is being encoded.
/// Errors: next() throws Error("data", ...) with file and line if data cannot be read (OnError::Refuse), before the
///         batch that needs it. It also throws if two epochs of a source had no text.
class DocumentStream final : public BatchReader {
 public:
  /// The stream shares ownership of the tokenizer and calls its encode() from several threads.
  /// Errors ("data"): a sequence, number of threads or number of columns below 1; the same as
  /// tensor::ReplicaRows::check() and RecordMix.
  DocumentStream(std::vector<StreamSource> sources, std::shared_ptr<const text::Tokenizer> tokenizer,
                 DocumentStreamOptions options);
  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override;
  nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  nlohmann::json traits() const override;
  int64_t samples() const override { return -1; }
  std::vector<std::string> take_notices() override;

 private:
  using Queue = EncodeAhead<std::vector<int64_t>>;
  using Document = Queue::Item;
  void copy_tokens(int64_t first, int64_t count, int64_t* out) const;
  void take_document();

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  DocumentStreamOptions options_;
  tensor::ReplicaRows own_;
  std::shared_ptr<const nlohmann::json> traits_;
  Queue documents_;
  std::deque<Document> taken_;  // documents from which the next rows are made
  int64_t available_ = 0;       // number of tokens in taken_
  int64_t before_ = 0;          // number of tokens at the start of taken_ that earlier rows used
  int64_t row_ = 0;
  int64_t first_epochs_ = 0;  // sum of the sources' epochs at the last document that had tokens
};

/// Checks the first record of each source, unless errors are skipped. A fault that all records have is then reported
/// with the first line, not with the line that a shuffle or a split happens to read first.
/// Errors ("data"): the record lacks a text in one of the columns. The stream reports a damaged record.
void check_first_records(const std::vector<StreamSource>& sources, const DocumentStreamOptions& options);

/// Returns the first `tokens` held-out tokens, split among the sources by their weights. It may return a few more, and
/// fewer if the sources have no more; the corpus is empty if no record is held out. `notices` gets a line for each
/// skipped record, limited as in SkippedRecords.
/// Errors: the same as DocumentStream.
Corpus read_held_out(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                     const DocumentStreamOptions& options, int64_t tokens, std::vector<std::string>& notices);

}  // namespace colossal::data
