// Distributes the work of a server among its replicas.
//
//   serve::Replicas replicas({&own_loop, &remote}, {.max_waiting = 256});
//   replicas.add({{.prompt = ids, .options = options, .on_event = on_event}});
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "colossal/comm/seal.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

/// Hashes the blocks of prompts under a random key, so that clients cannot make prompts whose hashes are equal. Thread
/// safe.
class PrefixHasher {
 public:
  static constexpr int64_t kBlockTokens = 64;

  PrefixHasher();
  /// Returns one hash per full block of kBlockTokens tokens. A hash is of the cache key, of the adapter and of all
  /// tokens up to the end of its block, so equal hashes mean equal prefixes. Cost: about a nanosecond per byte of the
  /// prompt.
  std::vector<uint64_t> blocks_of(const std::vector<int64_t>& prompt, const std::string& cache_key,
                                  const std::string& adapter = "") const;

 private:
  comm::HashKey key_;
};

/// The blocks of prompts that a replica was sent, a bounded set. The least recently used ones are dropped first; of one
/// prefix, the last ones.
/// Memory: about 100 bytes per block. Thread safety: none.
class SentPrefixes {
 public:
  /// `max_blocks` is the maximum number of blocks that are remembered.
  explicit SentPrefixes(size_t max_blocks) : max_blocks_(max_blocks) {}
  SentPrefixes(SentPrefixes&&) = default;  // no copies, because places_ points into in_order_

  /// Returns the number of blocks of the longest remembered prefix of `blocks`.
  int64_t shared(const std::vector<uint64_t>& blocks) const;
  void remember(const std::vector<uint64_t>& blocks);
  size_t size() const { return places_.size(); }

 private:
  const size_t max_blocks_;
  std::list<uint64_t> in_order_;  // the most recently used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

struct ReplicasOptions {
  int64_t max_waiting = 256;            ///< maximum of waiting work of all replicas together
  size_t max_blocks = size_t{1} << 16;  ///< remembered blocks of 64 tokens per replica: about 6 MiB
};

/// Several replicas as one. All generations of a request go to the replica that was sent the longest prefix of its
/// prompts under the same cache key and adapter, counted in blocks of 64 tokens; of equal ones to the least loaded. If
/// that replica has at least four more generations and embeddings, waiting and running, than the least loaded replica,
/// they go to the least loaded one. Requests that share no block, embeddings and drawings go there too. Of several
/// least loaded replicas the first one gets them.
///
/// Tickets: replica k's ticket t is t + k * kTicketsPerReplica here, so tickets of different replicas differ.
/// load():  the sum over all replicas.
class Replicas final : public Replica {
 public:
  static constexpr Ticket kTicketsPerReplica = Ticket{1} << 48;
  /// How many more pieces of work than the least loaded replica end the preference for a shared prefix.
  static constexpr int64_t kMaxLead = 4;

  /// `replicas` has at least one; they must outlive this object and get work from it alone. Each must take
  /// `max_waiting` waiting generations.
  explicit Replicas(std::vector<Replica*> replicas, const ReplicasOptions& options = {});

  std::optional<Ticket> add(std::vector<Generation> generations) override;
  std::optional<Ticket> add(Embedding embedding) override;
  std::optional<Ticket> draw(DrawingJob job) override;
  void prepare(const std::string& schema) override;  ///< in all replicas: any of them may get the generation
  void cancel(Ticket ticket) override;
  ReplicaLoad load() const override;

 private:
  std::optional<Ticket> add_to_least_loaded(const std::function<std::optional<Ticket>(Replica&)>& add);
  std::vector<int64_t> work_of_each() const;
  bool has_room(int64_t more) const;

  const std::vector<Replica*> replicas_;
  const int64_t max_waiting_;
  const PrefixHasher hasher_;
  std::mutex mutex_;  // held from the choice of a replica until it has the work
  std::vector<SentPrefixes> sent_;
};

}  // namespace colossal::serve
