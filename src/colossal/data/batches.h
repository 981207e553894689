// Batches of samples for one data rank, prepared ahead of the training step.
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <vector>

namespace colossal::data {

constexpr int64_t kIgnored = -100;  ///< a label that has no part in the loss

struct BatchOptions {
  int64_t batch_size = 0;   ///< B of all data ranks together; divides by `ranks`
  int rank = 0, ranks = 1;  ///< of the data axis: this one takes rows [rank * B/ranks, (rank + 1) * B/ranks)
  uint64_t seed = 0;
  bool shuffle = true;  ///< false: samples in their own order (evaluation)
  /// The labels of rows behind the first epoch are kIgnored: no sample counts twice (evaluation).
  bool counts_once = false;
  bool pinned = false;  ///< as pinned() makes them, by the thread that prepares them
};

/// Tokens [first, first + size) of a row.
struct TokenRun {
  int64_t first, size;
  bool operator==(const TokenRun&) const = default;
};

/// Some samples, a row each, on the host. Text: int64 [B, S] each. Images: float [B, C, side, side] and labels [B, 1].
struct Batch {
  at::Tensor inputs;     ///< token ids, or images
  at::Tensor labels;     ///< the next token, or the class; kIgnored: not counted
  at::Tensor positions;  ///< within the document, counted from the start of the sample; undefined for images
  at::Tensor documents;  ///< 0, 1, ... within the sample; undefined for images
  /// Whoever reads the batch takes no other ids and labels than these tokens', but counts the labels of whole rows that
  /// are not kIgnored. Samples that find these tokens without the rest of the row may leave the others 0; a label left
  /// out must count exactly where the true one does, so samples that ignore some labels find those of whole rows.
  /// Empty: all
  std::vector<TokenRun> wanted{};
};

/// The same batch in page-locked memory, from which the accelerator of this process copies (non_blocking) while the
/// host goes on. Cost: a copy on the host, and such memory as long as the batch lives and its copies are under way.
/// Errors: of LibTorch, where there is no accelerator.
Batch pinned(const Batch& batch);

/// What a stream of batches is made of. Thread safety: const members may be called from several threads.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t count() const = 0;
  /// An empty batch of that many rows.
  virtual Batch make(int64_t rows) const = 0;
  /// Fills row `row` of `batch` with sample `index`, at least the tokens of batch.wanted, and of the others labels that
  /// count as the true ones do. `seed` is that of this sample in this epoch: all randomness comes from it.
  virtual void fill(int64_t index, uint64_t seed, Batch& batch, int64_t row) const = 0;
  /// An object, by name: what must not change under a position in these samples.
  virtual nlohmann::json traits() const = 0;
};

/// An endless stream of batches of `samples`, n in all.
///
/// Row r of the stream (r = batch * B + row) is sample Order(n, seed, r / n)(r % n): a pure function, so any number of
/// ranks sees the same global batches, and a batch that an epoch cannot fill goes on with the next. So is the seed that
/// the sample is given: of (seed, epoch, sample). A thread of its own keeps two batches ready.
/// Errors: the constructor throws Error("data", ...) when B does not divide; next() rethrows what reading a sample
///         threw.
/// Thread safety: one thread calls the members.
class Batches {
 public:
  Batches(std::shared_ptr<const Samples> samples, BatchOptions options);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  Batch next();
  int64_t samples() const { return count_; }  ///< of an epoch
  /// The batches to come are asked for with these tokens wanted (Batch::wanted): those that a rank takes, where ranks
  /// share the tokens of a row.
  void want(std::vector<TokenRun> tokens);
  /// Goes to batch 0: of evaluation, before each round.
  void rewind() { seek(0); }

  /// {"epoch", "position", "seed"} and the traits of the samples: where the next batch starts, equal on every rank.
  nlohmann::json state() const;
  /// Errors: a state of another seed or of samples with other traits: the message says which.
  void restore(const nlohmann::json& state);

 private:
  Batch make(int64_t first_row) const;
  void seek(int64_t row);
  void produce(std::stop_token stop, int64_t row);

  std::shared_ptr<const Samples> samples_;
  BatchOptions options_;
  std::vector<TokenRun> wanted_;
  int64_t count_;
  int64_t row_ = 0;  // first row of the batch that next() returns
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  std::jthread producer_;  // last: dies first
};

}  // namespace colossal::data
