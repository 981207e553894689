#include "colossal/serve/engine_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/serve/changes.h"
#include "colossal/serve/embedding_work.h"

namespace colossal::serve {
namespace {

/// Runs `work` for one request and returns the message of its error; nothing without one. Lack of memory is no error of
/// the request, because other ranks may have enough.
template <class Work>
std::optional<std::string> error_of_request(const Work& work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return plain_message(error);
  }
  return {};
}

constexpr std::chrono::milliseconds kPollInterval{100};  // while the loop is idle

int64_t work_in(const Changes& changes) {
  return static_cast<int64_t>(changes.generations.size() + changes.embeddings.size());
}

bool has(const std::vector<Ticket>& tickets, Ticket ticket) {
  return std::find(tickets.begin(), tickets.end(), ticket) != tickets.end();
}

}  // namespace

/// The unfinished work of one rank of a replica: applies changes to the engine and runs steps.
///
/// Ranks:         all ranks of a replica must make the same calls with the same changes. On ranks other than 0 the
///                functions of the work are empty.
/// Thread safety: none. Only the thread that steps the engine may call the members.
class EngineWork {
 public:
  /// `is_cancelled` returns true for work whose cancellation is not applied yet: its functions are not called.
  EngineWork(const EngineLoopOptions& options, std::function<bool(Ticket)> is_cancelled);
  EngineWork(const EngineWork&) = delete;
  EngineWork& operator=(const EngineWork&) = delete;

  /// Begins to compile schemas, and cancels and adds work. An error of one request (Engine::add,
  /// SchemaCache::constraint, EmbeddingWork::add) is the same on all ranks: it ends that request, with
  /// FinishReason::Failed or Vectors::error.
  void apply(Changes changes);
  bool has_work() const { return embeddings_.has_work() || (options_.engine && options_.engine->has_work()); }
  /// Runs one step of the engine, which also reads texts to embed; without an engine, one row of embeddings.
  /// Errors: those of Engine::step() and Embedder::embed_row(). Neither may be used afterwards.
  void step();

  /// Returns the load between two steps.
  ReplicaLoad load() const;

  /// Ends all work without calling its functions.
  void drop_all();
  /// Calls the functions of all work with an error of the engine (FinishReason::EngineEnded). The engine must not be
  /// used afterwards.
  void fail_all(const std::string& message);
  /// Calls the function of a generation, if it has one, with the reason and the message of an error.
  static void fail(const infer::OnEvent& on_event, infer::FinishReason reason, const std::string& message);

 private:
  struct Running {
    Ticket ticket;
    int64_t id;  // the engine's id of the request
    infer::OnEvent on_event;
  };
  void cancel(Ticket ticket);
  void add(NewGeneration added);
  void add(NewEmbedding added);
  void on_event(const Running& running, const infer::Event& event);
  const std::vector<int64_t>& end_ids_of(const std::string& adapter) const;

  const EngineLoopOptions options_;
  const std::function<bool(Ticket)> is_cancelled_;
  std::map<Ticket, Running> running_;  // generations without their last event; the engine's functions point at these
  EmbeddingWork embeddings_;
};

void EngineWork::fail(const infer::OnEvent& on_event, infer::FinishReason reason, const std::string& message) {
  if (on_event) on_event({.id = -1, .token = -1, .finish_reason = reason, .error = message});
}

EngineWork::EngineWork(const EngineLoopOptions& options, std::function<bool(Ticket)> is_cancelled)
    : options_(options),
      is_cancelled_(std::move(is_cancelled)),
      embeddings_(options.engine, options.embedder, is_cancelled_) {}

void EngineWork::apply(Changes changes) {
  for (const std::string& schema : changes.schemas) options_.schemas->compile_aside(schema);
  for (const Ticket ticket : changes.cancelled) cancel(ticket);
  for (NewGeneration& added : changes.generations) add(std::move(added));
  for (NewEmbedding& added : changes.embeddings) add(std::move(added));
}

void EngineWork::cancel(Ticket ticket) {
  if (const auto running = running_.find(ticket); running != running_.end()) {
    options_.engine->drop(running->second.id);
    running_.erase(running);
  }
  embeddings_.cancel(ticket);
}

void EngineWork::add(NewGeneration added) {
  Generation& own = added.generation;
  const auto first = running_.find(added.after);
  Running& running =
      running_.try_emplace(added.ticket, Running{added.ticket, -1, std::move(own.on_event)}).first->second;
  const auto error = error_of_request([&] {
    require(options_.engine, "serve", "the model must continue text: got one that only embeds");
    require(options_.schemas || own.options.json_schema.empty(), "serve",
            "json_schema needs a tokenizer: got a model without one; leave out json_schema, or name a tokenizer");
    auto constraint = options_.schemas ? options_.schemas->constraint(own.options.json_schema) : nullptr;
    running.id = options_.engine->add({.prompt = std::move(own.prompt),
                                       .end_ids = own.ignores_end ? std::vector<int64_t>() : end_ids_of(own.adapter),
                                       .options = std::move(own.options),
                                       .adapter = own.adapter,
                                       .constraint = std::move(constraint),
                                       .prompt_end = options_.prompt_end,
                                       .client = std::move(own.client),
                                       .cache_key = std::move(own.cache_key),
                                       .after = first == running_.end() ? -1 : first->second.id,
                                       .scored_from = own.scored_from},
                                      [this, &running](const infer::Event& event) { on_event(running, event); });
  });
  if (!error) return;
  const auto failed = running_.extract(added.ticket);
  fail(failed.mapped().on_event, infer::FinishReason::Failed, *error);
}

const std::vector<int64_t>& EngineWork::end_ids_of(const std::string& adapter) const {
  const auto found = options_.adapter_end_ids.find(adapter);
  return found == options_.adapter_end_ids.end() ? options_.end_ids : found->second;
}

void EngineWork::on_event(const Running& running, const infer::Event& event) {
  const auto pass_on = [&](const Running& to) {
    if (to.on_event && !is_cancelled_(to.ticket)) to.on_event(event);
  };
  if (event.finish_reason == infer::FinishReason::None) return pass_on(running);
  const auto ended = running_.extract(running.ticket);
  pass_on(ended.mapped());
}

void EngineWork::add(NewEmbedding added) {
  const std::function<void(Vectors)> on_vectors = added.embedding.on_vectors;
  const Ticket ticket = added.ticket;
  const auto error = error_of_request([&] { embeddings_.add(std::move(added)); });
  if (error && on_vectors && !is_cancelled_(ticket)) on_vectors({.error = *error});
}

void EngineWork::step() {
  embeddings_.begin_step();
  if (options_.engine && options_.engine->has_work()) options_.engine->step();
}

ReplicaLoad EngineWork::load() const {
  ReplicaLoad load;
  embeddings_.count(load);
  if (!options_.engine) return load;
  const infer::Engine::Load of_engine = options_.engine->load();
  load.waiting += of_engine.waiting, load.running += of_engine.running;
  load.blocks = options_.engine->blocks(), load.blocks_used = of_engine.blocks_used;
  return load;
}

void EngineWork::drop_all() {
  for (const auto& [ticket, running] : running_) options_.engine->drop(running.id);
  running_.clear();
  embeddings_.drop_all();
}

void EngineWork::fail_all(const std::string& message) {
  for (const auto& [ticket, running] : std::exchange(running_, {}))
    if (!is_cancelled_(ticket)) fail(running.on_event, infer::FinishReason::EngineEnded, message);
  embeddings_.fail_all(message);
}

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
