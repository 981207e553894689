// Text that is read from the disk and encoded while a model trains on it: JSON lines of any size, never all in memory.
//
//   const auto web = data::StreamSource::open("web", "web.jsonl.zst", 3), books = ...;
//   data::Batches batches(std::make_unique<data::DocumentStream>(std::vector{web, books}, tokenizer, options), false);
#pragma once
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/corpus.h"
#include "colossal/data/masked_samples.h"
#include "colossal/data/passed_over.h"
#include "colossal/data/record_mix.h"
#include "colossal/data/text_samples.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

struct DocumentStreamOptions {
  int64_t batch_size = 0;   ///< B of all data ranks together
  int rank = 0, ranks = 1;  ///< this one takes rows [rank * B/ranks, (rank + 1) * B/ranks)
  int64_t sequence = 0;
  Documents documents = Documents::Separate;
  std::optional<Masking> masking{};             ///< none: the next token is predicted
  std::vector<std::string> columns = {"text"};  ///< of a record, whose texts are one document
  int threads = 1;                              ///< that parse and encode
  RecordOptions records{};
};

/// Documents of records, each closed by the tokenizer's end token, one behind the other; row r is tokens [r S, r S + S)
/// of them, its labels those one further on. Which tokens these are follows from the sources, their weights and the
/// options of records alone: not from ranks, batch sizes or threads.
///
/// Every rank reads and encodes all of it and takes its rows. A position is that of the record in which a row begins
/// and how many of its tokens lie before, with the count of what was passed over; going there reads the blocks of lines
/// around it again. Sources are known by their names, the tokenizer by a checksum of its vocabulary and of what it
/// makes of a text.
/// Memory: a block of lines of each source (RecordOptions::shuffle_bytes) and 1 MiB of text that is being encoded.
/// Errors: next() throws Error("data", ...) naming file and line: what cannot be read, with Faults::Refuse, before the
/// batch that needs it; two epochs of a source in which no text was found.
class DocumentStream final : public BatchReader {
 public:
  /// The tokenizer lives as long as this; its encode() is called from several threads.
  DocumentStream(std::vector<StreamSource> sources, std::shared_ptr<const text::Tokenizer> tokenizer,
                 DocumentStreamOptions options);
  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override;
  nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  nlohmann::json traits() const override;
  int64_t samples() const override { return -1; }
  std::vector<std::string> take_notices() override;

 private:
  struct Document {
    MixPosition at;  // before its record
    Record record;
    std::vector<int64_t> tokens;
    std::exception_ptr failure;
    std::vector<std::string> faults;  // what was passed over on the way to it
    int64_t passed_over = 0;          // before these
  };
  void copy_tokens(int64_t first, int64_t count, int64_t* out) const;
  void encode_ahead();
  void encode(Document& document) const;
  void take_document();

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  DocumentStreamOptions options_;
  std::shared_ptr<const nlohmann::json> traits_;
  RecordMix mix_;
  std::deque<Document> encoded_, taken_;  // ahead of the rows; those that the next rows are made of
  int64_t available_ = 0;                 // tokens of taken_
  int64_t before_ = 0;                    // tokens of the first of them that earlier rows had
  int64_t row_ = 0;
  int64_t first_epochs_ = 0;  // sum of the sources' epochs when a document with tokens was last met
  PassedOver passed_over_;
};

/// The first `tokens` held-out tokens or a few more, by the weights of the sources; fewer where they have no more.
/// Errors: as DocumentStream's; nothing is held out.
/// `notices`: gets a line for each record that was passed over.
Corpus read_held_out(const std::vector<StreamSource>& sources, const text::Tokenizer& tokenizer,
                     const DocumentStreamOptions& options, int64_t tokens, std::vector<std::string>& notices);

}  // namespace colossal::data
