// Steps the engine of one replica on all of its ranks. Rank 0 of the replica takes work from other threads.
//
//   serve::EngineLoop loop(world, mesh, {.engine = &engine, ...});       // on every rank
//   loop.run([] { return stop_requested(); });                         // the thread that loaded the model
//   loop.add({...});  loop.cancel(ticket);                             // rank 0, any thread
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/infer/embeddings/embed.h"
#include "colossal/infer/engine.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

/// Text that rank 0 passes to World::busy while its loop has no work. Reports of stalls name it (Stall::busy_with).
inline constexpr char kIdle[] = "waiting for requests";

struct EngineLoopOptions {
  infer::Engine* engine = nullptr;        ///< nullptr = the model only embeds
  infer::Embedder* embedder = nullptr;    ///< nullptr = no embeddings
  infer::SchemaCache* schemas = nullptr;  ///< nullptr = no json_schema is allowed
  std::vector<int64_t> end_ids{};         ///< tokens that end an answer
  /// Tokens that end the answers of adapters, by their names; default: end_ids, which they must include. Answers that
  /// follow a JSON schema end with those of `schemas`
  std::map<std::string, std::vector<int64_t>> adapter_end_ids{};
  int64_t max_waiting = 256;  ///< maximum number of generations and embeddings before their first step
  int64_t prompt_end = -1;    ///< infer::Request::prompt_end of all generations; -1 = none
  /// Does a piece of work that may wait, while rank 0 has no other. Returns false if none is left. It may be empty
  std::function<bool()> work_aside{};
};

/// Before each step rank 0 broadcasts the changes since the last one: work to add and to cancel. While nothing runs,
/// rank 0 waits under World::busy and the others wait in that broadcast, so an idle loop uses no processor time.
///
/// Communication: one broadcast_text per step among the ranks of `mesh`, for any number of changes, and the
///                communication of Engine::step(), or of Embedder::embed_row() without an engine. None with one rank.
/// Errors:        an error that one request causes, such as a prompt that is too long, is an event of that request. All
///                ranks get the same one, and the loop goes on. After end() or an error of run(), add() takes no work.
/// Embeddings:    take turns within the steps of the engine (EmbeddingWork), so that they do not stop generations.
class EngineLoop final : public ReplicaLoop {
 public:
  /// `world` and `mesh` are those of this replica alone. All must outlive the loop.
  EngineLoop(comm::World& world, comm::Mesh& mesh, EngineLoopOptions options);
  ~EngineLoop() override;

  std::optional<Ticket> add(std::vector<Generation> generations) override;
  std::optional<Ticket> add(Embedding embedding) override;
  void prepare(const std::string& schema) override;
  void cancel(Ticket ticket) override;
  ReplicaLoad load() const override;

  /// On an error of weights or ranks it calls the functions of all unfinished work with the message
  /// (FinishReason::EngineEnded, Vectors::engine_has_ended) and throws it.
  void run(const std::function<void()>& poll) override;
  void end() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::serve
