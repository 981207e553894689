#include "colossal/data/batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/tensor/replica_rows.h"

namespace colossal::data {
namespace {

constexpr size_t kAhead = 2;  // number of batches kept ready
constexpr size_t kMaxNamed = 3;

std::string text_of(const nlohmann::json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

/// Describes in words how two values of a trait differ. If they are objects, it names the members that differ.
std::string difference(const std::string& name, const nlohmann::json& stored, const nlohmann::json& mine) {
  if (!stored.is_object() || !mine.is_object())
    return concat(printable(name), " was ", text_of(stored), ", now it is ", text_of(mine));
  std::vector<std::string> parts;
  for (const auto& [key, value] : stored.items()) {
    if (!mine.contains(key))
      parts.push_back(printable(key) + " is gone");
    else if (mine[key] != value)
      parts.push_back(difference(key, value, mine[key]));
  }
  for (const auto& [key, value] : mine.items())
    if (!stored.contains(key)) parts.push_back(printable(key) + " is new");
  const size_t named = std::min(parts.size(), kMaxNamed);
  const std::string text = join(std::span(parts).first(named), "; ");
  return parts.size() > named ? concat(text, "; and ", parts.size() - named, " more") : text;
}

/// A reader of batches of Samples, which it may read in any order.
class SampleReader final : public BatchReader {
 public:
  SampleReader(std::shared_ptr<const Samples> samples, const BatchOptions& options)
      : samples_(std::move(samples)),
        options_(options),
        own_{options.batch_size, options.micro_batches, options.rank, options.ranks},
        count_(samples_->count()) {
    own_.check();
  }

  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override {
    const int64_t rows = own_.count();
    tensor::Batch batch = samples_->make(rows);
    batch.wanted = wanted;
    std::atomic<int64_t> next_row = 0;
    std::vector<std::exception_ptr> failures(rows);
    const auto work = [&] {
      for (int64_t row = next_row++; row < rows; row = next_row++) {
        try {
          fill(batch, row);
        } catch (...) {
          failures[row] = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> others;
      for (int64_t i = 1; i < std::min<int64_t>(options_.threads, rows); ++i) others.emplace_back(work);
      work();
    }
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    row_ += options_.batch_size;
    return batch;
  }

  nlohmann::json position() const override { return {{"epoch", row_ / count_}, {"position", row_ % count_}}; }

  void seek(const nlohmann::json& state) override {
    const int64_t epoch = position_number(state, "epoch"), position = position_number(state, "position");
    require(epoch < (int64_t{1} << 31) && position < count_, "data",
            "the checkpoint's data position is damaged: epoch ", epoch, ", position ", position);
    row_ = epoch * count_ + position;
  }

  nlohmann::json traits() const override {
    nlohmann::json traits = samples_->traits();
    traits["seed"] = options_.seed;
    return traits;
  }

  int64_t samples() const override { return count_; }
  std::vector<std::string> take_notices() override { return samples_->take_notices(); }

 private:
  void fill(tensor::Batch& batch, int64_t row) const {
    const int64_t global = row_ + own_.global(row);
    const int64_t epoch = global / count_, position = global % count_;
    const int64_t sample = options_.shuffle ? Order(count_, options_.seed, epoch)(position) : position;
    const uint64_t epoch_seed = derive_seed(derive_seed(options_.seed, "samples"), static_cast<uint64_t>(epoch));
    samples_->fill(sample, derive_seed(epoch_seed, static_cast<uint64_t>(sample)), batch, row);
    if (!options_.counts_once || epoch == 0) return;
    for (const auto& [name, field] : batch.fields())
      if (field.ignored) field.tensor.select(0, row).fill_(*field.ignored);
  }

  std::shared_ptr<const Samples> samples_;
  BatchOptions options_;
  tensor::ReplicaRows own_;
  int64_t count_;
  int64_t row_ = 0;  // the first row of the next batch, in the stream of all replicas
};

}  // namespace

tensor::Batch pinned(const tensor::Batch& batch) {
  return batch.map([](const tensor::Field& field) { return field.tensor.pin_memory(); });
}

Batches::Batches(std::shared_ptr<const Samples> samples, BatchOptions options)
    : Batches(std::make_unique<SampleReader>(std::move(samples), options), options.pinned) {}

Batches::Batches(std::unique_ptr<BatchReader> reader, bool pinned)
    : reader_(std::move(reader)),
      pinned_(pinned),
      first_(std::make_shared<nlohmann::json>(reader_->position())),
      next_(first_) {
  move_to(*first_);
}

Batches::~Batches() = default;  // the destructor of producer_ stops and joins the thread

void Batches::want(std::vector<tensor::TokenRun> tokens) {
  producer_ = {};  // joins the old thread first, because it reads wanted_
  wanted_ = std::move(tokens);
  move_to(*next_);
}

void Batches::tell(const std::vector<std::string>& notices) {
  notices_.insert(notices_.end(), notices.begin(), notices.end());
}

void Batches::rewind() { move_to(*first_); }

void Batches::move_to(const nlohmann::json& position) {
  const auto begin = [&](const nlohmann::json& place) {
    producer_ = {};  // stops and joins the old thread
    reader_->seek(place);
    next_ = std::make_shared<nlohmann::json>(reader_->position());
    ready_.clear();
    failure_ = nullptr;
    producer_ = std::jthread([this](std::stop_token stop) { produce(stop); });
  };
  try {
    begin(position);
  } catch (...) {  // there is no such position, so the old one is restored
    begin(*next_);
    throw;
  }
}

void Batches::produce(std::stop_token stop) {
  while (!stop.stop_requested()) {
    Ready ready;
    std::exception_ptr failure;
    try {
      ready.batch = reader_->next(wanted_);
      if (pinned_) ready.batch = pinned(ready.batch);
      ready.behind = std::make_shared<nlohmann::json>(reader_->position());
      ready.notices = reader_->take_notices();
    } catch (...) {
      failure = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return ready_.size() < kAhead; })) return;
    if (failure) {
      failure_ = failure;
    } else {
      ready_.push_back(std::move(ready));
    }
    changed_.notify_all();
    if (failure) return;
  }
}

tensor::Batch Batches::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
  if (ready_.empty()) std::rethrow_exception(failure_);
  tensor::Batch batch = std::move(ready_.front().batch);
  next_ = std::move(ready_.front().behind);
  for (std::string& notice : ready_.front().notices) notices_.push_back(std::move(notice));
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

nlohmann::json Batches::state() const {
  nlohmann::json state = reader_->traits();
  state.update(*next_);
  return state;
}

void Batches::restore(const nlohmann::json& state) {
  try {
    const nlohmann::json traits = reader_->traits();
    for (const auto& [key, mine] : traits.items()) {
      require(!state.is_object() || state.contains(key), "data", "the checkpoint has no ", key,
              " of its data: it was saved by an older version, or with data of another kind; restart "
              "with --overwrite or in another run.folder, for instance from the weights of this run (model.from)");
      require(state.at(key) == mine, "data",
              "the run cannot resume from the checkpoint, because the data or its keys changed: ",
              difference(key, state.at(key), mine),
              "; restore the data and the keys of the run folder's config.toml, or restart "
              "with --overwrite or in another run.folder");
    }
    move_to(state);
  } catch (const nlohmann::json::exception& error) {
    throw Error("data", concat("the checkpoint's data position is damaged: ", error.what()));
  }
}

}  // namespace colossal::data
