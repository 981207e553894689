// Chats, instructions and preferences that are read from the disk, encoded and packed while a model trains on them.
//
//   const auto chats = data::StreamSource::open("path", "chats.jsonl", 1);
//   const auto encoder = std::make_shared<data::ChatEncoder>(tokenizer, chat_template, data::ChatEncoderOptions{});
//   const data::ChatStreamOptions options{.batch_size = 8, .rules = {.sequence = 1024}};
//   const std::vector<int64_t> turn_ends = data::check_first_chats({chats}, *encoder, options, notices);
//   data::Batches batches(std::make_unique<data::ChatStream>(std::vector{chats}, encoder, options), false);
#pragma once
#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/chats/chat_rows.h"
#include "colossal/data/streams/encode_ahead.h"
#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/tensor/replica_rows.h"

namespace colossal::data {

/// Options of a ChatStream.
struct ChatStreamOptions {
  int64_t batch_size = 0;     ///< global batch size B in rows, of all replicas; a multiple of ranks * micro_batches
  int rank = 0, ranks = 1;    ///< index and number of the replicas that read other rows
  int64_t micro_batches = 1;  ///< number of micro-batches, of each of which a replica reads its part (ReplicaRows)
  ChatRules rules{};
  /// If true, samples of one text share rows of rules.sequence tokens. If false, a row has one sample, and rows end at
  /// the longest of the global batch. Samples of several texts are never packed.
  bool packing = true;
  int64_t row_multiple = 1;  ///< rows that are not packed are padded to a multiple of it, at most to rules.sequence
  /// For ChatSamples::Rated: if true, each row has as its second text the prompt with the answer of the row before it
  /// in the global batch, and the first row that of the last (add_mismatched()).
  bool mismatched = false;
  int threads = 1;          ///< number of threads that parse, render and encode
  RecordOptions records{};  ///< `columns` of Parquet files are all, unless they are named

  /// Returns true if rows are packed.
  bool packs() const { return packing && rules.samples == ChatSamples::Answers; }
  /// Returns the most tokens of a row: rules.sequence for each of its texts.
  int64_t max_row() const { return rules.sequence * (mismatched ? 2 : rules.texts()); }
  /// Returns the length of rows that are not packed, of which the longest has `longest` tokens.
  int64_t row_length(int64_t longest) const {
    const int64_t rounded = (longest + row_multiple - 1) / row_multiple * row_multiple;
    return std::max(longest, std::min(rounded, max_row()));
  }
};

/// A stream of rows of the samples of records, in batches of make_chat_batch(), and of ChatSamples::Prompts in batches
/// of make_prompt_batch().
///
/// Packed rows are made of a window of records: those that take RecordOptions::shuffle_bytes of memory (64 MiB if it is
/// 0). The end of an epoch of the source, or of the slowest of several, also ends a window. Samples are packed by
/// best_fit(). With shuffle, the order of the window's rows is a function of the seed and of the window's place in the
/// stream.
/// The rows depend on the sources, their weights, the encoder and the rules. They do not depend on ranks, batch sizes,
/// micro-batches or threads; only the length of rows that are not packed depends on the batch size.
///
/// Every rank reads and encodes the whole stream and takes its own rows. A position names the first record of the
/// window or of the row, the number of the window's rows before it, and the numbers of records that were skipped, cut
/// and dropped. seek() reads the window again.
/// Memory: a block of lines of each source, and with packing the tokens of two windows, 5 bytes each.
/// Errors: next() throws Error("data", ...) with file and line if a record cannot be read, encoded or used
///         (OnError::Refuse), before the batch that needs it. It also throws if two epochs of a source had no sample.
class ChatStream final : public BatchReader {
 public:
  /// The stream shares ownership of the encoder and calls encode() from several threads.
  /// Errors ("data"): a sequence, number of threads or row_multiple below 1; mismatched rows of other samples; the same
  /// as tensor::ReplicaRows::check() and RecordMix.
  ChatStream(std::vector<StreamSource> sources, std::shared_ptr<const ChatEncoder> encoder, ChatStreamOptions options);
  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override;
  nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  nlohmann::json traits() const override;
  int64_t samples() const override { return -1; }
  std::vector<std::string> take_notices() override;

 private:
  using Queue = EncodeAhead<ChatSample>;
  /// The position of the next batch.
  struct Place {
    int64_t row = 0, taken = 0;                                 // rows before it, in the stream and in its window
    MixPosition at;                                             // the first record of the window, or of the row
    int64_t skipped = 0, cut = 0, dropped = 0, unlabelled = 0;  // numbers of records before `at`
  };
  /// Records whose samples are packed together.
  struct Window {
    Place start{};
    std::vector<ChatSample> samples{};
    std::vector<std::vector<size_t>> rows{};  // samples of each row, after all records were read
    int64_t held_bytes = 0, epoch = -1;       // bytes of its records; epochs that all sources had ended
    std::exception_ptr failure{};             // error of its next record
    std::vector<std::string> notices{};
    bool is_begun() const { return epoch >= 0; }
  };
  Place place_here() const;
  void go_to(const Place& place);
  bool take_sample(ChatSample& sample, int64_t* held_bytes = nullptr);
  void collect_notices(std::vector<std::string>& notices);
  bool ends_window(const Window& window);
  void extend(Window& window);
  void begin_window();
  tensor::Batch packed_batch();
  tensor::Batch single_batch();
  tensor::Batch prompt_rows(const std::vector<ChatSample>& samples) const;
  tensor::Batch labelled_rows(const std::vector<ChatSample>& samples) const;

  std::shared_ptr<const ChatEncoder> encoder_;
  ChatStreamOptions options_;
  tensor::ReplicaRows own_;
  std::shared_ptr<const nlohmann::json> traits_;
  Queue queue_;
  ChatLosses losses_;
  Window window_, ahead_;  // the window of the next row (no rows = not read yet), and the one after it
  Place place_;
  int64_t first_epochs_ = 0;  // sum of the sources' epochs at the last record that gave a sample
  std::vector<std::string> notices_;
};

/// Reads and encodes the first records of each source, so that a fault that all of them have is reported before the
/// first step. Returns the tokens that end answers and are trained, in ascending order; of prompts, those that would
/// end an answer of the same template. `notices` gets a line if the template of a source writes no end token, or no
/// token ends an answer.
/// Errors ("data"), unless records are skipped: those of the first record, and of prompts those of the first 100.
std::vector<int64_t> check_first_chats(const std::vector<StreamSource>& sources, const ChatEncoder& encoder,
                                       const ChatStreamOptions& options, std::vector<std::string>& notices);

/// Returns held-out rows in memory: about the first `rows`, split among the sources by their weights, and fewer if the
/// sources have no more. They are packed as those of a ChatStream without shuffle are, or all have the length of the
/// longest. `notices` gets a line for each record that was skipped, and for those that were cut or dropped.
/// Errors: the same as ChatStream.
std::shared_ptr<const Samples> read_held_out_chats(const std::vector<StreamSource>& sources, const ChatEncoder& encoder,
                                                   const ChatStreamOptions& options, int64_t rows,
                                                   std::vector<std::string>& notices);

}  // namespace colossal::data
