#include "colossal/serve/engine_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/serve/changes.h"
#include "colossal/serve/engine_work.h"

namespace colossal::serve {
namespace {

constexpr std::chrono::milliseconds kPollInterval{100};  // while the loop is idle

int64_t work_in(const Changes& changes) {
  return static_cast<int64_t>(changes.generations.size() + changes.embeddings.size());
}

bool has(const std::vector<Ticket>& tickets, Ticket ticket) {
  return std::find(tickets.begin(), tickets.end(), ticket) != tickets.end();
}

}  // namespace

struct EngineLoop::State {
  State(comm::World& world_, comm::Mesh& mesh_, const EngineLoopOptions& options_)
      : world(world_),
        mesh(mesh_),
        options(options_),
        work(options_, [this](Ticket ticket) { return is_cancelled(ticket); }),
        last_load(work.load()) {}

  // Used by the thread of run() only.
  comm::World& world;
  comm::Mesh& mesh;
  const EngineLoopOptions options;
  EngineWork work;
  Changes current;  // changes that were taken from `next` and are not applied yet

  mutable std::mutex mutex;  // guards the members below; not locked during steps and functions of the work
  std::condition_variable wake;
  Changes next;  // changes before the next step
  Ticket next_ticket = 1;
  bool has_ended = false;
  ReplicaLoad last_load;                       // load after the last step, with the work of the current one as waiting
  std::atomic<bool> has_cancellations{false};  // `next` has some; is_cancelled() needs no lock without them

  int64_t waiting() const { return last_load.waiting + work_in(next); }

  /// Returns the ticket of `count` more pieces of work, or nothing if there is no room. The caller holds the lock.
  std::optional<Ticket> take_tickets(int64_t count) {
    if (has_ended || next.ends || waiting() + count > options.max_waiting) return {};
    return std::exchange(next_ticket, next_ticket + count);
  }

  bool is_cancelled(Ticket ticket) const {
    if (has(current.cancelled, ticket)) return true;
    if (!has_cancellations) return false;
    const std::lock_guard lock(mutex);
    return has(next.cancelled, ticket);
  }

  /// Moves the changes since the last call to `current`, on rank 0. Waits for some while there is no work.
  void take_changes(const std::function<void()>& poll) {
    std::unique_lock lock(mutex);
    while (!work.has_work() && next.is_empty()) {
      lock.unlock();
      poll();
      const bool did_some = options.work_aside && options.work_aside();
      lock.lock();
      if (!did_some) wake.wait_for(lock, kPollInterval, [this] { return !next.is_empty(); });
    }
    last_load.waiting += work_in(next);
    has_cancellations = false;
    current = std::exchange(next, {});
  }

  /// Makes `current` the changes of rank 0, on all ranks. Without work, rank 0 is busy until it has sent them.
  void share_changes(const std::function<void()>& poll) {
    if (world.size() == 1) return take_changes(poll);
    if (world.rank() != 0) {
      current = changes_of(comm::broadcast_text(mesh.all(), at::kCPU, 0, ""));
      return;
    }
    const auto busy = work.has_work() ? nullptr : world.busy(kIdle);
    take_changes(poll);
    comm::broadcast_text(mesh.all(), at::kCPU, 0, to_bytes(current));
  }

  void publish_load() {
    const ReplicaLoad load = work.load();
    const std::lock_guard lock(mutex);
    last_load = load;
  }

  /// Accepts no more work, and returns the changes that no step has begun.
  Changes close() {
    const std::lock_guard lock(mutex);
    has_ended = true;
    last_load.waiting = last_load.running = 0;
    return std::exchange(next, {});
  }

  void fail(const Changes& changes, const std::string& message) const {
    for (const NewGeneration& added : changes.generations)
      if (!is_cancelled(added.ticket))
        EngineWork::fail(added.generation.on_event, infer::FinishReason::EngineEnded, message);
    for (const NewEmbedding& added : changes.embeddings)
      if (added.embedding.on_vectors && !is_cancelled(added.ticket))
        added.embedding.on_vectors({.error = message, .engine_has_ended = true});
  }
  /// Ends all work, begun or not, with an error, and accepts no more. The functions may call the loop.
  void fail_all(const std::string& message) {
    {
      const std::lock_guard lock(mutex);
      has_ended = true;
    }
    work.fail_all(message);
    fail(current, message);
    fail(close(), message);
  }
};

EngineLoop::EngineLoop(comm::World& world, comm::Mesh& mesh, EngineLoopOptions options)
    : state_(std::make_unique<State>(world, mesh, options)) {}

EngineLoop::~EngineLoop() = default;

std::optional<Ticket> EngineLoop::add(std::vector<Generation> generations) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const std::optional<Ticket> first = s.take_tickets(static_cast<int64_t>(generations.size()));
  if (!first) return {};
  Ticket ticket = *first;
  for (Generation& generation : generations) {
    const Ticket after = generation.after < 0 ? 0 : *first + generation.after;
    s.next.generations.push_back({ticket, after, std::move(generation)});
    ++ticket;
  }
  s.wake.notify_one();
  return first;
}

std::optional<Ticket> EngineLoop::add(Embedding embedding) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const std::optional<Ticket> ticket = s.take_tickets(1);
  if (!ticket) return {};
  s.next.embeddings.push_back({*ticket, std::move(embedding)});
  s.wake.notify_one();
  return ticket;
}

void EngineLoop::prepare(const std::string& schema) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.has_ended || !s.options.schemas) return;
  s.next.schemas.push_back(schema);
  s.wake.notify_one();
}

void EngineLoop::cancel(Ticket ticket) {
  State& s = *state_;
  // Destroyed after the lock, because the caller's functions may own objects that call the loop.
  std::vector<NewGeneration> generations;
  std::vector<NewEmbedding> embeddings;
  const auto take = [ticket](auto& from, auto& to) {
    const auto found =
        std::find_if(from.begin(), from.end(), [&](const auto& added) { return added.ticket == ticket; });
    if (found == from.end()) return false;
    to.push_back(std::move(*found));
    from.erase(found);
    return true;
  };
  const std::lock_guard lock(s.mutex);
  if (take(s.next.generations, generations) || take(s.next.embeddings, embeddings)) return;
  s.next.cancelled.push_back(ticket);
  s.has_cancellations = true;
  s.wake.notify_one();
}

ReplicaLoad EngineLoop::load() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  ReplicaLoad load = s.last_load;
  load.waiting = s.waiting();
  return load;
}

void EngineLoop::run(const std::function<void()>& poll) {
  State& s = *state_;
  const std::function<void()> poll_here = poll && s.world.rank() == 0 ? poll : [] {};
  try {
    while (true) {
      s.share_changes(poll_here);
      if (s.current.ends) break;
      s.work.apply(std::exchange(s.current, {}));
      if (s.work.has_work()) s.work.step();
      s.publish_load();
      poll_here();
    }
  } catch (const std::exception& error) {
    s.fail_all(plain_message(error));
    throw;
  }
  const Changes left = s.close();  // destroyed without the lock, like those of the last broadcast
  s.current = {};
  s.work.drop_all();
}

void EngineLoop::end() {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  s.next.ends = true;
  s.wake.notify_one();
}

}  // namespace colossal::serve
