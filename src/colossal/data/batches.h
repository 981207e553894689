// Batches of samples for one data rank, prepared ahead of the training step.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/data/batch_fields.h"
#include "colossal/tensor/batch.h"

namespace colossal::data {

struct BatchOptions {
  int64_t batch_size = 0;   ///< B of all data ranks together; divides by `ranks`
  int rank = 0, ranks = 1;  ///< of the data axis: this one takes rows [rank * B/ranks, (rank + 1) * B/ranks)
  uint64_t seed = 0;
  bool shuffle = true;  ///< false: samples in their own order (evaluation)
  /// In rows after the first epoch, fields with an ignored value have that value: no sample counts twice (evaluation).
  bool counts_once = false;
  int threads = 1;      ///< that fill rows, where samples are read from the disk
  bool pinned = false;  ///< as pinned() makes them, by the thread that prepares them
};

/// Returns a copy of the batch in page-locked memory, from which the accelerator of this process copies (non_blocking)
/// while the host continues.
/// Cost:   a copy on the host, and page-locked memory until the batch is destroyed and its copies are over.
/// Errors: of LibTorch, if there is no accelerator.
tensor::Batch pinned(const tensor::Batch& batch);

/// What a stream of batches is made of. Thread safety: const members may be called from several threads.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t count() const = 0;
  /// A batch of that many rows with all fields of these samples, for fill().
  virtual tensor::Batch make(int64_t rows) const = 0;
  /// Fills row `row` of `batch`, which make() made, with sample `index`: at least the tokens of batch.wanted, and for
  /// the other tokens labels that count as the true ones do. All randomness comes from `seed`, which belongs to this
  /// sample in this epoch.
  virtual void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const = 0;
  /// An object, by name: what must not change under a position in these samples.
  virtual nlohmann::json traits() const = 0;
  /// What was passed over since the last call, a line each for people.
  virtual std::vector<std::string> take_notices() const { return {}; }
};

/// Batches one after the other, without end: what Batches reads ahead of training.
/// Thread safety: one thread at a time calls the members; traits() and samples() also meanwhile.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// This rank's rows of the next batch, made for these tokens (tensor::Batch::wanted). Errors: those of reading a
  /// sample; the position then stays.
  virtual tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) = 0;
  /// An object: where the next batch starts, equal on every rank.
  virtual nlohmann::json position() const = 0;
  /// Goes there; members that are not of a position are passed over. Errors: one that is damaged.
  virtual void seek(const nlohmann::json& position) = 0;
  /// An object, by name: what must not change under a position.
  virtual nlohmann::json traits() const = 0;
  /// Number of samples in an epoch; -1 = unknown until all data was read.
  virtual int64_t samples() const = 0;
  /// What was passed over since the last call, a line each for people.
  virtual std::vector<std::string> take_notices() { return {}; }
};

/// An endless stream of batches, read ahead of training: a thread of its own keeps two of them ready.
///
/// `samples` has n samples in all. Row r of the stream (r = batch * B + row) is sample Order(n, seed, r / n)(r % n).
/// This is a pure function, so any number of ranks sees the same global batches. A batch that an epoch cannot fill
/// continues with the next epoch. The seed that a sample is given is a pure function too: of (seed, epoch, sample).
/// Errors: the constructor throws Error("data", ...) when B does not divide; next() rethrows what reading a sample
///         threw.
/// Thread safety: one thread calls the members.
class Batches {
 public:
  Batches(std::shared_ptr<const Samples> samples, BatchOptions options);
  Batches(std::unique_ptr<BatchReader> reader, bool pinned);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  tensor::Batch next();
  /// What was passed over on the way to the last batch and those before it, since the last call.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  /// The next take_notices() begins with these: of what was passed over before there were batches.
  void tell(const std::vector<std::string>& notices);
  int64_t samples() const { return reader_->samples(); }  ///< of an epoch; -1: not known
  /// Sets the tokens that the next batches are made for (tensor::Batch::wanted): those that this rank reads if ranks
  /// share the tokens of a row.
  void want(std::vector<tensor::TokenRun> tokens);
  /// Goes to batch 0: of evaluation, before each round.
  void rewind();

  /// The reader's position and traits: of samples {"epoch", "position", "seed"} and theirs; equal on every rank.
  nlohmann::json state() const;
  /// Errors: a state of another seed or of samples with other traits: the message says which.
  void restore(const nlohmann::json& state);

 private:
  struct Ready {
    tensor::Batch batch;
    std::shared_ptr<const nlohmann::json> behind;  // the position of the batch after it
    std::vector<std::string> notices;
  };
  void move_to(const nlohmann::json& position);
  void produce(std::stop_token stop);

  std::unique_ptr<BatchReader> reader_;
  bool pinned_;
  std::shared_ptr<const nlohmann::json> first_, next_;  // positions: of batch 0, and of the one that next() returns
  std::vector<tensor::TokenRun> wanted_;
  std::vector<std::string> notices_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Ready> ready_;
  std::exception_ptr failure_;
  std::jthread producer_;  // last: dies first
};

}  // namespace colossal::data
