// A replica that keeps the work that it is given, for tests of code that gives work to replicas.
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/serve/replica.h"

namespace colossal::serve {

class StandInReplica final : public Replica {
 public:
  explicit StandInReplica(Ticket first_ticket = 1) : next_ticket_(first_ticket) {}

  std::optional<Ticket> add(std::vector<Generation> generations) override {
    const std::lock_guard lock(mutex_);
    if (refuses_) return std::nullopt;
    const Ticket first = next_ticket_;
    for (Generation& generation : generations) generations_.emplace(next_ticket_++, std::move(generation));
    changed_.notify_all();
    return first;
  }
  std::optional<Ticket> add(Embedding embedding) override {
    const std::lock_guard lock(mutex_);
    if (refuses_) return std::nullopt;
    embeddings_.emplace(next_ticket_, std::move(embedding));
    changed_.notify_all();
    return next_ticket_++;
  }
  std::optional<Ticket> draw(DrawingJob job) override {
    const std::lock_guard lock(mutex_);
    if (refuses_) return std::nullopt;
    drawings_.emplace(next_ticket_, std::move(job));
    changed_.notify_all();
    return next_ticket_++;
  }
  void prepare(const std::string& schema) override {
    const std::lock_guard lock(mutex_);
    prepared_.push_back(schema);
    changed_.notify_all();
  }
  void cancel(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(ticket);
    changed_.notify_all();
  }
  ReplicaLoad load() const override {
    const std::lock_guard lock(mutex_);
    return load_;
  }

  void set_load(const ReplicaLoad& load) {
    const std::lock_guard lock(mutex_);
    load_ = load;
  }
  void refuse() {
    const std::lock_guard lock(mutex_);
    refuses_ = true;
  }

  /// Each waits for work, or for a number of cancellations or schemas, and returns it. After a long time it returns
  /// what there is.
  Generation generation(Ticket ticket) { return wait_for(generations_, ticket); }
  Embedding embedding(Ticket ticket) { return wait_for(embeddings_, ticket); }
  DrawingJob drawing(Ticket ticket) { return wait_for(drawings_, ticket); }
  std::vector<Ticket> cancelled(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return cancelled_.size() >= count; });
    return cancelled_;
  }
  std::vector<std::string> prepared(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return prepared_.size() >= count; });
    return prepared_;
  }

  size_t count() const {
    const std::lock_guard lock(mutex_);
    return generations_.size() + embeddings_.size();
  }

 private:
  static constexpr std::chrono::minutes kPatience{1};

  template <class Work>
  Work wait_for(const std::map<Ticket, Work>& work, Ticket ticket) {
    std::unique_lock lock(mutex_);
    const bool has = changed_.wait_for(lock, kPatience, [&] { return work.count(ticket) > 0; });
    return has ? work.at(ticket) : Work{};
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Ticket, Generation> generations_;
  std::map<Ticket, Embedding> embeddings_;
  std::map<Ticket, DrawingJob> drawings_;
  std::vector<Ticket> cancelled_;
  std::vector<std::string> prepared_;
  ReplicaLoad load_;
  Ticket next_ticket_;
  bool refuses_ = false;
};

/// Returns a list of one generation.
inline std::vector<Generation> only(Generation generation) {
  std::vector<Generation> list;
  list.push_back(std::move(generation));
  return list;
}

}  // namespace colossal::serve
