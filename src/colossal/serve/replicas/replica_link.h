// A replica whose model is in another process of this host, and the end of the connection there.
//
//   serve::RemoteReplica remote(std::move(socket), "replica 1", "rank 2 has died", 256);      // rank 0 of the server
//   remote.add({{.prompt = ids, .options = options, .on_event = on_event}});
//
//   serve::ReplicaLink link(std::move(other_socket), loop, [&] { loop.end(); });            // rank 0 of that replica
//   loop.run([&] { link.report_load(); });
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/descriptor.h"
#include "colossal/serve/replica.h"
#include "colossal/serve/replicas/message_socket.h"
#include "colossal/serve/replicas/replica_messages.h"

namespace colossal::serve {

/// The end of rank 0 of the server. Work that is added here runs in the replica at the other end of the socket, and its
/// functions are called on a thread of this object. No member waits for the other end.
///
/// Waiting work is counted here: work that the other end has not reported yet counts as waiting. The other end must
/// take `max_waiting` generations.
/// Errors:  an error that ended all work of the other end ("[comm] ...") gets the `name` before it. If the other end
///          reports an error or breaks the connection, all unfinished work ends with an error (FinishReason::
///          EngineEnded, Vectors::engine_has_ended, Drawn::replica_has_ended) that begins with `name`. Then error() has
///          the message and add() returns nothing.
/// Tickets: count from 1.
class RemoteReplica final : public Replica {
 public:
  /// `loss` is the reason in the error if the connection breaks: "the process of rank 2 has died".
  RemoteReplica(Descriptor socket, std::string name, const std::string& loss, int64_t max_waiting);
  /// Breaks the connection. Calls no function of unfinished work.
  ~RemoteReplica() override = default;

  std::optional<Ticket> add(std::vector<Generation> generations) override;
  std::optional<Ticket> add(Embedding embedding) override;
  std::optional<Ticket> draw(DrawingJob job) override;
  void prepare(const std::string& schema) override;
  void cancel(Ticket ticket) override;
  ReplicaLoad load() const override;

  /// Returns the error of the other end; nothing while it works.
  std::optional<std::string> error() const;
  /// Makes the other end stop and closes the connection. With a `reason`, which is the message of an error, unfinished
  /// work ends with it; without one ("") it gets no event. Must not be called by a function of the work. Takes at most
  /// one second.
  void end(const std::string& reason);

 private:
  struct Work {
    infer::OnEvent on_event{};
    std::function<void(Vectors)> on_vectors{};
    std::function<void(Drawn)> on_drawn{};
  };
  std::optional<Ticket> take_tickets(std::vector<std::shared_ptr<const Work>> work);
  std::shared_ptr<const Work> find(Ticket ticket, bool has_ended);
  void receive(const std::string& bytes);
  void fail(const std::string& message);

  const std::string name_;
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::map<Ticket, std::shared_ptr<const Work>> unfinished_;
  Ticket next_ticket_ = 1;
  int64_t added_ = 0;     // pieces of work so far
  LoadMessage reported_;  // the last one
  std::optional<std::string> error_;
  MessageSocket socket_;  // the last member, because its thread uses the others
};

/// The other end: gives work that arrives to the replica of this process, and sends events, vectors and loads back.
class ReplicaLink {
 public:
  /// `replica` must outlive the link. `on_end` is called on a thread of this object, once, when rank 0 of the server
  /// stops or the connection breaks.
  ReplicaLink(Descriptor socket, Replica& replica, std::function<void()> on_end);
  /// Breaks the connection. Events of the replica that come later are dropped.
  ~ReplicaLink();

  /// Sends the load of the replica if it has changed. Call it after each step, on one thread.
  void report_load();
  /// Sends pending messages and closes the connection. With a `reason`, the message of an error, the unfinished work at
  /// the other end ends with it. Takes at most five seconds.
  void end(const std::string& reason);
  /// Returns why rank 0 of the server told this end to stop: "" = the server stops. Returns nothing if no such
  /// message has arrived, e.g. because the connection broke.
  std::optional<std::string> reason() const;

 private:
  struct Answers;
  void receive(const std::string& bytes);
  void apply(Changes changes);
  void add(std::vector<NewGeneration> added);
  void add(NewEmbedding added);
  void draw(NewDrawing added);

  Replica& replica_;
  const std::function<void()> on_end_;
  const std::shared_ptr<Answers> answers_;
  std::map<Ticket, Ticket> tickets_;  // tickets of the replica by those of the messages; the socket's thread uses it
  std::string last_report_;
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace colossal::serve
