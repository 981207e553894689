#include "colossal/serve/replicas/served_replicas.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/handover.h"
#include "colossal/serve/replicas/replica_link.h"
#include "colossal/serve/replicas/replicas.h"

namespace colossal::serve {
namespace {

constexpr std::chrono::milliseconds kHandover{60000};  // for a process to get its socket

/// Returns "replica 1 (rank 1)" or "replica 1 (ranks 2 to 3)".
std::string name_of_replica(const comm::PartOfWorld& part, int index) {
  const int first = part.first_rank_of(index), last = first + part.size() - 1;
  return first == last ? concat("replica ", index, " (rank ", first, ")")
                       : concat("replica ", index, " (ranks ", first, " to ", last, ")");
}

/// Connects rank 0 of the first part with rank 0 of every other part. Returns, on the former, a socket for each other
/// part in order; on the others, the other end of their socket. Collective among these ranks.
std::vector<Descriptor> connect_first_ranks(comm::PartOfWorld& part) {
  std::vector<int> ranks;
  for (int k = 0; k < part.parts(); ++k) ranks.push_back(part.first_rank_of(k));
  const auto first_ranks = part.whole().make_group("replicas", ranks);
  std::vector<Descriptor> sockets;
  std::vector<std::unique_ptr<comm::Handover>> handovers;  // kept until all ranks have their sockets
  std::string tickets;                                     // a line for each other part
  comm::agree(*first_ranks, at::kCPU, [&] {
    for (int k = 1; part.index() == 0 && k < part.parts(); ++k) {
      int pair[2];
      require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "serve",
              "cannot connect two replicas: ", std::strerror(errno), "; raise the limit of open files (ulimit -n)");
      sockets.emplace_back(pair[0]);
      handovers.push_back(std::make_unique<comm::Handover>(Descriptor(pair[1])));
      tickets += handovers.back()->ticket() + "\n";
    }
  });
  std::istringstream lines(comm::broadcast_text(*first_ranks, at::kCPU, 0, tickets));
  comm::agree(*first_ranks, at::kCPU, [&] {
    std::string ticket;
    for (int k = 0; k < part.index(); ++k) std::getline(lines, ticket);
    if (part.index() == 0) return;
    sockets.push_back(comm::take(
        ticket, kHandover,
        {.what = "the socket of rank 0", .remedy = "be in one container, or each serve on a port of its own"}));
  });
  return sockets;
}

}  // namespace

void check_replicas(const comm::World& world, int64_t replicas, int64_t layout_ranks) {
  require(replicas >= 1, "serve", "--replicas must be at least 1: got ", replicas);
  require(world.size() == replicas * layout_ranks, "serve",
          "the number of ranks must be --replicas times the ranks of the layout: got ", world.size(), " ranks for ",
          replicas, " * ", layout_ranks, "; start ", replicas * layout_ranks, " ranks");
  require(replicas == 1 || world.local_size() == world.size(), "serve",
          "the ranks of all replicas must be on one host: got ", world.local_size(), " of ", world.size(),
          " ranks on this host; start one server per host");
}

struct ServedReplicas::State {
  State(comm::PartOfWorld& part_, ReplicaLoop& loop_) : part(part_), loop(loop_) {}

  bool takes_requests() const { return part.whole().rank() == 0; }

  /// Throws the error of another replica, if there is one.
  void check_others() const {
    for (const auto& other : others)
      if (const auto error = other->error()) throw Error("serve", *error);
  }

  void end_others(const std::string& reason) {
    for (const auto& other : others) other->end(reason);
  }

  /// Runs the loop of rank 0 of the whole world, and ends the other replicas after it.
  void run_first(const std::function<void()>& poll) {
    try {
      loop.run([&] {
        check_others();
        if (poll) poll();
      });
    } catch (const std::exception& error) {
      end_others(plain_message(error));
      throw;
    }
    end_others("");
  }

  /// Runs the loop of rank 0 of another replica.
  void run_linked() {
    try {
      loop.run([this] { link->report_load(); });
    } catch (const std::exception& error) {
      link->end(with_rank(plain_message(error), part.whole().rank(), part.whole().size()));
      throw;
    }
    link->end("");
    const std::optional<std::string> reason = link->reason();
    require(reason.has_value(), "serve", "rank 0, which takes the requests, has ended");
    if (!reason->empty())  // rank 0 throws the reason itself
      throw Error("serve", "rank 0, which takes the requests, has ended: " + *reason).mark_on_all_ranks();
  }

  comm::PartOfWorld& part;
  ReplicaLoop& loop;
  std::vector<std::unique_ptr<RemoteReplica>> others;  // on rank 0 of the whole world
  std::unique_ptr<Replicas> replicas;                  // there; null with one replica
  std::unique_ptr<ReplicaLink> link;                   // on rank 0 of another replica
};

ServedReplicas::ServedReplicas(comm::PartOfWorld& part, ReplicaLoop& loop, int64_t max_waiting)
    : state_(std::make_unique<State>(part, loop)) {
  if (part.parts() == 1 || part.rank() != 0) return;
  std::vector<Descriptor> sockets = connect_first_ranks(part);
  if (part.index() > 0) {
    state_->link = std::make_unique<ReplicaLink>(std::move(sockets[0]), loop, [&loop] { loop.end(); });
    return;
  }
  std::vector<Replica*> replicas{&loop};
  for (int k = 1; k < part.parts(); ++k) {
    // rank 0 of the replica has the other end of the socket
    const std::string loss = with_rank("its first process has died", part.first_rank_of(k), part.whole().size());
    state_->others.push_back(
        std::make_unique<RemoteReplica>(std::move(sockets[k - 1]), name_of_replica(part, k), loss, max_waiting));
    replicas.push_back(state_->others.back().get());
  }
  state_->replicas = std::make_unique<Replicas>(std::move(replicas), ReplicasOptions{.max_waiting = max_waiting});
}

ServedReplicas::~ServedReplicas() = default;

Replica& ServedReplicas::replica() {
  require(state_->takes_requests(), "serve", "only rank 0 takes requests: got a call on rank ",
          state_->part.whole().rank());
  if (state_->replicas) return *state_->replicas;
  return state_->loop;
}

void ServedReplicas::run(const std::function<void()>& poll) {
  if (state_->takes_requests()) return state_->run_first(poll);
  if (state_->link) return state_->run_linked();
  state_->loop.run({});
}

void ServedReplicas::end() {
  require(state_->takes_requests(), "serve", "only rank 0 ends a server: got a call on rank ",
          state_->part.whole().rank());
  state_->loop.end();
}

}  // namespace colossal::serve
