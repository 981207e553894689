#include "colossal/serve/replicas/replicas.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

uint64_t random_word() {
  std::random_device random;
  const uint64_t high = random();
  return high << 32 | random();
}

template <class Number>
std::string_view view_of(const Number* numbers, size_t count) {
  return {reinterpret_cast<const char*>(numbers), count * sizeof(Number)};
}

size_t least_loaded(const std::vector<int64_t>& work) {
  return static_cast<size_t>(std::min_element(work.begin(), work.end()) - work.begin());
}

/// Returns the index of the replica for a request that shares `shared` blocks with what each replica was sent.
size_t choose_replica(const std::vector<int64_t>& shared, const std::vector<int64_t>& work) {
  size_t best = least_loaded(work);
  for (size_t k = 0; k < shared.size(); ++k) {
    const bool is_better = shared[k] > shared[best] || (shared[k] == shared[best] && work[k] < work[best]);
    if (is_better) best = k;
  }
  const size_t least = least_loaded(work);
  return work[best] >= work[least] + Replicas::kMaxLead ? least : best;
}

std::optional<Ticket> outer_ticket(std::optional<Ticket> ticket, size_t replica) {
  if (!ticket) return std::nullopt;
  return *ticket + static_cast<Ticket>(replica) * Replicas::kTicketsPerReplica;
}

}  // namespace

PrefixHasher::PrefixHasher() : key_{random_word(), random_word()} {}

std::vector<uint64_t> PrefixHasher::blocks_of(const std::vector<int64_t>& prompt, const std::string& cache_key,
                                              const std::string& adapter) const {
  std::vector<uint64_t> blocks;
  const uint64_t owner[] = {comm::keyed_hash(key_, cache_key), comm::keyed_hash(key_, adapter)};
  uint64_t before = comm::keyed_hash(key_, view_of(owner, 2));
  for (size_t begin = 0; begin + kBlockTokens <= prompt.size(); begin += kBlockTokens) {
    const uint64_t parts[] = {before, comm::keyed_hash(key_, view_of(&prompt[begin], kBlockTokens))};
    before = comm::keyed_hash(key_, view_of(parts, 2));
    blocks.push_back(before);
  }
  return blocks;
}

int64_t SentPrefixes::shared(const std::vector<uint64_t>& blocks) const {
  int64_t count = 0;
  while (count < static_cast<int64_t>(blocks.size()) && places_.count(blocks[count]) > 0) ++count;
  return count;
}

void SentPrefixes::remember(const std::vector<uint64_t>& blocks) {
  // From the last block to the first one, because a block is useful only with those before it.
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto found = places_.find(blocks[i]);
    if (found != places_.end()) {
      in_order_.splice(in_order_.begin(), in_order_, found->second);
      continue;
    }
    in_order_.push_front(blocks[i]);
    places_.emplace(blocks[i], in_order_.begin());
  }
  for (; places_.size() > max_blocks_; in_order_.pop_back()) places_.erase(in_order_.back());
}

Replicas::Replicas(std::vector<Replica*> replicas, const ReplicasOptions& options)
    : replicas_(std::move(replicas)), max_waiting_(options.max_waiting) {
  require(!replicas_.empty(), "serve", "a server needs at least one replica: got none");
  for (size_t k = 0; k < replicas_.size(); ++k) sent_.emplace_back(options.max_blocks);
}

std::optional<Ticket> Replicas::add(std::vector<Generation> generations) {
  std::vector<std::vector<uint64_t>> prompts;
  for (const Generation& generation : generations)
    if (generation.after < 0)
      prompts.push_back(hasher_.blocks_of(generation.prompt, generation.cache_key, generation.adapter));
  const std::lock_guard lock(mutex_);
  if (!has_room(static_cast<int64_t>(generations.size()))) return std::nullopt;
  std::vector<int64_t> shared(replicas_.size());
  for (size_t k = 0; k < replicas_.size(); ++k)
    for (const auto& blocks : prompts) shared[k] += sent_[k].shared(blocks);
  const size_t chosen = choose_replica(shared, work_of_each());
  const std::optional<Ticket> ticket = replicas_[chosen]->add(std::move(generations));
  if (!ticket) return std::nullopt;
  for (const auto& blocks : prompts) sent_[chosen].remember(blocks);
  return outer_ticket(ticket, chosen);
}

std::optional<Ticket> Replicas::add(Embedding embedding) {
  return add_to_least_loaded([&](Replica& replica) { return replica.add(std::move(embedding)); });
}

std::optional<Ticket> Replicas::draw(DrawingJob job) {
  return add_to_least_loaded([&](Replica& replica) { return replica.draw(std::move(job)); });
}

std::optional<Ticket> Replicas::add_to_least_loaded(const std::function<std::optional<Ticket>(Replica&)>& add) {
  const std::lock_guard lock(mutex_);
  if (!has_room(1)) return std::nullopt;
  const size_t chosen = least_loaded(work_of_each());
  return outer_ticket(add(*replicas_[chosen]), chosen);
}

void Replicas::prepare(const std::string& schema) {
  for (Replica* replica : replicas_) replica->prepare(schema);
}

void Replicas::cancel(Ticket ticket) {
  const auto replica = static_cast<size_t>(ticket / kTicketsPerReplica);
  if (ticket > 0 && replica < replicas_.size()) replicas_[replica]->cancel(ticket % kTicketsPerReplica);
}

ReplicaLoad Replicas::load() const {
  ReplicaLoad sum;
  for (const Replica* replica : replicas_) {
    const ReplicaLoad one = replica->load();
    sum.waiting += one.waiting;
    sum.running += one.running;
    sum.blocks += one.blocks;
    sum.blocks_used += one.blocks_used;
  }
  return sum;
}

std::vector<int64_t> Replicas::work_of_each() const {
  std::vector<int64_t> work;
  for (const Replica* replica : replicas_) {
    const ReplicaLoad load = replica->load();
    work.push_back(load.waiting + load.running);
  }
  return work;
}

bool Replicas::has_room(int64_t more) const { return load().waiting + more <= max_waiting_; }

}  // namespace colossal::serve
