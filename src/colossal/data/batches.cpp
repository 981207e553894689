#include "colossal/data/batches.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/data/order.h"

namespace colossal::data {
namespace {

constexpr size_t kAhead = 2;  // batches kept ready

}  // namespace

Batches::Batches(Corpus corpus, BatchOptions options) : corpus_(std::move(corpus)), options_(options) {
  const int64_t sequence = options_.sequence, batch = options_.batch_size;
  require(sequence >= 1, "data", "the sequence must have at least 1 token: got ", sequence);
  require(options_.ranks >= 1 && options_.rank >= 0 && options_.rank < options_.ranks, "data", "rank ", options_.rank,
          " is not one of ", options_.ranks);
  require(batch >= 1 && batch % options_.ranks == 0, "data", "batch_size must divide by the data ranks: got ", batch,
          ", data ranks ", options_.ranks);
  require(corpus_.size() > sequence, "data", "the data is shorter than one sequence: it has ", corpus_.size(),
          " tokens, a sequence of ", sequence, " and its last label need ", sequence + 1,
          "; use more data or a shorter sequence");
  samples_ = (corpus_.size() - 1) / sequence;
  seek(0);
}

Batches::~Batches() = default;  // the producer is asked to stop, and joined

void Batches::fill_row(int64_t sample, int64_t row, Batch& batch) const {
  const int64_t sequence = options_.sequence;
  std::vector<int64_t> ids(sequence + 1);
  corpus_.read(sample * sequence, sequence + 1, ids.data());
  int64_t* tokens = batch.tokens.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* labels = batch.labels.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* positions = batch.positions.mutable_data_ptr<int64_t>() + row * sequence;
  int64_t* documents = batch.documents.mutable_data_ptr<int64_t>() + row * sequence;
  const bool separate = options_.documents == Documents::Separate;
  int64_t position = 0, document = 0;
  for (int64_t i = 0; i < sequence; ++i) {
    const bool ends = separate && ids[i] == corpus_.end_id();
    tokens[i] = ids[i];
    labels[i] = ends ? kIgnored : ids[i + 1];
    positions[i] = position++;
    documents[i] = document;
    if (ends) {
      position = 0;
      ++document;
    }
  }
}

Batch Batches::make(int64_t first_row) const {
  const int64_t rows = options_.batch_size / options_.ranks;
  const auto zeros = [&] { return at::zeros({rows, options_.sequence}, at::kLong); };
  Batch batch{zeros(), zeros(), zeros(), zeros()};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t global = first_row + options_.rank * rows + row, position = global % samples_;
    const int64_t sample = options_.shuffle ? Order(samples_, options_.seed, global / samples_)(position) : position;
    fill_row(sample, row, batch);
  }
  return batch;
}

void Batches::seek(int64_t row) {
  producer_ = {};  // stops and joins the one before
  ready_.clear();
  failure_ = nullptr;
  row_ = row;
  producer_ = std::jthread([this, row](std::stop_token stop) { produce(stop, row); });
}

void Batches::produce(std::stop_token stop, int64_t row) {
  for (; !stop.stop_requested(); row += options_.batch_size) {
    Batch batch;
    std::exception_ptr failure;
    try {
      batch = make(row);
    } catch (...) {
      failure = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return ready_.size() < kAhead; })) return;
    if (failure) {
      failure_ = failure;
    } else {
      ready_.push_back(std::move(batch));
    }
    changed_.notify_all();
    if (failure) return;
  }
}

Batch Batches::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
  if (ready_.empty()) std::rethrow_exception(failure_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  row_ += options_.batch_size;
  changed_.notify_all();
  return batch;
}

nlohmann::json Batches::state() const {
  return {{"epoch", row_ / samples_},
          {"position", row_ % samples_},
          {"sequence", options_.sequence},
          {"seed", options_.seed},
          {"corpus", corpus_.fingerprint()}};
}

void Batches::restore(const nlohmann::json& state) {
  try {
    const auto same = [&](const char* key, const nlohmann::json& mine, const char* what) {
      require(state.at(key) == mine, "data", "the checkpoint's data position is of another ", what, ": it has ",
              state.at(key).dump(), ", this run ", mine.dump(),
              "; continue with what it was trained on, or start anew");
    };
    same("corpus", corpus_.fingerprint(), "text (its fingerprint)");
    same("sequence", options_.sequence, "sequence length");
    same("seed", options_.seed, "seed");
    const int64_t epoch = state.at("epoch"), position = state.at("position");
    require(epoch >= 0 && epoch < (int64_t{1} << 31) && position >= 0 && position < samples_, "data",
            "the checkpoint's data position is damaged: epoch ", epoch, ", position ", position);
    seek(epoch * samples_ + position);
  } catch (const nlohmann::json::exception& error) {
    throw Error("data", concat("the checkpoint's data position is damaged: ", error.what()));
  }
}

}  // namespace colossal::data
