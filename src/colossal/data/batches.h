// Batches of samples for one replica, prepared ahead of the training step.
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

/// Options of a stream of batches.
struct BatchOptions {
  int64_t batch_size = 0;     ///< global batch size B in rows, of all replicas; a multiple of ranks * micro_batches
  int rank = 0, ranks = 1;    ///< index and number of the replicas that read other rows
  int64_t micro_batches = 1;  ///< number of micro-batches, of each of which a replica reads its part (ReplicaRows)
  uint64_t seed = 0;
  bool shuffle = true;  ///< false = samples in their own order (evaluation)
  /// If true, rows after the first epoch have the ignored value in each field that has one. No sample then counts twice
  /// (evaluation).
  bool counts_once = false;
  int threads = 1;      ///< number of threads that fill rows; above 1 for samples that are read from the disk
  bool pinned = false;  ///< true = the thread that prepares a batch copies it with pinned()
};

/// Returns a copy of the batch in page-locked memory, from which the accelerator of this process copies (non_blocking)
/// while the host continues.
/// Cost:   a copy on the host, and page-locked memory until the batch is destroyed and its copies are complete.
/// Errors: an exception of LibTorch if there is no accelerator.
tensor::Batch pinned(const tensor::Batch& batch);

/// A set of samples from which batches are made. Thread safety: several threads may call const members.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual int64_t count() const = 0;
  /// Returns a batch of `rows` rows that has all fields of these samples, for fill().
  virtual tensor::Batch make(int64_t rows) const = 0;
  /// Fills row `row` of `batch`, which make() returned, with sample `index`. The function writes at least the tokens of
  /// batch.wanted. The labels of other tokens must count exactly where the true ones do. `seed`, which belongs to this
  /// sample in this epoch, is the only source of randomness.
  virtual void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const = 0;
  /// Returns a JSON object of the properties that must be the same whenever a position in these samples is restored.
  virtual nlohmann::json traits() const = 0;
  /// Returns one line for people about each record that was skipped since the last call.
  virtual std::vector<std::string> take_notices() const { return {}; }
};

/// An endless sequence of batches, which a Batches object reads ahead of training.
/// Thread safety: one thread at a time calls the members. Other threads may call traits() and samples() at that time.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Returns this replica's rows of the next batch (tensor::ReplicaRows), made for the tokens `wanted`
  /// (tensor::Batch::wanted). Errors: an error of reading a sample; the position does not change then.
  virtual tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) = 0;
  /// Returns a JSON object of the position at which the next batch starts. It is equal on every rank.
  virtual nlohmann::json position() const = 0;
  /// Moves to a position. Members of the object that are no part of a position are ignored. Errors: the position is
  /// damaged.
  virtual void seek(const nlohmann::json& position) = 0;
  /// Returns a JSON object of the properties that must be the same whenever a position is restored.
  virtual nlohmann::json traits() const = 0;
  /// Returns the number of samples in an epoch; -1 = unknown until all data was read.
  virtual int64_t samples() const = 0;
  /// Returns one line for people about each record that was skipped since the last call.
  virtual std::vector<std::string> take_notices() { return {}; }
};

/// An endless stream of batches. Its own thread reads ahead of training and keeps two batches ready.
///
/// `samples` has n samples in all. Row r of the stream (r = batch * B + row) is sample Order(n, seed, r / n)(r % n).
/// This is a pure function, so any number of ranks sees the same global batches, and any number of micro-batches takes
/// them in the same order. A batch that an epoch cannot fill continues with the next epoch. The seed of a sample is a
/// pure function, too: of (seed, epoch, sample).
/// Errors: the constructor throws the errors of tensor::ReplicaRows::check(). next() rethrows the error of reading a
///         sample.
/// Thread safety: one thread calls the members.
class Batches {
 public:
  Batches(std::shared_ptr<const Samples> samples, BatchOptions options);
  Batches(std::unique_ptr<BatchReader> reader, bool pinned);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  /// Returns this replica's rows of the next batch (tensor::ReplicaRows). Waits if the thread has not finished it.
  tensor::Batch next();
  /// Returns one line for people about each record that was skipped for the batches that next() has returned, since the
  /// last call of this function.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  /// Adds notices to the list that the next take_notices() returns: about records skipped before there were batches.
  void tell(const std::vector<std::string>& notices);
  int64_t samples() const { return reader_->samples(); }  ///< number of samples in an epoch; -1 = unknown
  /// Sets the tokens that the next batches are made for (tensor::Batch::wanted). If ranks split the tokens of a row,
  /// these are the tokens that this rank reads.
  void want(std::vector<tensor::TokenRun> tokens);
  /// Returns to batch 0. An evaluation calls it before each round.
  void rewind();

  /// Returns the reader's position and traits, equal on every rank. For Samples these are {"epoch", "position", "seed"}
  /// and the traits of the samples.
  nlohmann::json state() const;
  /// Moves to a position that state() returned. Errors ("data"): the state has another seed, or is of samples with
  /// other traits (the message names the difference); a damaged position. The position does not change then.
  void restore(const nlohmann::json& state);

 private:
  struct Ready {
    tensor::Batch batch;
    std::shared_ptr<const nlohmann::json> behind;  // the position of the batch after this one
    std::vector<std::string> notices;
  };
  void move_to(const nlohmann::json& position);
  void produce(std::stop_token stop);

  std::unique_ptr<BatchReader> reader_;
  bool pinned_;
  std::shared_ptr<const nlohmann::json> first_, next_;  // the positions of batch 0 and of the batch that next() returns
  std::vector<tensor::TokenRun> wanted_;
  std::vector<std::string> notices_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Ready> ready_;
  std::exception_ptr failure_;
  std::jthread producer_;  // the last member, so that it is destroyed first
};

}  // namespace colossal::data
