// A replica without a model: it plays scripted events on a thread of its own.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/serve/replica.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::serve_test {

using serve::Ticket;

/// Returns the events of an answer of the byte tokenizer. AtEnd: the last event has the end token; Failed and
/// Cancelled: it has none; others: it has the last byte.
inline std::vector<infer::Event> events_of(const std::string& text,
                                           infer::FinishReason reason = infer::FinishReason::AtEnd) {
  using infer::FinishReason;
  std::vector<infer::Event> events;
  for (const char byte : text) events.push_back({.id = -1, .token = static_cast<unsigned char>(byte)});
  const bool is_last_byte = reason == FinishReason::AtLength || reason == FinishReason::AtPositions;
  if (!is_last_byte || events.empty())
    events.push_back({.id = -1, .token = reason == FinishReason::AtEnd ? text::ByteTokenizer::kEnd : -1});
  events.back().finish_reason = reason;
  return events;
}

inline infer::Event failure(const std::string& message, infer::FinishReason reason = infer::FinishReason::Failed) {
  return {.id = -1, .token = -1, .finish_reason = reason, .error = message};
}

/// Each step passes the next event of every generation, in the order of their tickets. An embedding ends in one step.
class FakeReplica final : public serve::Replica {
 public:
  /// Returns the events of a generation.
  using Script = std::function<std::vector<infer::Event>(const serve::Generation&)>;

  FakeReplica() : thread_([this] { run(); }) {}
  ~FakeReplica() override {
    {
      const std::scoped_lock lock(mutex_);
      is_stopped_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void play(Script script) {
    const std::scoped_lock lock(mutex_);
    script_ = std::move(script);
  }
  void play(const std::string& text, infer::FinishReason reason = infer::FinishReason::AtEnd) {
    play([=](const serve::Generation&) { return events_of(text, reason); });
  }
  void play_vectors(serve::Vectors vectors) {
    const std::scoped_lock lock(mutex_);
    vectors_ = std::move(vectors);
  }
  /// From now on only that many steps run until the next call; -1 = any number.
  void allow_steps(int64_t steps) {
    {
      const std::scoped_lock lock(mutex_);
      steps_ = steps;
    }
    wake_.notify_all();
  }
  void set_full(bool is_full) {
    const std::scoped_lock lock(mutex_);
    is_full_ = is_full;
  }
  void set_load(const serve::ReplicaLoad& load) {
    const std::scoped_lock lock(mutex_);
    load_ = load;
  }
  /// Destroys all work without an event, as an engine does that ends.
  void drop_all() {
    std::map<Ticket, Running> dropped;
    const std::scoped_lock lock(mutex_);
    dropped.swap(running_);
  }

  /// Returns all generations so far, without their functions.
  std::vector<serve::Generation> added() const {
    const std::scoped_lock lock(mutex_);
    return added_;
  }
  std::vector<std::vector<int64_t>> embedded() const {
    const std::scoped_lock lock(mutex_);
    return embedded_;
  }
  std::vector<std::string> prepared() const {
    const std::scoped_lock lock(mutex_);
    return prepared_;
  }
  std::set<Ticket> cancelled() const {
    const std::scoped_lock lock(mutex_);
    return cancelled_;
  }

  std::optional<Ticket> add(std::vector<serve::Generation> generations) override {
    const std::scoped_lock lock(mutex_);
    if (is_full_) return {};
    const Ticket first = next_;
    for (serve::Generation& generation : generations) {
      std::vector<infer::Event> events = script_(generation);
      running_[next_++] = {{events.begin(), events.end()}, std::move(generation.on_event)};
      generation.on_event = nullptr;
      added_.push_back(std::move(generation));
    }
    wake_.notify_all();
    return first;
  }
  std::optional<Ticket> add(serve::Embedding embedding) override {
    const std::scoped_lock lock(mutex_);
    if (is_full_) return {};
    embedded_ = embedding.texts;
    running_[next_] = {.on_vectors = std::move(embedding.on_vectors)};
    wake_.notify_all();
    return next_++;
  }
  void prepare(const std::string& schema) override {
    const std::scoped_lock lock(mutex_);
    prepared_.push_back(schema);
  }
  void cancel(Ticket ticket) override {
    Running dropped;
    const std::scoped_lock lock(mutex_);
    cancelled_.insert(ticket);
    const auto found = running_.find(ticket);
    if (found == running_.end()) return;
    dropped = std::move(found->second);
    running_.erase(found);
  }
  serve::ReplicaLoad load() const override {
    const std::scoped_lock lock(mutex_);
    return load_;
  }

 private:
  struct Running {
    std::deque<infer::Event> events{};
    infer::OnEvent on_event{};
    std::function<void(serve::Vectors)> on_vectors{};
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return is_stopped_ || (!running_.empty() && steps_ != 0); });
      if (is_stopped_) return;
      if (steps_ > 0) --steps_;
      std::vector<Ticket> tickets;
      for (const auto& [ticket, running] : running_) tickets.push_back(ticket);
      for (const Ticket ticket : tickets) {
        if (running_.contains(ticket)) advance(ticket, lock);
      }
    }
  }

  void advance(Ticket ticket, std::unique_lock<std::mutex>& lock) {
    Running& running = running_.at(ticket);
    const infer::OnEvent on_event = running.on_event;
    const auto on_vectors = running.on_vectors;
    const serve::Vectors vectors = vectors_;
    infer::Event event{.id = -1, .token = -1};
    if (on_event) {
      event = running.events.front();
      running.events.pop_front();
    }
    if (running.events.empty()) running_.erase(ticket);
    lock.unlock();
    on_event ? on_event(event) : on_vectors(vectors);
    lock.lock();
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Script script_ = [](const serve::Generation&) { return events_of("answer"); };
  serve::Vectors vectors_;
  serve::ReplicaLoad load_;
  std::map<Ticket, Running> running_;
  std::vector<serve::Generation> added_;
  std::vector<std::vector<int64_t>> embedded_;
  std::vector<std::string> prepared_;
  std::set<Ticket> cancelled_;
  Ticket next_ = 1;
  int64_t steps_ = -1;
  bool is_full_ = false, is_stopped_ = false;
  std::thread thread_;
};

}  // namespace colossal::serve_test
