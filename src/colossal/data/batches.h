// Batches of a corpus for one data rank, prepared ahead of the training step.
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "colossal/data/corpus.h"

namespace colossal::data {

enum class Documents {
  Separate,  ///< positions restart after an end token, whose label is kIgnored: nothing is predicted across a border
  Joined,    ///< one stream: positions count through, the first token of the next document is predicted from the end
             ///< token
};

constexpr int64_t kIgnored = -100;  ///< a label that has no part in the loss

struct BatchOptions {
  int64_t sequence = 0;     ///< S, tokens of a sample
  int64_t batch_size = 0;   ///< B of all data ranks together; divides by `ranks`
  int rank = 0, ranks = 1;  ///< of the data axis: this one takes rows [rank * B/ranks, (rank + 1) * B/ranks)
  uint64_t seed = 0;
  bool shuffle = true;  ///< false: samples in the order of the corpus (evaluation)
  Documents documents = Documents::Separate;
};

/// Four int64 tensors [B/ranks, S] on the host.
struct Batch {
  at::Tensor tokens;
  at::Tensor labels;     ///< the next token, or kIgnored
  at::Tensor positions;  ///< within the document, counted from the start of the sample
  at::Tensor documents;  ///< 0, 1, ... within the sample; all 0 with Documents::Joined
};

/// An endless stream of batches. Sample i of the corpus is its tokens [i S, i S + S), n = (size - 1) / S samples in
/// all.
///
/// Row r of the stream (r = batch * B + row) is sample Order(n, seed, r / n)(r % n): a pure function, so any number of
/// ranks sees the same global batches, and a batch that an epoch cannot fill goes on with the next. A thread of its own
/// keeps two batches ready.
/// Errors: the constructor throws Error("data", ...) when the corpus is shorter than one sequence + 1 or B does not
///         divide; next() rethrows what reading the corpus threw.
/// Thread safety: one thread calls the members.
class Batches {
 public:
  Batches(Corpus corpus, BatchOptions options);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  Batch next();
  int64_t samples() const { return samples_; }  ///< of an epoch
  /// Goes to batch 0: of evaluation, before each round.
  void rewind() { seek(0); }

  /// {"epoch", "position", "corpus"}: where the next batch starts, equal on every rank.
  nlohmann::json state() const;
  /// Errors: a state of another corpus, sequence or seed: the message says which.
  void restore(const nlohmann::json& state);

 private:
  Batch make(int64_t first_row) const;
  void fill_row(int64_t sample, int64_t row, Batch& batch) const;
  void seek(int64_t row);
  void produce(std::stop_token stop, int64_t row);

  Corpus corpus_;
  BatchOptions options_;
  int64_t samples_;
  int64_t row_ = 0;  // first row of the batch that next() returns
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  std::jthread producer_;  // last: dies first
};

}  // namespace colossal::data
