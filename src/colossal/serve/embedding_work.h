// The unfinished embeddings of one rank of a replica.
//
//   EmbeddingWork embeddings(&engine, &embedder, [](Ticket ticket) { return was_cancelled(ticket); });
//   embeddings.add(std::move(added));
//   while (embeddings.has_work()) embeddings.begin_step(), engine.step();
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "colossal/infer/embeddings/embed.h"
#include "colossal/infer/engine.h"
#include "colossal/serve/changes.h"

namespace colossal::serve {

/// Checks a text to embed, so that it takes at most a step at a time. `engine` is null for a model that only embeds,
/// which sees a whole text at once: it takes EmbedOptions::tokens_at_once tokens at most.
/// Errors ("embed"): errors of Embedder::check(); a text longer than that, or than Engine::max_length().
void check_text(const infer::Embedder& embedder, const infer::Engine* engine, const std::vector<int64_t>& text);

/// With an engine, texts are requests of it (infer::Request::pooling): they take turns with others in its steps, and
/// their keys and values are in its cache. The engine has at most EmbedOptions::tokens_at_once tokens of an embedding
/// at a time, or one text. Without an engine, each step computes one row of Embedder::embed_row(), in turns.
///
/// Ranks:         all ranks of a replica must make the same calls. Ranks other than 0 have no Embedding::on_vectors.
/// Thread safety: none.
class EmbeddingWork {
 public:
  /// `engine` may be null. `embedder` is null if the model has no embeddings. Both must outlive this object.
  /// `is_cancelled` returns true for work whose function must not be called any more.
  EmbeddingWork(infer::Engine* engine, infer::Embedder* embedder, std::function<bool(Ticket)> is_cancelled);
  EmbeddingWork(const EmbeddingWork&) = delete;
  EmbeddingWork& operator=(const EmbeddingWork&) = delete;

  /// Takes an embedding. Errors ("serve", "embed"): no embedder; errors of check_text(). The caller reports them.
  void add(NewEmbedding added);
  /// Drops an embedding. Ignores a ticket that it does not have.
  void cancel(Ticket ticket);
  bool has_work() const { return !embeddings_.empty(); }
  /// Gives the next texts to the engine, which the next step may read. Without an engine, computes a row.
  /// Errors: errors of Embedder::embed_row().
  void begin_step();
  /// Adds the embeddings to the load of the engine.
  void count(ReplicaLoad& load) const;
  /// Drops all embeddings, without calling their functions.
  void drop_all();
  /// Calls the functions of all embeddings with an error of the engine, which must not be used afterwards.
  void fail_all(const std::string& message);

 private:
  struct Embedded {
    Ticket ticket;
    Embedding embedding;
    Vectors vectors{};
    size_t given = 0;                     // number of first texts that the engine has got; without one, that are done
    std::map<int64_t, size_t> reading{};  // index of each text in the engine, by its id there
    int64_t reading_tokens = 0;
    mutable bool has_begun = false;  // the engine had begun to read it when it was last counted, or has ended a text
  };
  using Place = std::list<Embedded>::iterator;
  bool has_room(const Embedded& embedded) const;
  void give_next(Place place);
  void hear(Place place, const infer::Event& event);
  void embed_row();
  void finish(Place place);
  void drop(Place place);

  infer::Engine* const engine_;
  infer::Embedder* const embedder_;
  const std::function<bool(Ticket)> is_cancelled_;
  std::list<Embedded> embeddings_;
};

}  // namespace colossal::serve
