// A model that works for a server: the one of this process, or one behind a socket (serve/replicas/replica_link.h).
//
//   replica.add({{.prompt = ids, .options = options, .on_event = [](const infer::Event& event) { ... }}});
//   replica.cancel(ticket);
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawn_picture.h"
#include "colossal/infer/generation_options.h"
#include "colossal/infer/request.h"

namespace colossal::serve {

/// Names one piece of work of a server. Tickets are unique among all replicas and count from 1.
using Ticket = int64_t;

/// One choice of one prompt.
struct Generation {
  std::vector<int64_t> prompt{};       ///< token ids; at most as many as ServedModel::max_length allows
  infer::GenerationOptions options{};  ///< with a seed; json_schema constrains the answer; stop has no effect
  bool ignores_end = false;            ///< end tokens do not end the answer
  std::string client{}, cache_key{};   ///< infer::Request::client and cache_key
  /// Index in the same list of the first choice of this prompt, which reads the prompt for this one; -1 = none.
  int64_t after = -1;
  int64_t scored_from = 1;  ///< infer::Request::scored_from
  std::string adapter{};    ///< infer::Request::adapter; "" = the model without adapters
  /// Called on a thread of the replica with each event, in order. The last one has a finish_reason. Event::id has no
  /// meaning. If weights or ranks have failed, the reason is FinishReason::EngineEnded, and Event::error names the
  /// component or the replica. The function must be quick and must not throw.
  infer::OnEvent on_event{};
};

/// A result of Embedding: vectors, or the message of an error.
struct Vectors {
  std::vector<std::vector<float>> rows{};  ///< one vector per text
  std::string error{};                     ///< "" = none
  bool engine_has_ended = false;           ///< the error is one of weights or ranks, which ended all work
};

/// Texts to embed.
struct Embedding {
  std::vector<std::vector<int64_t>> texts{};  ///< token ids with special tokens; each fits (check_text())
  std::string client{};                       ///< infer::Request::client
  /// Called once, on a thread of the replica. It must be quick and must not throw.
  std::function<void(Vectors)> on_vectors{};
};

/// The pictures of a request, or an error.
struct Drawn {
  std::vector<diffusion::DrawnPicture> pictures{};
  std::vector<std::string> notices{};  ///< lines for the user, such as the words that the model does not read
  std::exception_ptr error{};          ///< null = none
  bool replica_has_ended = false;      ///< the error is one of ranks, which ended all work
};

/// A request for pictures.
struct DrawingJob {
  diffusion::DrawOptions options{};
  /// Called once, on a thread of the replica, unless the job is cancelled or the replica ends without an error. It must
  /// be quick and must not throw.
  std::function<void(Drawn)> on_end{};
  diffusion::GivenFiles files{};  ///< diffusion::GivenPictures::files
};

/// Load of a replica, as of its last step.
struct ReplicaLoad {
  int64_t waiting = 0;      ///< accepted pieces of work before their first step
  int64_t running = 0;      ///< unfinished ones after their first step
  int64_t blocks = 0;       ///< blocks of the cache
  int64_t blocks_used = 0;  ///< blocks that requests hold; a free block that keeps a prefix counts as free
};

/// Takes work from any thread and runs it, of the kinds that its model does. Thread safety: any thread may call the
/// members. None of them waits for a step. Errors ("serve"): work of another kind.
class Replica {
 public:
  virtual ~Replica() = default;

  /// Takes all generations of a request, or none of them. Returns the ticket of the first one; the others follow.
  /// Returns nothing if the queue has no room (http::ServerLimits::max_waiting), and calls no function then.
  virtual std::optional<Ticket> add(std::vector<Generation>) { throw other_kind("generations"); }
  /// Takes an embedding. Returns nothing if the queue has no room; it counts as one waiting request.
  virtual std::optional<Ticket> add(Embedding) { throw other_kind("embeddings"); }
  /// Compiles a JSON schema beside the engine, on all of its ranks, for generations that may follow. They need no call
  /// of this function, but with it the engine does not wait for the whole compilation.
  virtual void prepare(const std::string&) { throw other_kind("schemas"); }
  /// Ends a piece of work before the next step, without another event. Ignores work that has ended.
  virtual void cancel(Ticket ticket) = 0;
  virtual ReplicaLoad load() const = 0;
  /// Takes a drawing. Returns nothing if the queue has no room; it counts as one waiting request.
  virtual std::optional<Ticket> draw(DrawingJob) { throw other_kind("drawings"); }

 private:
  static Error other_kind(const char* work) {
    return Error("serve", concat("a replica must get work that its model does: got ", work));
  }
};

/// A replica whose ranks are this process and others: all of them call run().
class ReplicaLoop : public Replica {
 public:
  /// Works until rank 0 calls end(). `poll` is called on rank 0 between steps, and at least five times a second without
  /// work. Errors: those of weights or ranks, after the unfinished work got them.
  virtual void run(const std::function<void()>& poll) = 0;
  /// Makes run() return on all ranks before the next step. Unfinished work gets no event. Rank 0, any thread.
  virtual void end() = 0;
};

}  // namespace colossal::serve
