// The replicas of a server: N models behind one port, each on all ranks of the layout.
//
//   const auto world = join_ranks(...);                                      // N * layout.ranks() ranks
//   serve::check_replicas(*world, n, layout.ranks());                        // before weights are loaded
//   comm::PartOfWorld part(*world, n);                                       // the ranks of this replica
//   comm::Mesh mesh(part, layout.axes());                                    // load the model, make the engine
//   serve::EngineLoop loop(part, mesh, {.engine = &engine, .max_waiting = 256});
//   serve::ServedReplicas served(part, loop, 256);                           // every rank, after the model is loaded
//   if (world->rank() == 0) service.open(model, served.replica());
//   served.run([&] { if (is_drained()) served.end(); });                     // every rank, in place of loop.run()
//
// All of this is the same with n = 1.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "colossal/comm/part_of_world.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

/// Checks that `replicas` engines of `layout_ranks` ranks each can serve together. Does not communicate.
/// Errors ("serve"): another number of ranks in `world`; with several replicas, ranks on several hosts.
void check_replicas(const comm::World& world, int64_t replicas, int64_t layout_ranks);

/// Connects the loops of all replicas with rank 0 of the whole world, which takes the requests (Replicas). The
/// loops of other replicas are in other processes or threads of this host; a socket without a name leads to each
/// (RemoteReplica). No collective spans two replicas after the constructor.
///
/// Ends:    run() returns on every rank after end(). If a replica ends with an error, all of its unfinished work ends
///          with that error. run() on rank 0 then throws it too, so that the server ends.
class ServedReplicas {
 public:
  /// Collective among rank 0 of each replica; other ranks return at once. `part` are the ranks of this replica, `loop`
  /// is its loop; both must outlive this object. `max_waiting` is the limit of waiting work of all replicas
  /// together (http::ServerLimits::max_waiting); each loop must have at least the same one.
  /// Communication: two small all_reduces and one broadcast of about 100 bytes per replica. None with one replica.
  /// Errors: Error("comm", ...) on rank 0 of every replica, if a process cannot get its socket.
  ServedReplicas(comm::PartOfWorld& part, ReplicaLoop& loop, int64_t max_waiting);
  ~ServedReplicas();

  /// Returns the replica that takes the requests of the server: the loop itself with one replica, else a Replicas. It
  /// is valid until the destruction of this object. Errors ("serve"): a call on another rank than rank 0 of the whole
  /// world.
  Replica& replica();

  /// Runs the loop of this replica (ReplicaLoop::run) until rank 0 of the whole world calls end(). `poll` is called on
  /// that rank only.
  /// Errors: those of ReplicaLoop::run(). On rank 0 of the whole world also Error("serve", ...) with the error of
  /// another replica. Then, and if rank 0 dies, rank 0 of every other replica throws Error("serve", ...) too.
  void run(const std::function<void()>& poll);
  /// Makes run() return on all ranks of all replicas before their next steps. Unfinished work gets no event. Only on
  /// rank 0 of the whole world; any thread.
  void end();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::serve
