// The unfinished work of one rank of a replica: applies changes to the engine and runs steps.
//
//   EngineWork work(options, [](Ticket ticket) { return was_cancelled(ticket); });
//   work.apply(std::move(changes));
//   if (work.has_work()) work.step();
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "colossal/serve/changes.h"
#include "colossal/serve/embedding_work.h"
#include "colossal/serve/engine_loop.h"

namespace colossal::serve {

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

  const EngineLoopOptions options_;
  const std::function<bool(Ticket)> is_cancelled_;
  std::map<Ticket, Running> running_;  // generations without their last event; the engine's functions point at these
  EmbeddingWork embeddings_;
};

}  // namespace colossal::serve
